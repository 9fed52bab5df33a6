package authztest

import (
	"context"
	"iter"
	"maps"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

func mapsKeys(m map[string]string) iter.Seq[string] { return maps.Keys(m) }

// actorless are the methods that take no actor, and why.
var actorless = map[string]string{
	"tenancy.ResetAdminPassword": "for the machine's own administrator, who has the state directory",
	"tenancy.Authenticate":       "makes the actor of an access key", "tenancy.Authorize": "makes the actor of a password",
	"tenancy.PolicyOfKey": "for other nouns, after they decided", "tenancy.FindProject": "for other nouns, which decide",
	"tenancy.UserByEmail": "for other nouns, which decide",
	"resource.Slots":      "for everybody", "folder.NewLoop": "for the leader", "folder.Loops": "for the leader",
	"folder.Hold":          "for sessions, after they decided",
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
	"idle.Loops": "for the leader", "operation.Findings": "for the machine's own administrator, who has the state directory",
	"operation.Announcement": "for everybody", "operation.Frozen": "is asked before the actor is known",
}

var unseen = maps.Clone(actorless)

// What methods are called with.
func session(_ *world, s set) []any       { return []any{s.session} }
func sessions(_ *world, s set) []any      { return []any{[]cluster.SessionID{cluster.SessionID(s.session)}} }
func circuit(_ *world, s set) []any       { return []any{s.circuit} }
func task(_ *world, s set) []any          { return []any{s.task} }
func theFolder(_ *world, s set) []any     { return []any{s.folder} }
func projectFolder(w *world, _ set) []any { return []any{w.projectFolder} }
func email(_ *world, s set) []any         { return []any{s.email} }
func newUser(_ *world, s set) []any {
	return []any{"new@x", tenancy.UserProps{Domain: new("d"), Role: &s.role}}
}

// spare is a user of the same role as the owner, whom nothing else needs.
func spare(_ *world, s set) []any          { return []any{"spare " + string(s.role) + "@x"} }
func key(_ *world, s set) []any            { return []any{s.key} }
func theProject(w *world, _ set) []any     { return []any{w.project} }
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

// matrix has one line or more for each method that takes an actor.
var matrix = []line{
	{"audit.List", authz.AuditEntries, authz.See, ofOwner, nil, lists},

	{"tenancy.Roles", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.UpdatePassword", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.UpdateFullName", authz.Users, authz.Change, ofOwner, email, checks},
	{"tenancy.SSHKeypair", authz.Keypairs, authz.See, ofItself, nil, needs},
	{"tenancy.GenerateSSHKeypair", authz.Keypairs, authz.Change, ofItself, nil, needs},
	{"tenancy.SetSSHKeypair", authz.Keypairs, authz.Change, ofItself, nil, needs},
	{"tenancy.GetDomain", authz.Domains, authz.See, ofDomain, word("d"), checks},
	{"tenancy.AllowRegistries", authz.Domains, authz.Administer, ofDomain, word("d"), needs},
	{"tenancy.ListDomains", authz.Domains, authz.See, ofDomain, nil, lists},
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
	{"tenancy.GetKeypairPolicy", authz.Policies, authz.See, ofCluster, word("unused"), checks},
	{"tenancy.ListKeypairPolicies", authz.Policies, authz.See, ofCluster, nil, lists},
	{"tenancy.Owner", authz.Keypairs, authz.Act, ofOwner, key, needs},
	{"tenancy.UserPolicies", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.ProjectPolicies", authz.Announcements, authz.See, forAll, nil, needs},
	{"tenancy.ModifyKeypairPolicy", authz.Policies, authz.Administer, ofCluster, word("unused"), needs},
	{"tenancy.GetProject", authz.Projects, authz.See, ofProject, theProject, checks},
	{"tenancy.VisibleProject", authz.Projects, authz.See, ofProject, theProject, checks},
	{"tenancy.ListProjects", authz.Projects, authz.See, ofProject, nil, lists},
	{"tenancy.GetUser", authz.Users, authz.See, ofOwner, email, checks},
	{"tenancy.ListUsers", authz.Users, authz.See, ofOwner, nil, lists},
	{"tenancy.CreateUser", authz.Users, authz.Administer, ofRole, newUser, needs},
	{"tenancy.ModifyUser", authz.Users, authz.Administer, ofRole, spare, checks},
	{"tenancy.DeleteUser", authz.Users, authz.Administer, ofRole, spare, checks},
	{"tenancy.ActorOfUser", authz.Users, authz.See, ofOwner, email, checks},

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
	{"resource.SetProjectResourcesHidden", authz.Cluster, authz.Administer, ofCluster, nil, needs},
	{"resource.CheckPresets", authz.Projects, authz.See, ofProject, theProject, checks},
	{"resource.RecalculateUsage", authz.Cluster, authz.Administer, ofCluster, nil, needs},

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
	{"image.Get", authz.Images, authz.See, ofProjectImage, theProjectsImage, checks},
	{"image.Forget", authz.Images, authz.Change, ofProjectImage, theProjectsImage, checks},
	{"image.List", authz.Images, authz.See, ofProjectImage, nil, lists},

	{"node.List", authz.Agents, authz.See, ofCluster, nil, needs},
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

	{
		"folder.AllowInDomain",
		authz.Domains,
		authz.Administer,
		ofDomain,
		func(*world, set) []any { return []any{"d", folder.HostPermissions{"x y": nil}} },
		needs,
	},
	{"folder.AllowInProject", authz.Projects, authz.Change, ofProject, theProject, checks},
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

	{"session.Commit", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"session.CommitStatus", authz.Sessions, authz.See, ofOwner, session, checks},
	{"session.Create", authz.Keypairs, authz.Act, ofOwner, func(_ *world, s set) []any {
		return []any{request.Session{OwnerAccessKey: cluster.AccessKey(s.key)}}
	}, needs},
	{"session.Destroy", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"session.Events", authz.Announcements, authz.See, forAll, nil, needs},
	{"session.Explain", authz.Sessions, authz.See, ofOwner, session, checks},
	{"session.DryRun", authz.Keypairs, authz.Act, ofOwner, func(_ *world, s set) []any {
		return []any{request.Session{OwnerAccessKey: cluster.AccessKey(s.key)}}
	}, needs},
	{"session.SchedulerStatus", authz.Cluster, authz.See, ofCluster, nil, needs},
	{"session.Changeable", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"session.Find", authz.Sessions, authz.See, ofOwner, session, checks},
	{"session.Match", authz.Announcements, authz.See, forAll, word("s"), needs},
	{"session.ByID", authz.Sessions, authz.See, ofOwner, sessions, lists},
	{"session.History", authz.Sessions, authz.See, ofOwner, session, checks},
	{"session.DependencyGraph", authz.Sessions, authz.See, ofOwner, session, checks},
	{"session.Dependents", authz.Sessions, authz.See, ofOwner, session, checks},
	{"session.List", authz.Sessions, authz.See, ofOwner, nil, lists},
	{"session.ListKernels", authz.Sessions, authz.See, ofOwner, nil, lists},
	{"session.Logs", authz.Sessions, authz.See, ofOwner, session, checks},
	{"session.RenewLease", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"session.Rename", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"session.Modify", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"session.Restart", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"session.Apps", authz.Sessions, authz.See, ofOwner, session, checks},
	{"session.Runner", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"session.Wait", authz.Sessions, authz.See, ofOwner, func(_ *world, s set) []any { return []any{s.session, nil, 1} }, checks},

	{"app.Circuits", authz.Sessions, authz.See, ofOwner, session, checks},
	{"app.Enter", authz.Circuits, authz.Visit, ofOwner, circuit, checks},
	{"app.Patch", authz.Circuits, authz.Change, ofOwner, circuit, checks},
	{"app.Delete", authz.Circuits, authz.Change, ofOwner, circuit, checks},
	{"app.Reach", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"app.Start", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"app.Ticket", authz.Sessions, authz.Change, ofOwner, session, checks},
	{"app.ProxyVersion", authz.Announcements, authz.See, forAll, word("g"), needs},
	{"app.Apps", authz.Sessions, authz.See, ofOwner, session, checks},
	{"app.Stop", authz.Sessions, authz.Change, ofOwner, session, checks},

	{"idle.Checkers", authz.IdleCheckers, authz.See, ofCluster, nil, needs},
	{"idle.SetChecker", authz.IdleCheckers, authz.Administer, ofCluster, nil, needs},
	{"idle.RemoveChecker", authz.IdleCheckers, authz.Administer, ofCluster, word("x"), needs},
	{"idle.Report", authz.Announcements, authz.See, forAll, nil, needs},
	{"idle.Checks", authz.Announcements, authz.See, forAll, sessions, needs},
	{"idle.KeepAlive", authz.Sessions, authz.Change, ofOwner, session, checks},

	{"operation.Doctor", authz.Cluster, authz.See, ofCluster, nil, needs},
	{"operation.SetAnnouncement", authz.Announcements, authz.Administer, ofCluster, nil, needs},
	{"operation.ManagerStatus", authz.Announcements, authz.See, forAll, nil, needs},
	{"operation.SetManagerStatus", authz.Cluster, authz.Administer, ofCluster, word("x"), needs},
	{"operation.Task", authz.Tasks, authz.See, ofOwner, task, checks},
	{"operation.TaskEvents", authz.Tasks, authz.See, ofOwner, task, checks},
	{"operation.StartTask", authz.Announcements, authz.See, forAll, func(*world, set) []any {
		return []any{"x", "x", nil, func(context.Context, func(string)) (string, error) { return "", nil }}
	}, needs},
}
