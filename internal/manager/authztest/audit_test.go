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
	"tenancy.UpdateFullName":             "user.rename",
	"tenancy.UpdatePassword":             "user.change-password",
	"tenancy.GenerateSSHKeypair":         "keypair.generate-ssh",
	"tenancy.SetSSHKeypair":              "keypair.set-ssh",
	"tenancy.AllowRegistries":            "domain.allow-registries",
	"tenancy.CreateDotfile":              "dotfile.create",
	"tenancy.UpdateDotfile":              "dotfile.update",
	"tenancy.DeleteDotfile":              "dotfile.delete",
	"tenancy.SetBootstrapScript":         "keypair.set-bootstrap-script",
	"tenancy.ModifyKeypairPolicy":        "keypair-policy.modify",
	"resource.CreateGroup":               "resource-group.create",
	"resource.ModifyGroup":               "resource-group.modify",
	"resource.DeleteGroup":               "resource-group.delete",
	"resource.AssociateGroup":            "resource-group.associate",
	"resource.DisassociateGroup":         "resource-group.disassociate",
	"resource.CreatePreset":              "preset.create",
	"resource.ModifyPreset":              "preset.modify",
	"resource.DeletePreset":              "preset.delete",
	"resource.SetProjectResourcesHidden": "cluster.hide-project-resources",
	"image.Alias":                        "image.alias",
	"image.Dealias":                      "image.dealias",
	"image.Forget":                       "image.forget",
	"image.Import":                       "image.import",
	"node.Modify":                        "agent.modify",
	"node.SetSchedulable":                "agent.set-schedulable",
	"folder.AllowInDomain":               "domain.allow-folder-hosts",
	"folder.AllowInProject":              "project.allow-folder-hosts",
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
	"session.Commit":                     "session.commit",
	"session.Create":                     "session.create",
	"session.Destroy":                    "session.destroy",
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
}

// unaudited are the methods that change nothing although they ask for more than seeing, or whose name sounds like a change, and why
// there is no record of them.
var unaudited = map[string]string{
	"tenancy.ListDotfiles": "reads", "tenancy.GetDotfile": "reads", "tenancy.Owner": "decides for other use cases",
	"resource.RecalculateUsage": "reads", "image.Unknown": "reads", "image.Customized": "reads", "folder.Usage": "reads",
	"folder.UsedBytes": "reads", "folder.AllHosts": "reads", "folder.PerfMetric": "reads", "folder.Shared": "reads",
	"session.DryRun": "changes nothing", "session.Changeable": "decides for other use cases",
	"session.RenewLease": "keeps a session that its client still uses; comes every some seconds",
	"session.Runner":     "what runs inside of sessions is not the cluster's; comes with every code cell",
	"app.Enter":          "visits", "app.Reach": "visits", "app.Ticket": "visits",
}

// changing are names of methods that change something.
var changing = regexp.MustCompile(
	`\.(Set|Unset|Add|Update|Create|Modify|Delete|Purge|Remove|Rename|Generate|Accept|Leave|Clone|Move|Share|Unshare)`)

// Every use case that changes something is recorded, whether it was done or denied, once a transaction; the others are not. A method that
// changes something and has no action fails here.
func TestEveryChangeIsRecorded(t *testing.T) {
	t.Parallel()
	w, actors := newWorld(t)
	nouns := map[string]reflect.Value{
		"tenancy": reflect.ValueOf(w.Tenancy), "resource": reflect.ValueOf(w.Resources), "image": reflect.ValueOf(w.Images),
		"node": reflect.ValueOf(w.Nodes), "folder": reflect.ValueOf(w.Folders), "session": reflect.ValueOf(w.Sessions),
		"app": reflect.ValueOf(w.Apps), "idle": reflect.ValueOf(w.Idle), "operation": reflect.ValueOf(w.Operations),
		"audit": reflect.ValueOf(w.Audit),
	}
	reading := []authz.Verb{authz.See, authz.Reach, authz.ReadFiles}
	seen := map[string]bool{}
	last := func() (id int64) {
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT coalesce(max(id), 0) FROM audit_log`).Scan(&id))
		return id
	}
	for _, l := range matrix {
		action, is := audited[l.method]
		_, not := unaudited[l.method]
		require.False(t, is && not, "%s is listed twice", l.method)
		if !is && !not {
			require.Contains(t, reading, l.verb, "%s changes something: name the action under which it is recorded", l.method)
			require.False(t, changing.MatchString(l.method), "%s sounds like a change: name its action, or say why it has none", l.method)
		}
		seen[l.method] = true
		noun, name, _ := strings.Cut(l.method, ".")
		for _, who := range []string{"owner", "stranger", "superadmin"} {
			w.renew()
			before := last()
			_, err := l.call(t, nouns[noun].MethodByName(name), actors[who], w, w.owner)
			rows, queryErr := w.Store.Pool().Query(t.Context(),
				`SELECT action, result, email FROM audit_log WHERE id > $1 ORDER BY id`, before)
			require.NoError(t, queryErr)
			var got []string
			for rows.Next() {
				var a, r, e string
				require.NoError(t, rows.Scan(&a, &r, &e))
				require.Equal(t, actors[who].Email, e)
				got = append(got, a+" "+r)
			}
			require.NoError(t, rows.Err())
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
	}
	for _, list := range []map[string]string{audited, unaudited} {
		for method := range list {
			require.True(t, seen[method], "%s has no line in the matrix", method)
		}
	}
}
