package authztest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/notice"
	"berth.dev/berth/internal/manager/notice/rule"
	"berth.dev/berth/internal/manager/operation"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/session/template"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/apply"
	"berth.dev/berth/internal/manager/tenancy/letter"
	"berth.dev/berth/internal/manager/tenancy/purge"
	"berth.dev/berth/internal/manager/tenancy/token"
	"berth.dev/berth/internal/manager/usage"
)

func mapsKeys(m map[string]string) iter.Seq[string] { return maps.Keys(m) }

// actorless are the methods that take no actor, and why.
var actorless = map[string]string{
	"openid.Begin": "for strangers", "openid.Providers": "for everybody", "openid.Finish": "the provider's answer decides",
	"openid.LoginByToken": "the provider's token decides", "passkey.BeginLogin": "for strangers", "passkey.Login": "the passkey decides",
	"passkey.BeginEnrol": "the token of a login decides", "passkey.Enrol": "the token of a login decides",
	"tenancy.FreshLogin": "the token of a login decides",
	"notice.Loops":       "serves",
	"letter.Run":         "serves", "letter.Ready": "tells whether there is e-mail", "letter.Welcome": "for imports, after they decided",
	"letter.RequestReset": "for everybody; the answer tells nothing",
	"letter.Reset":        "for the reader of an e-mail", "letter.Accept": "for the reader of an e-mail; decides about the inviter",
	"tenancy.SignUp": "for strangers, where the operator says so",
	"identity.Apply": "the provider answers for the person", "identity.Preview": "the provider answers for the person",
	"identity.KnownOf":    "for whoever compares directories, in the background",
	"tenancy.AdmitPerson": "for identity providers, after identity decided",
	"directory.Prove":     "the password decides", "directory.Admit": "the password decides", "directory.Loops": "for the leader",
	"provision.Loops": "for the leader", "provision.ListUsers": tokenOfSCIM, "provision.GetUser": tokenOfSCIM,
	"provision.CreateUser": tokenOfSCIM, "provision.ChangeUser": tokenOfSCIM, "provision.DeleteUser": tokenOfSCIM,
	"provision.ListGroups": tokenOfSCIM, "provision.GetGroup": tokenOfSCIM, "provision.CreateGroup": tokenOfSCIM,
	"provision.ChangeGroup": tokenOfSCIM, "provision.DeleteGroup": tokenOfSCIM,
	"tenancy.SetStanding": "for identity providers, after identity decided",
	"tenancy.OpenLogin":   "for those who proved who they are", "tenancy.EndLoginsOf": "for other nouns, after they decided",
	"otp.Check": "is asked by logins, after the password", "otp.EnrolBefore": "for the holder of a registration token",
	"otp.ConfirmBefore":  "for the holder of a registration token",
	"token.Authenticate": "makes the actor of a token", "token.Recheck": "makes the actor of a token again",
	"tenancy.ResetAdminPassword": "for the machine's own administrator, who has the state directory",
	"tenancy.Authenticate":       "makes the actor of an access key", "tenancy.Authorize": "makes the actor of a password",
	"tenancy.Login": "makes a login of a password", "tenancy.ResumeLogin": "finds the user of a login's token",
	"tenancy.ActorOfLogin": "makes the actor of a login's token",
	"tenancy.SiblingLogin": "the token of the login decides",
	"tenancy.ExtendLogin":  "the token of the login decides", "tenancy.Logout": "the token of the login decides",
	"tenancy.ReplacePassword": "the password decides", "tenancy.CheckSecondFactors": "for logins, after the password",
	"tenancy.PolicyOfKey": "for other nouns, after they decided", "tenancy.FindProject": "for other nouns, which decide",
	"tenancy.UserByEmail": "for other nouns, which decide",
	"tenancy.Loops":       "for the leader", "tenancy.EndKeypairs": "for the leader",
	"resource.Slots": "for everybody", "folder.NewLoop": "for the leader", "folder.Loops": "for the leader",
	"folder.Hold":    "for sessions, after they decided",
	"folder.Discard": "for purges, after they decided", "purge.Loops": "for the leader",
	"folder.ResolveMounts": "for sessions; decides about the owner of each folder", "session.Loops": "for the leader",
	"session.Uses": "for apps, after they decided",
	"session.Run":  "serves", "app.Run": "serves", "operation.Run": "serves", "app.Watch": "for app proxies; certificates decide",
	"app.Lookup":   "for app proxies; certificates decide",
	"app.Activity": "for app proxies; certificates decide", "app.Conf": "for app proxies; certificates decide",
	"app.Launch": "for app proxies; decides about the user of the token",
	"app.Redeem": "for app proxies; decides about the user of the code", "app.Close": "for app proxies; certificates decide",
	"app.Bind": "for app proxies; decides about the user of the token", "app.Grant": "for app proxies; certificates decide",
	"app.GrantKeys": "for links", "app.EndedCircuits": "for links",
	"app.See": "for links", "app.Leave": "for links",
	"app.Proxies": "for links", "app.Keys": "for links", "app.Expire": "for the leader", "app.Tidy": "for the leader",
	"app.Findings":    "for the doctor",
	"image.ImportOwn": "for the machine's own administrator, whose engine it is",
	"image.Keep":      "for sessions, after they decided", "image.Loops": "for the leader",
	"audit.Entries": "for the export to syslog",
	"audit.Refused": "counts strangers who proved nothing", "audit.WriteRefused": "for the manager's own loop",
	"audit.Run":  "for the manager's own loop",
	"idle.Loops": "for the leader", "operation.Findings": "for the machine's own administrator, who has the state directory",
	"operation.Announcement": "for everybody", "operation.Frozen": "is asked before the actor is known",
}

var unseen = maps.Clone(actorless)

// What methods are called with.
func session(_ *world, s set) []any       { return []any{s.session} }
func sessions(_ *world, s set) []any      { return []any{[]cluster.SessionID{cluster.SessionID(s.session)}} }
func theTemplate(_ *world, s set) []any   { return []any{template.Session, s.template} }
func circuit(_ *world, s set) []any       { return []any{s.circuit} }
func task(_ *world, s set) []any          { return []any{s.task} }
func theFolder(_ *world, s set) []any     { return []any{s.folder} }
func projectFolder(w *world, _ set) []any { return []any{w.projectFolder} }
func email(_ *world, s set) []any         { return []any{s.email} }
func newUser(_ *world, s set) []any {
	return []any{"new@x", tenancy.UserProps{Domain: new("d"), Role: &s.role}}
}

// spare is a user of the same role as the owner, whom nothing else needs.
func spare(_ *world, s set) []any { return []any{"spare " + string(s.role) + "@x"} }

// spareKey is a passkey of the spare user.
func spareKey(more ...any) func(*world, set) []any {
	return func(w *world, s set) []any {
		id := w.id()
		if len(more) > 0 {
			w.Exec(`DELETE FROM passkeys WHERE name = $1`, more[0])
		}
		w.Exec(`INSERT INTO passkeys (id, user_id, credential_id, credential, sign_count, name, created_at)
SELECT $1::uuid, id, decode(replace(($1::uuid)::text, '-', ''), 'hex'), '{}', 0, ($1::uuid)::text, now() FROM users WHERE email = $2`,
			id, spare(w, s)[0])
		return append([]any{id}, more...)
	}
}

// tokenOfSCIM is who calls the use cases of SCIM: provision.TestProvidersAreApart says that nobody else does.
const tokenOfSCIM = "for tokens that are bound to an identity provider"

// directorySync is a comparison with the directory.
func directorySync(w *world, _ set) []any {
	const id = "00000000-0000-4000-8000-00000000d1ff"
	w.Exec(`INSERT INTO directory_syncs (id, directory, dry_run, asked_by, allowance, status) VALUES ($1, 'ldap', true, '', 0, 'done')
ON CONFLICT DO NOTHING`, id)
	return []any{id}
}

// linked is the spare user with an identity.
func linked(w *world, s set) []any {
	w.Exec(`INSERT INTO external_identities (provider, subject, user_id, email) SELECT 'corp', email, id, email FROM users
WHERE email LIKE 'spare%' ON CONFLICT DO NOTHING`)
	return append(spare(w, s), "corp")
}
func userID(_ *world, s set) []any { return []any{s.user} }
func key(_ *world, s set) []any    { return []any{s.key} }
func someWishes(*world, set) []any {
	return []any{notice.Change{Wishes: notice.Wishes{Email: rule.Kinds()}}}
}
func invitation(*world, set) []any   { return []any{letter.Invitation{Email: "n@x", Domain: "d"}} }
func theToken(_ *world, s set) []any { return []any{s.token} }
func newToken(w *world, _ set) []any { return []any{token.Request{Name: "t" + w.id()}} }
func newServiceToken(w *world, _ set) []any {
	return []any{token.Request{Name: "t" + w.id(), For: w.service}}
}
func newServiceAccount(w *world, _ set) []any {
	return []any{fmt.Sprint("robot", w.id()[30:]), "d", ""}
}
func aboutUser(_ *world, s set) []any  { return []any{s.email, "see", "user:" + s.email} }
func inProject(w *world, s set) []any  { return []any{s.email, w.project} }
func anotherKey(_ *world, s set) []any { return []any{s.extra} }
func theProject(w *world, _ set) []any { return []any{w.project} }
func newProject(_ *world, _ set) []any {
	return []any{"new", tenancy.ProjectProps{Domain: new("d")}}
}

// What can be purged; the project has live sessions, so that it stays.
func projectToPurge(w *world, _ set) []any { return []any{purge.Project, w.project} }
func domainToPurge(*world, set) []any      { return []any{purge.Domain, "d"} }

// A tenancy as a file.
func exported(*world, set) []any { return []any{"", apply.YAML} }
func emptyFile(*world, set) []any {
	return []any{apply.Request{Format: apply.YAML, Text: "domains: {}"}}
}
func spareOf(kind purge.Kind) func(*world, set) []any {
	return func(_ *world, s set) []any { return []any{kind, "spare " + string(s.role) + "@x"} }
}

// members changes the membership of the spare user.
func members(mode tenancy.MemberMode) func(*world, set) []any {
	return func(w *world, s set) []any {
		users := []string{"spare " + string(s.role) + "@x"}
		return []any{w.project, tenancy.ProjectProps{Members: &tenancy.MemberChange{Mode: mode, Users: users}}}
	}
}
func theImage(w *world, _ set) []any       { return []any{w.image} }
func theOwnersImage(_ *world, s set) []any { return []any{s.image} }
func theOwnersReference(_ *world, s set) []any {
	return []any{"local/" + s.user + "/mine:1"}
}
func theProjectsImage(w *world, _ set) []any { return []any{w.projectImage} }
func scopes(_ *world, s set) []any           { return []any{"p:v", "user:" + s.user} }
func hostFolder(_ *world, s set) []any       { return []any{"p:v", s.folder} }
func word(text string) func(*world, set) []any {
	return func(*world, set) []any { return []any{text} }
}
func dotfiles(_ *world, s set) []any {
	return []any{tenancy.DotfileScope{Owner: cluster.AccessKey(s.key)}}
}
func domainDotfiles(*world, set) []any { return []any{tenancy.DotfileScope{Domain: "d"}} }
func projectDotfiles(w *world, _ set) []any {
	return []any{tenancy.DotfileScope{Project: w.project}}
}

func lately(*world, set) []any {
	now := time.Now()
	return []any{usage.Period{From: now.Add(-24 * time.Hour), Until: now.Add(time.Hour)}, usage.ByUser}
}
func dayByDay(w *world, s set) []any { return append(lately(w, s), usage.Daily) }
func lastDay(w *world, s set) []any  { return lately(w, s)[:1] }
func aPrice(*world, set) []any {
	return []any{usage.Price{Slot: "cpu", PerHour: "1", ValidFrom: time.Now()}}
}
func aQuota(path string) func(*world, set) []any {
	return func(*world, set) []any {
		return []any{path, resource.QuotaProps{Limit: map[string]string{"cpu": "1000"}}}
	}
}
func thePrice(w *world, _ set) []any { return []any{w.price} }

// matrix has one line or more for each method that takes an actor.
var matrix = []line{
	{"audit.List", authz.AuditEntries, authz.See, ofOwner, nil, lists},

	{"metric.OfSession", authz.Sessions, authz.See, ofSession, session, checks},
	{"metric.OfAgent", authz.Agents, authz.See, ofCluster, word("a1"), needs},
	{"metric.OfGroup", authz.Agents, authz.See, ofCluster, nil, needs},
	{"metric.OfProject", authz.Projects, authz.SeeMembers, ofProject, theProject, checks},

	{"usage.Report", authz.UsageIntervals, authz.See, ofOwner, lately, lists},
	{"usage.Series", authz.UsageIntervals, authz.See, ofOwner, dayByDay, lists},
	{"usage.Kernels", authz.UsageIntervals, authz.See, ofCluster, lastDay, needs},
	{"usage.Mine", authz.Announcements, authz.See, forAll, nil, needs},
	{"usage.Everybodys", authz.UsageIntervals, authz.See, ofCluster, nil, needs},
	{"usage.Prices", authz.UsagePrices, authz.See, ofCluster, nil, needs},
	{"usage.SetPrice", authz.UsagePrices, authz.Administer, ofCluster, aPrice, needs},
	{"usage.RemovePrice", authz.UsagePrices, authz.Administer, ofCluster, thePrice, needs},

	{"tenancy.Roles", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.UpdatePassword", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.UpdateFullName", authz.Users, authz.Change, ofOwner, email, checks},
	{"tenancy.ListLogins", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.EndLogin", authz.Announcements, authz.See, forAll, word("all"), needs},
	{"tenancy.SignOut", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.SSHKeypair", authz.Keypairs, authz.See, ofItself, nil, needs},
	{"tenancy.GenerateSSHKeypair", authz.Keypairs, authz.Change, ofItself, nil, needs},
	{"tenancy.SetSSHKeypair", authz.Keypairs, authz.Change, ofItself, nil, needs},
	{"tenancy.GetDomain", authz.Domains, authz.See, ofDomain, word("d"), checks},
	{"tenancy.CreateDomain", authz.Domains, authz.Administer, ofDomain, word("new"), needs},
	{"tenancy.ModifyDomain", authz.Domains, authz.Administer, ofDomain, word("d"), needs},
	{"tenancy.DeleteDomain", authz.Domains, authz.Administer, ofDomain, word("d"), needs},
	{"tenancy.ListDomains", authz.Domains, authz.See, ofDomain, nil, lists},
	{"tenancy.PageDomains", authz.Domains, authz.See, ofDomain, nil, lists},
	{"tenancy.ListDotfiles", authz.Keypairs, authz.Act, ofOwner, dotfiles, needs},
	{"tenancy.ListDotfiles", authz.Domains, authz.Change, ofDomain, domainDotfiles, needs},
	{"tenancy.ListDotfiles", authz.Projects, authz.Change, ofProject, projectDotfiles, checks},
	{"tenancy.GetDotfile", authz.Keypairs, authz.Act, ofOwner, dotfiles, needs},
	{"tenancy.CreateDotfile", authz.Keypairs, authz.Act, ofOwner, dotfiles, needs},
	{"tenancy.UpdateDotfile", authz.Keypairs, authz.Act, ofOwner, dotfiles, needs},
	{"tenancy.DeleteDotfile", authz.Keypairs, authz.Act, ofOwner, dotfiles, needs},
	{"tenancy.BootstrapScript", authz.Keypairs, authz.See, ofItself, nil, needs},
	{"tenancy.SetBootstrapScript", authz.Keypairs, authz.Change, ofItself, nil, needs},
	{"tenancy.GetKeypair", authz.Keypairs, authz.See, ofOwner, key, checks},
	{"tenancy.ListKeypairs", authz.Keypairs, authz.See, ofOwner, nil, lists},
	{"tenancy.CreateKeypair", authz.Keypairs, authz.Administer, ofRole, spare, needs},
	{"tenancy.ModifyKeypair", authz.Keypairs, authz.Administer, ofOwner, anotherKey, checks},
	{"tenancy.DeleteKeypair", authz.Keypairs, authz.Change, ofOwner, anotherKey, checks},
	{"tenancy.RotateKeypair", authz.Keypairs, authz.Change, ofOwner, anotherKey, checks},
	{"tenancy.GetKeypairPolicy", authz.Policies, authz.See, ofCluster, word("unused"), checks},
	{"tenancy.ListKeypairPolicies", authz.Policies, authz.See, ofCluster, nil, lists},
	{"tenancy.PageKeypairPolicies", authz.Policies, authz.See, ofCluster, nil, lists},
	{"tenancy.PageUserPolicies", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.PageProjectPolicies", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.Owner", authz.Keypairs, authz.Act, ofOwner, key, needs},
	{"tenancy.UserPolicies", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.ProjectPolicies", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.CreateKeypairPolicy", authz.Policies, authz.Administer, ofCluster, word("fresh"), needs},
	{"tenancy.ModifyKeypairPolicy", authz.Policies, authz.Administer, ofCluster, word("unused"), needs},
	{"tenancy.DeleteKeypairPolicy", authz.Policies, authz.Administer, ofCluster, word("fresh"), needs},
	{"tenancy.CreateUserPolicy", authz.Policies, authz.Administer, ofCluster, word("fresh"), needs},
	{"tenancy.ModifyUserPolicy", authz.Policies, authz.Administer, ofCluster, word("fresh"), needs},
	{"tenancy.DeleteUserPolicy", authz.Policies, authz.Administer, ofCluster, word("fresh"), needs},
	{"tenancy.CreateProjectPolicy", authz.Policies, authz.Administer, ofCluster, word("fresh"), needs},
	{"tenancy.ModifyProjectPolicy", authz.Policies, authz.Administer, ofCluster, word("fresh"), needs},
	{"tenancy.DeleteProjectPolicy", authz.Policies, authz.Administer, ofCluster, word("fresh"), needs},
	{"tenancy.GetProject", authz.Projects, authz.See, ofProject, theProject, checks},
	{"tenancy.VisibleProject", authz.Projects, authz.See, ofProject, theProject, checks},
	{"tenancy.ListProjects", authz.Projects, authz.See, ofProject, nil, lists},
	{"tenancy.PageProjects", authz.Projects, authz.See, ofProject, nil, lists},
	{"tenancy.Members", authz.Projects, authz.SeeMembers, ofProject, theProject, checks},
	{"tenancy.CreateProject", authz.Projects, authz.Create, ofDomain, newProject, needs},
	{"tenancy.ModifyProject", authz.Projects, authz.Change, ofProject, theProject, checks},
	{"tenancy.ModifyProject", authz.Projects, authz.Admit, ofProject, members(tenancy.AddMembers), checks},
	{"tenancy.ModifyProject", authz.Projects, authz.Admit, ofProject, members(tenancy.RemoveMembers), checks},
	{"tenancy.ModifyProject", authz.Projects, authz.Change, ofProject, members(tenancy.AppointAdmins), checks},
	{"tenancy.ModifyProject", authz.Projects, authz.Change, ofProject, members(tenancy.DismissAdmins), checks},
	{"tenancy.DeleteProject", authz.Projects, authz.Change, ofProject, theProject, checks},
	{"tenancy.GetUser", authz.Users, authz.See, ofOwner, email, checks},
	{"tenancy.ListUsers", authz.Users, authz.See, ofOwner, nil, lists},
	{"tenancy.CreateUser", authz.Users, authz.Administer, ofRole, newUser, needs},
	{"tenancy.ModifyUser", authz.Users, authz.Administer, ofRole, spare, checks},
	{"tenancy.DeleteUser", authz.Users, authz.Administer, ofRole, spare, checks},
	{"tenancy.ActAs", authz.Users, authz.Act, ofOwner, userID, needs},
	{"tenancy.CreateServiceAccount", authz.Users, authz.Administer, ofDomain, newServiceAccount, needs},
	{"letter.Invite", authz.Users, authz.Administer, ofDomain, invitation, needs},
	{"otp.Status", authz.Announcements, authz.See, forAll, nil, needs},
	{"otp.Enrol", authz.Announcements, authz.See, forAll, nil, needs},
	{"otp.Confirm", authz.Announcements, authz.See, forAll, nil, needs},
	{"otp.RenewRecoveryCodes", authz.Announcements, authz.See, forAll, nil, needs},
	{"identity.List", authz.Users, authz.Administer, ofRole, spare, checks},
	{"identity.Unlink", authz.Users, authz.Administer, ofRole, linked, checks},
	{"passkey.List", authz.Users, authz.Administer, ofRole, spare, checks},
	{"passkey.Rename", authz.Users, authz.Administer, ofRole, spareKey("n"), checks},
	{"passkey.Delete", authz.Users, authz.Administer, ofRole, spareKey(), checks},
	{"notice.Preferences", authz.Users, authz.See, ofItself, nil, needs},
	{"notice.Deliveries", authz.Users, authz.See, ofItself, nil, needs},
	{"notice.SetPreferences", authz.Users, authz.Change, ofItself, someWishes, needs},
	{"notice.SendTest", authz.Users, authz.Change, ofItself, func(*world, set) []any { return []any{"webhook"} }, needs},
	{"otp.Remove", authz.Users, authz.Administer, ofRole, spare, checks},
	{"directory.Status", authz.Cluster, authz.See, ofCluster, nil, needs},
	{"directory.Find", authz.Cluster, authz.See, ofCluster, directorySync, needs},
	{"directory.Ask", authz.Cluster, authz.Administer, ofCluster, nil, needs},
	{"provision.AllowRemovals", authz.Cluster, authz.Administer, ofCluster, nil, needs},
	{"token.Create", authz.Tokens, authz.Create, ofItself, newToken, needs},
	{"token.Create", authz.Tokens, authz.Create, ofService, newServiceToken, needs},
	{"token.List", authz.Tokens, authz.See, ofOwner, nil, lists},
	{"token.Delete", authz.Tokens, authz.Change, ofOwner, theToken, checks},
	{"tenancy.ActorOfUser", authz.Users, authz.See, ofOwner, email, checks},
	{"tenancy.MainActor", authz.Users, authz.See, ofOwner, email, checks},
	{"tenancy.Explain", authz.Users, authz.See, ofOwner, aboutUser, checks},

	{"purge.Preview", authz.Users, authz.Purge, ofRole, spareOf(purge.User), checks},
	{"purge.Preview", authz.Projects, authz.Purge, ofProject, projectToPurge, checks},
	{"purge.Preview", authz.Domains, authz.Purge, ofDomain, domainToPurge, needs},
	{"purge.PreviewInactive", authz.Users, authz.Administer, ofRole, spareOf(purge.User), checks},
	{"purge.PreviewInactive", authz.Projects, authz.Change, ofProject, projectToPurge, checks},
	{"purge.PreviewInactive", authz.Domains, authz.Administer, ofDomain, domainToPurge, needs},
	{"purge.Begin", authz.Projects, authz.Purge, ofProject, projectToPurge, checks},
	{"purge.List", authz.Projects, authz.SeeMembers, ofOwnDomain, nil, needs},
	{"apply.Export", authz.Users, authz.See, ofOwnUsers, exported, needs},
	{"apply.Plan", authz.Users, authz.Administer, ofOwnUsers, emptyFile, needs},
	{"apply.Apply", authz.Users, authz.Administer, ofOwnUsers, nil, needs},

	{"resource.AllowedGroups", authz.Projects, authz.See, ofProject, theProject, checks},
	{"resource.ListGroups", authz.ResourceGroups, authz.See, ofGroup, nil, lists},
	{"resource.Usable", authz.Announcements, authz.See, forAll, theProject, needs},
	{"resource.GetGroup", authz.ResourceGroups, authz.See, ofGroup, word("g"), checks},
	{"resource.CreateGroup", authz.ResourceGroups, authz.Administer, ofGroup, word(""), needs},
	{"resource.ModifyGroup", authz.ResourceGroups, authz.Administer, ofGroup, word("g"), needs},
	{"resource.DeleteGroup", authz.ResourceGroups, authz.Administer, ofGroup, word("g"), needs},
	{"resource.AssociateGroup", authz.ResourceGroups, authz.Administer, ofGroup, word("g"), needs},
	{"resource.DisassociateGroup", authz.ResourceGroups, authz.Administer, ofGroup, word("g"), needs},
	{"resource.SchedulingPolicies", authz.Announcements, authz.See, forAll, nil, needs},
	{"resource.Presets", authz.Presets, authz.See, forAll, nil, needs},
	{"resource.CreatePreset", authz.Presets, authz.Administer, forAll, nil, needs},
	{"resource.ModifyPreset", authz.Presets, authz.Administer, forAll, word("small"), needs},
	{"resource.DeletePreset", authz.Presets, authz.Administer, forAll, word("small"), needs},
	{"resource.QuotaTree", authz.Projects, authz.SeeMembers, ofProject, word("d/p"), checks},
	{"resource.SetQuota", authz.Domains, authz.Administer, ofDomain, aQuota("d"), needs},
	{"resource.SetQuota", authz.Projects, authz.Change, ofProject, aQuota("d/p"), checks},
	{"resource.SetQuota", authz.Projects, authz.Divide, ofProject, aQuota("d/p/user:owner@x"), checks},
	{"resource.UnsetQuota", authz.Projects, authz.Change, ofProject, word("d/p"), checks},
	{"resource.PlaceProject", authz.Projects, authz.Change, ofProject, theProject, checks},
	{"resource.ProjectResourcesHidden", authz.Cluster, authz.See, ofCluster, nil, needs},
	{"resource.SetProjectResourcesHidden", authz.Cluster, authz.Administer, ofCluster, nil, needs},
	{"resource.SlotAliases", authz.Cluster, authz.See, ofCluster, nil, needs},
	{"resource.SetSlotAliases", authz.Cluster, authz.Administer, ofCluster, nil, needs},
	{"resource.Limits", authz.Users, authz.See, ofOwner, inProject, checks},
	{"resource.CheckPresets", authz.Projects, authz.See, ofProject, theProject, checks},
	{"resource.RecalculateUsage", authz.Cluster, authz.Administer, ofCluster, nil, needs},

	{"image.AutoPull", authz.Cluster, authz.See, ofCluster, nil, needs},
	{"image.SetAutoPull", authz.Cluster, authz.Administer, ofCluster, word("digest"), needs},
	{"image.Resolve", authz.Images, authz.See, ofRegistry, word("python"), checks},
	{"image.Get", authz.Images, authz.See, ofRegistry, theImage, checks},
	{"image.Alias", authz.Images, authz.Administer, ofRegistry, func(w *world, _ set) []any { return []any{"other", w.image} }, needs},
	{"image.Dealias", authz.Images, authz.Administer, ofRegistry, word("alias"), needs},
	{"image.Forget", authz.Images, authz.Change, ofRegistry, theImage, checks},
	{"image.List", authz.Images, authz.See, ofRegistry, nil, lists},
	{"image.Import", authz.Images, authz.Administer, ofRegistry, nil, needs},
	{"image.Unknown", authz.Images, authz.Administer, ofRegistry, nil, needs},
	{"image.Customized", authz.Images, authz.Use, ofNobodyElse, nil, lists},
	{"image.Resolve", authz.Images, authz.See, ofImage, theOwnersReference, checks},
	{"image.Get", authz.Images, authz.See, ofImage, theOwnersImage, checks},
	{"image.Get", authz.Images, authz.See, ofImage, theOwnersReference, checks},
	{"image.Forget", authz.Images, authz.Change, ofImage, theOwnersImage, checks},
	{"image.List", authz.Images, authz.See, ofImage, nil, lists},
	{"image.Named", authz.Images, authz.See, ofImage, func(w *world, s set) []any {
		return []any{[]string{theOwnersReference(w, s)[0].(string)}}
	}, lists},
	{"image.Get", authz.Images, authz.See, ofProjectImage, theProjectsImage, checks},
	{"image.Forget", authz.Images, authz.Change, ofProjectImage, theProjectsImage, checks},
	{"image.List", authz.Images, authz.See, ofProjectImage, nil, lists},

	{"node.List", authz.Agents, authz.See, ofCluster, nil, needs},
	{"node.Summaries", authz.AgentSummaries, authz.See, ofGroup, nil, lists},
	{"node.Get", authz.Agents, authz.See, ofCluster, word("a1"), needs},
	{"node.Work", authz.Agents, authz.See, ofCluster, word("a1"), needs},
	{"node.Modify", authz.Agents, authz.Administer, ofCluster, word("a1"), needs},
	{
		"node.SetSchedulable",
		authz.Agents,
		authz.Administer,
		ofCluster,
		func(*world, set) []any { return []any{[]cluster.AgentID{"a1"}} },
		needs,
	},

	{"folder.Rename", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.UpdateOptions", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.UpdateOptions", authz.Folders, authz.Change, ofProject, projectFolder, checks},
	{"folder.Trash", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.Restore", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.DeleteForever", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.Purge", authz.Folders, authz.Purge, ofFolder, theFolder, offices},
	{"folder.ChangeOwnership", authz.Folders, authz.Administer, ofFolder, theFolder, needs},
	{"folder.Clone", authz.Folders, authz.ReadFiles, ofFolder, theFolder, checks},
	{
		"folder.Create",
		authz.Folders,
		authz.Create,
		ofCluster,
		func(*world, set) []any { return []any{folder.CreateInput{Name: "new", Host: "p:v"}} },
		needs,
	},
	{"folder.Create", authz.Projects, authz.Change, ofProject, func(w *world, _ set) []any {
		return []any{folder.CreateInput{Name: "new", Host: "p:v", Project: w.project}}
	}, checks},
	{"folder.Mkdir", authz.Folders, authz.WriteFiles, ofFolder, theFolder, checks},
	{"folder.RenameFile", authz.Folders, authz.WriteFiles, ofFolder, theFolder, checks},
	{"folder.MoveFile", authz.Folders, authz.WriteFiles, ofFolder, theFolder, checks},
	{"folder.ListFiles", authz.Folders, authz.ReadFiles, ofFolder, theFolder, checks},
	{"folder.ListFiles", authz.Folders, authz.ReadFiles, ofProject, projectFolder, checks},
	{"folder.DeleteFiles", authz.Folders, authz.DeleteFiles, ofFolder, theFolder, checks},
	{"folder.DeleteFiles", authz.Folders, authz.DeleteFiles, ofProject, projectFolder, checks},
	{"folder.DeleteFilesAsync", authz.Folders, authz.DeleteFiles, ofFolder, theFolder, checks},
	{"folder.RequestUpload", authz.Folders, authz.WriteFiles, ofFolder, theFolder, checks},
	{"folder.RequestDownload", authz.Folders, authz.ReadFiles, ofFolder, theFolder, checks},
	{"folder.RequestArchive", authz.Folders, authz.ReadFiles, ofFolder, theFolder, checks},
	{"folder.Get", authz.Folders, authz.See, ofFolder, theFolder, checks},
	{"folder.Get", authz.Folders, authz.See, ofProject, projectFolder, checks},
	{"folder.Usage", authz.Folders, authz.Administer, ofFolder, hostFolder, needs},
	{"folder.UsedBytes", authz.Folders, authz.Administer, ofFolder, hostFolder, needs},
	{
		"folder.Load",
		authz.Folders,
		authz.See,
		ofFolder,
		func(_ *world, s set) []any { return []any{[]cluster.FolderID{cluster.FolderID(s.folder)}} },
		lists,
	},
	{"folder.Find", authz.Folders, authz.See, ofFolder, theFolder, checks},
	{"folder.SetDefaultHost", authz.FolderHosts, authz.Administer, ofCluster, nil, needs},
	{"folder.Hosts", authz.Projects, authz.See, ofProject, theProject, checks},
	{"folder.AllHosts", authz.FolderHosts, authz.Administer, ofCluster, nil, needs},
	{"folder.AllowedTypes", authz.Announcements, authz.See, forAll, nil, needs},
	{"folder.PermissionsOfHosts", authz.Announcements, authz.See, forAll, nil, needs},
	{"folder.Volumes", authz.FolderHosts, authz.See, ofCluster, nil, needs},
	{"folder.Volume", authz.FolderHosts, authz.See, ofCluster, word("x"), needs},
	{"folder.PerfMetric", authz.FolderHosts, authz.Administer, ofCluster, word("x"), needs},
	{"folder.List", authz.Folders, authz.See, ofFolder, func(*world, set) []any { return []any{folder.ListQuery{All: true}} }, lists},
	{"folder.List", authz.Folders, authz.Reach, ofFolder, nil, lists},
	{"folder.List", authz.Folders, authz.Reach, ofProject, nil, lists},
	{"folder.Search", authz.Folders, authz.See, ofFolder, func(_ *world, s set) []any {
		return []any{folder.SearchQuery{Query: list.Query{Filter: `id == "` + s.folder + `"`}}}
	}, lists},
	{"folder.QuotaScope", authz.QuotaScopes, authz.See, ofOwner, scopes, checks},
	{"folder.SetQuotaScope", authz.QuotaScopes, authz.Administer, ofOwner, scopes, needs},
	{"folder.UnsetQuotaScope", authz.QuotaScopes, authz.Administer, ofOwner, scopes, needs},
	{"folder.GetQuota", authz.Folders, authz.See, ofFolder, hostFolder, checks},
	{"folder.SetQuota", authz.QuotaScopes, authz.Administer, ofOwner, hostFolder, needs},
	{"folder.UnsetQuota", authz.QuotaScopes, authz.Administer, ofOwner, hostFolder, needs},
	{"folder.Invite", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.ListInvitations", authz.Announcements, authz.See, forAll, nil, needs},
	{"folder.ListSentInvitations", authz.Announcements, authz.See, forAll, nil, needs},
	{"folder.AcceptInvitation", authz.Announcements, authz.See, forAll, nil, needs},
	{"folder.DeleteInvitation", authz.Announcements, authz.See, forAll, nil, needs},
	{"folder.UpdateInvitation", authz.Announcements, authz.See, forAll, nil, needs},
	{"folder.Share", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.Unshare", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.Leave", authz.Folders, authz.See, ofProject, projectFolder, checks},
	{"folder.Shared", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.UpdateSharing", authz.Folders, authz.Change, ofFolder, theFolder, checks},
	{"folder.Import", authz.Folders, authz.WriteFiles, ofFolder, theFolder, checks},
	{"folder.Export", authz.Folders, authz.ReadFiles, ofFolder, theFolder, checks},
	{"folder.SearchVolumes", authz.FolderHosts, authz.See, ofCluster, nil, needs},

	{"template.Create", authz.Keypairs, authz.Act, ofOwner, func(w *world, s set) []any {
		return []any{template.Session, template.Whose{Owner: cluster.AccessKey(s.key), Project: w.project}, sessionTemplate}
	}, needs},
	{"template.List", authz.Templates, authz.See, ofTemplate, func(*world, set) []any { return []any{template.Session, true} }, lists},
	{"template.Get", authz.Templates, authz.See, ofTemplate, theTemplate, checks},
	{"template.Replace", authz.Templates, authz.Change, ofTemplate, func(_ *world, s set) []any {
		return []any{template.Session, s.template, sessionTemplate}
	}, checks},
	{"template.Delete", authz.Templates, authz.Change, ofTemplate, theTemplate, checks},
	{"template.Session", authz.Templates, authz.Use, ofTemplate, func(_ *world, s set) []any { return []any{s.template} }, checks},
	{"template.Cluster", authz.Templates, authz.Use, ofTemplate, func(_ *world, s set) []any { return []any{s.clusterTemplate} }, checks},

	{"session.Commit", authz.Sessions, authz.Change, ofSession, session, checks},
	{"session.CommitStatus", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.Create", authz.Keypairs, authz.Act, ofOwner, func(_ *world, s set) []any {
		return []any{request.Session{OwnerAccessKey: cluster.AccessKey(s.key)}}
	}, needs},
	{"session.Destroy", authz.Sessions, authz.Change, ofSession, session, checks},
	{"session.Events", authz.Announcements, authz.See, forAll, nil, needs},
	{"session.Explain", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.DryRun", authz.Keypairs, authz.Act, ofOwner, func(_ *world, s set) []any {
		return []any{request.Session{OwnerAccessKey: cluster.AccessKey(s.key)}}
	}, needs},
	{"session.EndAll", authz.Cluster, authz.Administer, ofCluster, nil, needs},
	{"session.SchedulerStatus", authz.Cluster, authz.See, ofCluster, nil, needs},
	{"session.Changeable", authz.Sessions, authz.Change, ofSession, session, checks},
	{"session.Find", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.Devices", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.Top", authz.Sessions, authz.See, ofSession, nil, lists},
	{"session.Match", authz.Announcements, authz.See, forAll, word("s"), needs},
	{"session.ByID", authz.Sessions, authz.See, ofSession, sessions, lists},
	{"session.History", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.StatusTimes", authz.Sessions, authz.See, ofSession, sessions, lists},
	{"session.DependentsOf", authz.Sessions, authz.See, ofSession, sessions, lists},
	{"session.KernelsOfAgents", authz.Sessions, authz.See, ofSession, func(*world, set) []any { return []any{[]cluster.AgentID{"a1"}} },
		lists},
	{"session.DependencyGraph", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.Dependents", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.List", authz.Sessions, authz.See, ofSession, nil, lists},
	{"session.ListKernels", authz.Sessions, authz.See, ofSession, nil, lists},
	{"session.Logs", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.RenewLease", authz.Sessions, authz.Change, ofSession, session, checks},
	{"session.Rename", authz.Sessions, authz.Change, ofSession, session, checks},
	{"session.Modify", authz.Sessions, authz.Change, ofSession, session, checks},
	{"session.Restart", authz.Sessions, authz.Change, ofSession, session, checks},
	{"session.Apps", authz.Sessions, authz.See, ofSession, session, checks},
	{"session.Runner", authz.Sessions, authz.Change, ofSession, session, checks},
	{"session.Wait", authz.Sessions, authz.See, ofSession, func(_ *world, s set) []any { return []any{s.session, nil, 1} }, checks},

	{"app.Circuits", authz.Sessions, authz.See, ofSession, session, checks},
	{"app.Enter", authz.Circuits, authz.Visit, ofSession, circuit, checks},
	{"app.Patch", authz.Circuits, authz.Change, ofSession, circuit, checks},
	{"app.Delete", authz.Circuits, authz.Change, ofSession, circuit, checks},
	{"app.Reach", authz.Sessions, authz.Change, ofSession, session, checks},
	{"app.Start", authz.Sessions, authz.Change, ofSession, session, checks},
	{"app.Ticket", authz.Sessions, authz.Change, ofSession, session, checks},
	{"app.ProxyVersion", authz.Announcements, authz.See, forAll, word("g"), needs},
	{"app.Apps", authz.Sessions, authz.See, ofSession, session, checks},
	{"app.Stop", authz.Sessions, authz.Change, ofSession, session, checks},

	{"idle.Checkers", authz.IdleCheckers, authz.See, ofCluster, nil, needs},
	{"idle.SetChecker", authz.IdleCheckers, authz.Administer, ofCluster, nil, needs},
	{"idle.RemoveChecker", authz.IdleCheckers, authz.Administer, ofCluster, word("x"), needs},
	{"idle.Report", authz.Announcements, authz.See, forAll, nil, needs},
	{"idle.Checks", authz.Announcements, authz.See, forAll, sessions, needs},
	{"idle.KeepAlive", authz.Sessions, authz.Change, ofSession, session, checks},

	{"operation.Doctor", authz.Cluster, authz.See, ofCluster, nil, needs},
	{"operation.SetAnnouncement", authz.Announcements, authz.Administer, ofCluster, nil, needs},
	{"operation.ManagerStatus", authz.Announcements, authz.See, forAll, nil, needs},
	{"operation.SetManagerStatus", authz.Cluster, authz.Administer, ofCluster, word("x"), needs},
	{"operation.ReportError", authz.Announcements, authz.See, forAll, func(*world, set) []any {
		return []any{operation.ErrorReport{Severity: "error", Source: "x", Message: "y"}}
	}, needs},
	{"operation.ErrorLogs", authz.ErrorLogs, authz.See, ofOwner, func(*world, set) []any { return []any{1, 100, false} }, lists},
	{"operation.ClearError", authz.ErrorLogs, authz.Change, ofOwner, func(_ *world, s set) []any { return []any{s.errorLog} }, checks},
	{"operation.Task", authz.Tasks, authz.See, ofOwner, task, checks},
	{"operation.TaskEvents", authz.Tasks, authz.See, ofOwner, task, checks},
	{"operation.StartTask", authz.Announcements, authz.See, forAll, func(*world, set) []any {
		return []any{"x", "x", nil, func(context.Context, func(string)) (string, error) { return "", nil }}
	}, needs},
}
