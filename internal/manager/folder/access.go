package folder

import (
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// holding is what decides about an actor's rights on a folder.
type holding struct {
	user       cluster.UserID // of user folders
	ownerRole  authz.Role     // of user folders
	project    cluster.ProjectID
	modelStore bool // of project folders
	domain     string
	creator    cluster.UserID
	permission cluster.MountPermission
	granted    cluster.MountPermission // to the actor; "" is nothing
}

// access is what an actor may do with a folder.
type access struct {
	visible bool
	// reach reports whether the folder is the actor's own, shared with the actor or of a project of the actor; what
	// administrators merely manage is not, and is not mounted.
	reach   bool
	owner   bool // may change the folder itself
	granted bool
	files   cluster.MountPermission // "" is nothing
}

// accessOf decides. Owners may write and delete files unless the folder is read-only; members of a project have the
// folder's permission unless they were given another one; administrators manage what their domain has, but not what
// belongs to superadmins; monitors see that folders exist.
func accessOf(a authz.Actor, h holding) access {
	if !a.Known() {
		return access{}
	}
	manages := a.DomainAdmin(h.domain) && (h.ownerRole != authz.RoleSuperadmin || a.Superadmin())
	own := cluster.ReadWriteDelete
	if h.permission == cluster.ReadOnly {
		own = cluster.ReadOnly
	}
	var out access
	switch {
	case h.user != "" && h.user == a.UserID:
		out = access{visible: true, reach: true, owner: true, files: own}
	case h.project != "" && a.Member(h.project):
		out = access{visible: true, reach: true, files: h.permission}
		if h.granted != "" {
			out.files = h.granted
		}
		if h.modelStore && h.creator == a.UserID {
			out.owner, out.files = true, cluster.ReadWriteDelete
		}
	case h.user != "" && h.granted != "":
		out = access{visible: true, reach: true, granted: true, files: h.granted}
	}
	if manages && !out.owner {
		out.visible, out.owner = true, true
		if out.files != cluster.ReadWriteDelete && !out.granted {
			out.files = own
			if h.project != "" {
				out.files = cluster.ReadWriteDelete
			}
		}
	}
	if a.Monitor() {
		out.visible = true
	}
	return out
}

// rights are the access in the wire's words.
func (x access) rights() []string {
	out := []string{}
	add := func(is bool, names ...string) {
		if is {
			out = append(out, names...)
		}
	}
	add(x.visible, "read_attribute")
	add(x.owner, "update_attribute", "delete_vfolder", "assign_permission_to_others", "clone")
	add(x.files != "", "read_content", "mount_ro")
	add(x.files.CanWrite(), "write_content", "mount_rw")
	add(x.files == cluster.ReadWriteDelete, "delete_content", "mount_wd")
	return out
}

func holdingOf(r dbgen.FolderViewsRow) holding {
	return holding{user: cluster.UserID(text(r.Folder.UserID)), ownerRole: authz.Role(r.OwnerRole), project: cluster.ProjectID(text(r.Folder.ProjectID)),
		modelStore: r.ProjectType == "model-store", domain: r.Folder.DomainName, creator: cluster.UserID(text(r.Folder.CreatorID)),
		permission: cluster.MountPermission(r.Folder.Permission), granted: cluster.MountPermission(r.Granted)}
}

// view is a folder as the actor sees it; ok is false for strangers.
func view(a authz.Actor, r dbgen.FolderViewsRow) (f Folder, ok bool) {
	h := holdingOf(r)
	x := accessOf(a, h)
	if !x.visible {
		return Folder{}, false
	}
	scope, err := cluster.ParseQuotaScope(r.Folder.QuotaScope)
	if err != nil {
		return Folder{}, false // no writer writes such a row
	}
	f = Folder{
		ID: cluster.FolderID(r.Folder.ID), Name: r.Folder.Name, Host: r.Folder.Host, Scope: scope, Status: cluster.FolderStatus(r.Folder.Status),
		StatusInfo: r.Folder.StatusInfo, StatusChangedAt: r.Folder.StatusChanged.UTC(), Usage: UsageMode(r.Folder.UsageMode), Permission: h.permission,
		Ownership: OfUser, Domain: h.domain, UserID: h.user, UserEmail: r.UserEmail, ProjectID: h.project, ProjectName: r.ProjectName, CreatorID: h.creator,
		Creator: r.Creator, Cloneable: r.Folder.Cloneable, UnmanagedPath: text(r.Folder.UnmanagedPath), CreatedAt: r.Folder.CreatedAt.UTC(),
		LastUsed: utc(r.Folder.LastUsed), Files: r.Folder.NumFiles, Bytes: r.Folder.CurSize, Complete: r.Folder.SizeComplete, SizedAt: utc(r.Folder.SizedAt),
		IsOwner: x.owner, Granted: x.granted, Effective: x.files, Rights: x.rights(),
	}
	if f.Bytes == nil {
		f.SizedAt = nil // a count that failed is not one
	}
	if h.project != "" {
		f.Ownership = OfProject
	}
	return f, true
}

// ref finds the folder on its volume.
func (f Folder) ref() cluster.FolderRef { return cluster.FolderRef{Scope: f.Scope, Folder: f.ID} }

// need refuses what the actor may not do with a folder that the actor sees.
func (f Folder) needOwner(a authz.Actor, what string) error {
	if f.IsOwner {
		return nil
	}
	return fault.Deniedf("%s may not %s folder %s (%s)", a.Email, what, f.Name, f.Host).WithReason("generic-forbidden").
		WithNext("ask %s", f.ownerWords())
}

// needFiles refuses work on files that needs more than the actor's permission.
func (f Folder) needFiles(a authz.Actor, least cluster.MountPermission, what string) error {
	rank := map[cluster.MountPermission]int{cluster.ReadOnly: 1, cluster.ReadWrite: 2, cluster.ReadWriteDelete: 3}
	if rank[f.Effective] >= rank[least] {
		return nil
	}
	has := "no permission for its files"
	if f.Effective != "" {
		has = "permission " + string(f.Effective)
	}
	e := fault.Deniedf("%s may not %s in folder %s (%s): this needs permission %s, and %s has %s", a.Email, what, f.Name, f.Host, least, a.Email, has).
		WithReason("vfolder-permission-error")
	if f.IsOwner {
		return e.WithNext("change the folder's permission first: `berth folder update %s --permission rw`", f.Name)
	}
	return e.WithNext("ask %s", f.ownerWords())
}

func (f Folder) ownerWords() string {
	if f.Ownership == OfProject {
		return "an administrator of project " + f.ProjectName
	}
	return f.UserEmail
}

// needStatus refuses what the folder's status does not allow.
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
