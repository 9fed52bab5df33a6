package authztest

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// audited are the actions under which methods are recorded.
var audited = map[string]string{
	"tenancy.CreateUser": "user.create", "tenancy.ModifyUser": "user.modify", "tenancy.DeleteUser": "user.delete",
	"letter.Invite": "user.invite", "identity.Unlink": "identity.unlink",
	"notice.SetPreferences": "notice.set-preferences", "notice.SendTest": "notice.test",
	"passkey.Rename": "passkey.rename", "passkey.Delete": "passkey.delete",
	"directory.Ask": "directory.sync", "provision.AllowRemovals": "scim.allow-removals",
	"otp.Enrol": "user.enrol-otp", "otp.Confirm": "user.confirm-otp", "otp.Remove": "user.remove-otp",
	"otp.RenewRecoveryCodes":       "user.renew-recovery-codes",
	"tenancy.CreateServiceAccount": "user.create-service-account", "token.Create": "token.create", "token.Delete": "token.delete",
	"tenancy.CreateKeypair":              "keypair.create",
	"tenancy.ModifyKeypair":              "keypair.modify",
	"tenancy.DeleteKeypair":              "keypair.delete",
	"tenancy.RotateKeypair":              "keypair.rotate",
	"purge.Begin":                        "project.purge",
	"apply.Apply":                        "tenancy.apply",
	"tenancy.UpdateFullName":             "user.rename",
	"tenancy.UpdatePassword":             "user.change-password",
	"tenancy.EndLogin":                   "login.end",
	"tenancy.SignOut":                    "user.sign-out",
	"tenancy.GenerateSSHKeypair":         "keypair.generate-ssh",
	"tenancy.SetSSHKeypair":              "keypair.set-ssh",
	"tenancy.CreateDomain":               "domain.create",
	"tenancy.ModifyDomain":               "domain.modify",
	"tenancy.DeleteDomain":               "domain.delete",
	"tenancy.CreateProject":              "project.create",
	"tenancy.ModifyProject":              "project.modify",
	"tenancy.DeleteProject":              "project.delete",
	"tenancy.CreateDotfile":              "dotfile.create",
	"tenancy.UpdateDotfile":              "dotfile.update",
	"tenancy.DeleteDotfile":              "dotfile.delete",
	"tenancy.SetBootstrapScript":         "keypair.set-bootstrap-script",
	"tenancy.CreateKeypairPolicy":        "keypair-policy.create",
	"tenancy.ModifyKeypairPolicy":        "keypair-policy.modify",
	"tenancy.DeleteKeypairPolicy":        "keypair-policy.delete",
	"tenancy.CreateUserPolicy":           "user-policy.create",
	"tenancy.ModifyUserPolicy":           "user-policy.modify",
	"tenancy.DeleteUserPolicy":           "user-policy.delete",
	"tenancy.CreateProjectPolicy":        "project-policy.create",
	"tenancy.ModifyProjectPolicy":        "project-policy.modify",
	"tenancy.DeleteProjectPolicy":        "project-policy.delete",
	"resource.CreateGroup":               "resource-group.create",
	"resource.ModifyGroup":               "resource-group.modify",
	"resource.DeleteGroup":               "resource-group.delete",
	"resource.AssociateGroup":            "resource-group.associate",
	"resource.DisassociateGroup":         "resource-group.disassociate",
	"resource.CreatePreset":              "preset.create",
	"resource.ModifyPreset":              "preset.modify",
	"resource.DeletePreset":              "preset.delete",
	"resource.SetQuota":                  "quota.set",
	"resource.UnsetQuota":                "quota.unset",
	"resource.PlaceProject":              "project.place",
	"resource.SetProjectResourcesHidden": "cluster.hide-project-resources",
	"resource.SetSlotAliases":            "cluster.set-slot-aliases",
	"image.Alias":                        "image.alias",
	"image.Dealias":                      "image.dealias",
	"image.Forget":                       "image.forget",
	"image.Import":                       "image.import",
	"image.SetAutoPull":                  "cluster.set-auto-pull",
	"node.Modify":                        "agent.modify",
	"node.SetSchedulable":                "agent.set-schedulable",
	"folder.Rename":                      "folder.rename",
	"folder.UpdateOptions":               "folder.modify",
	"folder.Trash":                       "folder.trash",
	"folder.Restore":                     "folder.restore",
	"folder.DeleteForever":               "folder.delete",
	"folder.Purge":                       "folder.purge",
	"folder.ChangeOwnership":             "folder.change-owner",
	"folder.Create":                      "folder.create",
	"folder.Clone":                       "folder.clone",
	"folder.Mkdir":                       "folder.make-directory",
	"folder.RenameFile":                  "folder.rename-file",
	"folder.MoveFile":                    "folder.move-file",
	"folder.DeleteFiles":                 "folder.delete-files",
	"folder.DeleteFilesAsync":            "folder.delete-files",
	"folder.RequestUpload":               "folder.upload",
	"folder.Import":                      "folder.import",
	"folder.SetDefaultHost":              "folder-host.set-default",
	"folder.SetQuotaScope":               "quota.set",
	"folder.UnsetQuotaScope":             "quota.unset",
	"folder.SetQuota":                    "quota.set",
	"folder.UnsetQuota":                  "quota.unset",
	"folder.Invite":                      "folder.invite",
	"folder.AcceptInvitation":            "invitation.accept",
	"folder.DeleteInvitation":            "invitation.delete",
	"folder.UpdateInvitation":            "invitation.modify",
	"folder.Share":                       "folder.share",
	"folder.Unshare":                     "folder.unshare",
	"folder.Leave":                       "folder.leave",
	"folder.UpdateSharing":               "folder.modify-shares",
	"template.Create":                    "template.create",
	"template.Replace":                   "template.modify",
	"template.Delete":                    "template.delete",
	"session.Commit":                     "session.commit",
	"session.Create":                     "session.create",
	"session.Destroy":                    "session.destroy",
	"session.EndAll":                     "session.end-all",
	"session.Rename":                     "session.rename",
	"session.Modify":                     "session.modify",
	"session.Restart":                    "session.restart",
	"app.Patch":                          "circuit.modify",
	"app.Delete":                         "circuit.delete",
	"app.Start":                          "app.start",
	"app.Stop":                           "app.stop",
	"idle.SetChecker":                    "idle-checker.set",
	"idle.RemoveChecker":                 "idle-checker.delete",
	"idle.KeepAlive":                     "session.keep-alive",
	"operation.SetAnnouncement":          "cluster.announce",
	"operation.SetManagerStatus":         "cluster.set-status",
	"operation.ClearError":               "error-log.clear",
	"usage.SetPrice":                     "usage-price.set",
	"usage.RemovePrice":                  "usage-price.remove",
}

// unaudited are the methods that change nothing although they ask for more than seeing, or whose name sounds like a change, and why
// there is no record of them.
var unaudited = map[string]string{
	"tenancy.ListDotfiles": "reads", "tenancy.GetDotfile": "reads", "tenancy.Owner": "decides for other use cases",
	"passkey.List":  "reads",
	"identity.List": "reads",
	"purge.Preview": "changes nothing", "purge.PreviewInactive": "changes nothing", "apply.Plan": "changes nothing",
	"resource.RecalculateUsage": "reads", "image.Unknown": "reads", "image.Customized": "reads", "folder.Usage": "reads",
	"folder.UsedBytes": "reads", "folder.AllHosts": "reads", "folder.PerfMetric": "reads", "folder.Shared": "reads",
	"tenancy.ActAs":  "decides for other use cases, whose records name both",
	"session.DryRun": "changes nothing", "session.Changeable": "decides for other use cases",
	"template.Session": "reads", "template.Cluster": "reads",
	"session.RenewLease": "keeps a session that its client still uses; comes every some seconds",
	"session.Runner":     "what runs inside of sessions is not the cluster's; comes with every code cell",
	"app.Enter":          "visits", "app.Reach": "visits", "app.Ticket": "visits",
}

// changing are names of methods that change something.
var changing = regexp.MustCompile(
	`\.(Set|Unset|Add|Update|Create|Modify|Delete|Purge|Remove|Rename|Generate|Accept|Leave|Clone|Move|Share|Unshare)`)

// services are the nouns by their names.
func services(w *world) map[string]reflect.Value {
	return map[string]reflect.Value{
		"tenancy": reflect.ValueOf(w.Tenancy), "token": reflect.ValueOf(w.Tokens), "otp": reflect.ValueOf(w.OTP),
		"letter": reflect.ValueOf(w.Letters), "identity": reflect.ValueOf(w.Identities),
		"openid": reflect.ValueOf(w.OpenID), "passkey": reflect.ValueOf(w.Passkeys),
		"directory": reflect.ValueOf(w.Directory), "provision": reflect.ValueOf(w.Provision),
		"resource": reflect.ValueOf(w.Resources), "image": reflect.ValueOf(w.Images),
		"node": reflect.ValueOf(w.Nodes), "folder": reflect.ValueOf(w.Folders), "session": reflect.ValueOf(w.Sessions),
		"template": reflect.ValueOf(w.Templates), "app": reflect.ValueOf(w.Apps), "idle": reflect.ValueOf(w.Idle),
		"operation": reflect.ValueOf(w.Operations),
		"notice":    reflect.ValueOf(w.Notices),
		"audit":     reflect.ValueOf(w.Audit),
		"usage":     reflect.ValueOf(w.Usage),
		"metric":    reflect.ValueOf(w.Metrics),
		"purge":     reflect.ValueOf(w.Purges),
		"apply":     reflect.ValueOf(w.Tenancies),
	}
}

// Every use case that changes something is recorded, whether it was done or denied, once a transaction; the others are not. A method that
// changes something and has no action fails here.
func TestEveryChangeIsRecorded(t *testing.T) {
	t.Parallel()
	reading := []authz.Verb{authz.See, authz.Reach, authz.ReadFiles, authz.SeeMembers}
	seen := map[string]bool{}
	for _, l := range matrix {
		_, is := audited[l.method]
		_, not := unaudited[l.method]
		require.False(t, is && not, "%s is listed twice", l.method)
		if !is && !not {
			require.Contains(t, reading, l.verb, "%s changes something: name the action under which it is recorded", l.method)
			require.False(t, changing.MatchString(l.method), "%s sounds like a change: name its action, or say why it has none", l.method)
		}
		seen[l.method] = true
	}
	for _, list := range []map[string]string{audited, unaudited} {
		for method := range list {
			require.True(t, seen[method], "%s has no line in the matrix", method)
		}
	}
	eachNoun(t, func(t *testing.T, w *world, actors map[string]authz.Actor, lines []bound) {
		for _, l := range lines {
			for _, who := range []string{"owner", "stranger", "superadmin"} {
				l.checkRecord(t, who, actors[who], w)
			}
		}
	})
}

// checkRecord calls a method as somebody and compares what came of it with what was recorded.
func (l bound) checkRecord(t *testing.T, who string, a authz.Actor, w *world) {
	t.Helper()
	w.renew()
	var before int64
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT coalesce(max(id), 0) FROM audit_log`).Scan(&before))
	_, err := l.call(t, l.callee, a, w, w.owner)
	rows, queryErr := w.Store.Pool().Query(t.Context(),
		`SELECT action, result, email FROM audit_log WHERE id > $1 ORDER BY id`, before)
	require.NoError(t, queryErr)
	var got []string
	for rows.Next() {
		var action, result, email string
		require.NoError(t, rows.Scan(&action, &result, &email))
		require.Equal(t, a.Email, email)
		got = append(got, action+" "+result)
	}
	require.NoError(t, rows.Err())
	action, is := audited[l.method]
	switch {
	case !is:
		require.Empty(t, got, "%s by %s is recorded, but has no action here", l.method, who)
	case err == nil:
		require.Equal(t, []string{action + " done"}, slices.Compact(got), "%s by %s", l.method, who)
	case fault.Is(err, fault.Denied):
		require.Equal(t, []string{action + " denied"}, got, "%s by %s: %v", l.method, who, err)
	default:
		require.NotContains(t, got, action+" done", "%s by %s failed: %v", l.method, who, err)
	}
}

// Whoever comes with a token that only reads changes nothing, by no method of any noun; and whoever comes with a token for one area
// changes nothing of the others.
func TestScopesHoldInEveryUseCase(t *testing.T) {
	t.Parallel()
	eachNoun(t, func(t *testing.T, w *world, actors map[string]authz.Actor, lines []bound) {
		for _, l := range lines {
			action, is := audited[l.method]
			if !is {
				continue
			}
			scopes := map[string]*authz.Scope{"only reads": {Token: "x", ReadOnly: true}}
			if !strings.HasPrefix(l.method, "image.") {
				scopes["is for images"] = &authz.Scope{Token: "x", Areas: []authz.Area{authz.AreaImages}}
			}
			for words, scope := range scopes {
				for _, who := range []string{"owner", "superadmin"} {
					w.renew()
					_, err := l.call(t, l.callee, actors[who].Within(scope), w, w.owner)
					require.Error(t, err, "%s (%s) by %s with a token that %s", l.method, action, who, words)
					if !fault.Is(err, fault.Denied) && !fault.Is(err, fault.NotFound) {
						t.Errorf("%s (%s) by %s with a token that %s: %v", l.method, action, who, words, err)
					}
				}
			}
		}
		var done int
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(),
			`SELECT count(*) FROM audit_log WHERE result = 'done' AND action <> 'x'`).Scan(&done))
		require.Zero(t, done)
	})
}
