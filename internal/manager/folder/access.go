package folder

import (
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// access is what an actor may do with one folder. It holds the answers of the rule authz.Folders, which alone decides.
type access struct {
	// visible: the actor may see that the folder exists.
	visible bool
	// reach: the folder is the actor's own, is shared with the actor, or belongs to a project of the actor. Only folders in reach are
	// found by name first and can be mounted. Administrators see more folders than they have in reach.
	reach bool
	// owner: the actor may change the folder itself, such as its name.
	owner bool
	// granted: the folder belongs to another user, who shared it with the actor.
	granted bool
	// files is what the actor may do with the files; "" is nothing.
	files cluster.MountPermission
}

// accessOf asks the rule of folders about every verb. o holds the facts of the folder, as objectOf returns them.
func accessOf(a authz.Actor, o authz.Object) access {
	out := access{
		visible: authz.Folders.May(a, authz.See, o), reach: authz.Folders.May(a, authz.Reach, o), owner: authz.Folders.May(a, authz.Change, o),
		granted: o.Given && o.Owner != "" && o.Owner != a.UserID && a.Known(),
	}
	switch {
	case authz.Folders.May(a, authz.DeleteFiles, o):
		out.files = cluster.ReadWriteDelete
	case authz.Folders.May(a, authz.WriteFiles, o):
		out.files = cluster.ReadWrite
	case authz.Folders.May(a, authz.ReadFiles, o):
		out.files = cluster.ReadOnly
	}
	return out
}

// rightVerbs translates between two vocabularies: the verbs of authz.Folders, and the names of rights on the wire. An actor who may do the
// verb has all rights in its line.
var rightVerbs = []struct {
	verb   authz.Verb
	rights []string
}{
	{authz.See, []string{"read_attribute"}},
	{authz.Change, []string{"update_attribute", "delete_vfolder", "assign_permission_to_others", "clone"}},
	{authz.ReadFiles, []string{"read_content", "mount_ro"}},
	{authz.WriteFiles, []string{"write_content", "mount_rw"}},
	{authz.DeleteFiles, []string{"delete_content", "mount_wd"}},
}

// rightsOf returns the actor's rights on a folder by their names on the wire.
func rightsOf(a authz.Actor, o authz.Object) []string {
	out := []string{}
	for _, r := range rightVerbs {
		if authz.Folders.May(a, r.verb, o) {
			out = append(out, r.rights...)
		}
	}
	if mountedReadOnly(a, o) {
		out = slices.DeleteFunc(out, func(right string) bool { return right == "mount_rw" || right == "mount_wd" })
	}
	return out
}

// mountedReadOnly reports whether sessions of the actor mount the folder read-only although the actor may change its files: it is the
// actor's own and read-only.
func mountedReadOnly(a authz.Actor, o authz.Object) bool {
	return o.Owner != "" && o.Owner == a.UserID && o.Permission == cluster.ReadOnly
}

// objectOf returns the facts of a folder on which the rule decides. The query has read them for one actor: Granted is the permission
// that this actor was given, "" for none.
func objectOf(r dbgen.FolderViewsRow) authz.Object {
	return authz.Object{Name: r.Folder.Name, Owner: cluster.UserID(text(r.Folder.UserID)), OwnerRole: authz.Role(r.OwnerRole),
		Domain:  r.Folder.DomainName,
		Project: cluster.ProjectID(text(r.Folder.ProjectID)), ProjectType: r.ProjectType, Creator: cluster.UserID(text(r.Folder.CreatorID)),
		Permission: cluster.MountPermission(r.Folder.Permission), Granted: cluster.MountPermission(r.Granted), Given: r.Granted != ""}
}

// view turns a row into the folder that the actor gets to see, with the actor's rights. ok is false when the actor may not see it.
func view(a authz.Actor, r dbgen.FolderViewsRow) (f Folder, ok bool) {
	o := objectOf(r)
	x := accessOf(a, o)
	if !x.visible {
		return Folder{}, false
	}
	scope, err := cluster.ParseQuotaScope(r.Folder.QuotaScope)
	if err != nil {
		return Folder{}, false // no writer writes such a row
	}
	f = Folder{
		ID: cluster.FolderID(r.Folder.ID), Name: r.Folder.Name, Host: r.Folder.Host, Scope: scope, Status: cluster.FolderStatus(r.Folder.Status),
		StatusInfo: r.Folder.StatusInfo, StatusChangedAt: r.Folder.StatusChanged.UTC(), Usage: UsageMode(r.Folder.UsageMode),
		Permission: o.Permission,
		Ownership:  OfUser, Domain: o.Domain, UserID: o.Owner, UserEmail: r.UserEmail, ProjectID: o.Project, ProjectName: r.ProjectName,
		CreatorID: o.Creator,
		Creator:   r.Creator, Cloneable: r.Folder.Cloneable, UnmanagedPath: text(r.Folder.UnmanagedPath), CreatedAt: r.Folder.CreatedAt.UTC(),
		LastUsed: utc(r.Folder.LastUsed), Files: r.Folder.NumFiles, Bytes: r.Folder.CurSize, Complete: r.Folder.SizeComplete,
		SizedAt: utc(r.Folder.SizedAt),
		IsOwner: x.owner, Purgeable: authz.Folders.May(a, authz.Purge, o), Granted: x.granted, Effective: x.files, Rights: rightsOf(a, o),
	}
	if f.Bytes == nil {
		f.SizedAt = nil // the last count failed: there is no size, so there is no time of it either
	}
	if o.Project != "" {
		f.Ownership = OfProject
	}
	return f, true
}

// ref names the folder on its volume: its scope and its id.
func (f Folder) ref() cluster.FolderRef { return cluster.FolderRef{Scope: f.Scope, Folder: f.ID} }

// needOwner returns an error unless the actor may change the folder itself. The actor sees the folder, so the error is Denied and not
// NotFound. what is a verb for its text.
func (f Folder) needOwner(a authz.Actor, what string) error {
	if f.IsOwner {
		return nil
	}
	return fault.Deniedf("%s may not %s folder %s (%s)", a.Email, what, f.Name, f.Host).
		WithNext("ask %s", f.ownerWords())
}

// needFiles returns an error unless the actor has at least the permission least for the folder's files. The order is ro, rw, wd.
func (f Folder) needFiles(a authz.Actor, least cluster.MountPermission, what string) error {
	rank := map[cluster.MountPermission]int{cluster.ReadOnly: 1, cluster.ReadWrite: 2, cluster.ReadWriteDelete: 3}
	if rank[f.Effective] >= rank[least] {
		return nil
	}
	has := "no permission for its files"
	if f.Effective != "" {
		has = "permission " + string(f.Effective)
	}
	e := fault.Deniedf("%s may not %s in folder %s (%s): this needs permission %s, and %s has %s", a.Email, what, f.Name, f.Host, least,
		a.Email, has).
		WithReason("vfolder-permission-error")
	if f.IsOwner {
		return e.WithNext("change the folder's permission first: `berth folder update %s --permission rw`", f.Name)
	}
	return e.WithNext("ask %s", f.ownerWords())
}

// ownerWords tells a refused actor whom to ask.
func (f Folder) ownerWords() string {
	if f.Ownership == OfProject {
		return "an administrator of project " + f.ProjectName
	}
	return f.UserEmail
}

// needStatus returns an error unless ok, which says whether the folder's status allows what is asked. what is a participle for its text.
func (f Folder) needStatus(ok bool, what string) error {
	if ok {
		return nil
	}
	return wrongStatus(f.Name, f.Host, f.Status, what)
}

func wrongStatus(name, host string, status cluster.FolderStatus, what string) error {
	e := fault.Conflictf("folder %s (%s) is %s and cannot be %s", name, host, status, what).WithReason("vfolder-filter-status-failed")
	switch status {
	case cluster.FolderDeletePending:
		return e.WithNext("it is in the trash bin: restore it first")
	case cluster.FolderPerforming, cluster.FolderCloning:
		return e.WithNext("wait until it is ready")
	case cluster.FolderError:
		return e.WithNext("delete it and make it again")
	}
	return e
}
