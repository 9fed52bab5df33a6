package httpapi

import (
	"encoding/json"
	"net/http"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/httpapi/params"
)

// folderHandler answers a route of folders with its parameters.
type folderHandler func(c *call, p *params.Set) error

// onFolders registers a route of folders.
func (a *API) onFolders(who access, h folderHandler, patterns ...string) {
	a.handle(who, func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		return h(c, p)
	}, patterns...)
}

// folderRoutes are those of folders themselves, of hosts and of quotas. {v} is a folder's name or id, with or without
// dashes. Spellings with _ and - stand beside each other because clients of different ages use either.
func (a *API) folderRoutes() {
	a.onFolders(unfrozen, a.createFolder, "POST /folders")
	a.onFolders(signedOnly, a.listFolders, "GET /folders")
	a.onFolders(unfrozen, a.trashFolder, "DELETE /folders", "DELETE /folders/{v}")
	a.onFolders(signedOnly, a.folderID, "GET /folders/_/id")
	a.onFolders(signedOnly, a.folderInfo, "GET /folders/{v}")
	a.onFolders(unfrozen, a.folderStep(a.folderPurge), "POST /folders/purge")
	a.onFolders(unfrozen, a.folderStep(a.folderRestore), "POST /folders/restore-from-trash-bin")
	a.onFolders(unfrozen, a.folderStep(a.folderDeleteForever), "POST /folders/delete-from-trash-bin")
	a.onFolders(unfrozen, a.forceDeleteFolder, "DELETE /folders/{v}/force")
	a.onFolders(unfrozen, a.renameFolder, "POST /folders/{v}/rename")
	a.onFolders(unfrozen, a.updateFolderOptions, "POST /folders/{v}/update-options")
	a.onFolders(unfrozen, a.cloneFolder, "POST /folders/{v}/clone")

	a.onFolders(signedOnly, a.folderHosts, "GET /folders/_/hosts")
	a.onFolders(signedOnly, a.allFolderHosts, "GET /folders/_/all_hosts", "GET /folders/_/all-hosts")
	a.onFolders(signedOnly, a.folderTypes, "GET /folders/_/allowed_types", "GET /folders/_/allowed-types")
	a.onFolders(signedOnly, a.hostPermissions, "GET /acl")
	a.onFolders(signedOnly, a.folderPerformance, "GET /folders/_/perf-metric")
	a.onFolders(signedOnly, a.folderQuota, "GET /folders/_/quota")
	a.onFolders(unfrozen, a.setFolderQuota, "POST /folders/_/quota")
	a.onFolders(signedOnly, a.folderUsage, "GET /folders/_/usage")
	a.onFolders(signedOnly, a.folderUsedBytes, "GET /folders/_/used-bytes")
	a.onFolders(signedOnly, a.folderMounts, "GET /folders/_/mounts")
	a.onFolders(signedOnly, a.mountElsewhere, "POST /folders/_/mounts", "DELETE /folders/_/mounts", "POST /folders/_/umounts",
		"DELETE /folders/_/umounts", "GET /folders/_/fstab")

	a.folderFileRoutes()
	a.folderShareRoutes()
}

// folderOf is what creating and cloning answer, the beginning of every other description.
func folderOf(f folder.Folder) api.FolderSummary {
	return api.FolderSummary{
		ID: f.ID.Hex(), Name: f.Name, QuotaScope: f.Scope.String(), Host: f.Host, UsageMode: string(f.Usage), Permission: string(f.Permission),
		Creator: orNil(f.Creator), Ownership: string(f.Ownership), User: orNil(f.UserID), Group: orNil(f.ProjectID),
		Cloneable: f.Cloneable, Status: string(f.Status), UnmanagedPath: orNil(f.UnmanagedPath),
	}
}

// folderItem is a folder in a list. Owners see the permission that was chosen for it, others the one that they have.
func folderItem(f folder.Folder) api.FolderItem {
	o := api.FolderItem{
		FolderSummary: folderOf(f), CreatedAt: isoTime(f.CreatedAt), IsOwner: f.IsOwner, UserEmail: orNil(f.UserEmail),
		GroupName: orNil(f.ProjectName), Type: string(f.Ownership), CurSize: f.Bytes, StatusInfo: f.StatusInfo,
	}
	if !f.IsOwner && f.Effective != "" {
		o.Permission = string(f.Effective)
	}
	return o
}

func permission(p *params.Set, names string, def cluster.MountPermission) cluster.MountPermission {
	perm := cluster.MountPermission(p.Text(names, string(def)))
	if perm != "" && !perm.Valid() {
		p.Fail(names, "must be ro, rw or wd")
	}
	return perm
}

func usageMode(p *params.Set, def folder.UsageMode) folder.UsageMode {
	mode := folder.UsageMode(p.Text("usage_mode|usageMode", string(def)))
	if mode != "" && !mode.Valid() {
		p.Fail("usage_mode|usageMode", "must be general, model or data")
	}
	return mode
}

func (a *API) createFolder(c *call, p *params.Set) error {
	in := folder.CreateInput{
		Name: p.Need("name"), Host: p.Text("host|folder_host|folderHost", ""), Usage: usageMode(p, folder.UsageGeneral),
		Permission: permission(p, "permission", ""),
		Project:    p.Text("group|groupId|group_id", ""), UnmanagedPath: p.Text("unmanaged_path|unmanagedPath", ""),
		Cloneable: p.Flag("cloneable", false),
	}
	if q := p.Text("quota", "0"); q != "0" {
		p.Fail("quota", "a folder has no limit of its own; its owner's limit on the host holds (quota scopes)")
	}
	if err := p.Err(); err != nil {
		return err
	}
	f, err := a.folders.Create(c.ctx(), c.actor, in)
	if err != nil {
		return err
	}
	return c.json(http.StatusCreated, folderOf(f))
}

func (a *API) listFolders(c *call, p *params.Set) error {
	q := folder.ListQuery{
		All: p.Flag("all", false), Project: p.Text("group_id|groupId", ""), OwnerEmail: p.Text("owner_user_email|ownerUserEmail", ""),
		WithoutTrash: HidesTrash(c.r),
	}
	if err := p.Err(); err != nil {
		return err
	}
	found, err := a.folders.List(c.ctx(), c.actor, q)
	if err != nil {
		return err
	}
	list := make([]api.FolderItem, len(found))
	for i, f := range found {
		list[i] = folderItem(f)
	}
	if len(list) >= folder.ListMost {
		c.w.Header()["X-Berth-Truncated"] = []string{"true"} // the reply's shape has no place for it
	}
	return c.ok(list)
}

// folderID tells the id of a folder that is named.
func (a *API) folderID(c *call, p *params.Set) error {
	name := p.Need("name|vfolder_name|vfolderName")
	if err := p.Err(); err != nil {
		return err
	}
	f, err := a.folders.Find(c.ctx(), c.actor, name)
	if err != nil {
		return err
	}
	return c.ok(api.FolderID{ID: string(f.ID), Name: f.Name})
}

func (a *API) folderInfo(c *call, _ *params.Set) error {
	f, err := a.folders.Get(c.ctx(), c.actor, c.r.PathValue("v"))
	if err != nil {
		return err
	}
	return c.ok(api.Folder{
		FolderItem: folderItem(f), NumFiles: f.Files, Files: f.Files, UsedBytes: f.Bytes, Created: isoTime(f.CreatedAt),
		LastUsed: isoTimeOrNil(f.LastUsed), Complete: &f.Complete, SizedAt: isoTimeOrNil(f.SizedAt), Permissions: f.Rights,
	})
}

// trashFolder puts the folder of the path, or else of the body, into the trash bin.
func (a *API) trashFolder(c *call, p *params.Set) error {
	ref := c.r.PathValue("v")
	if ref == "" {
		ref = p.Need("id|vfolder_id|vfolderId")
	}
	if err := p.Err(); err != nil {
		return err
	}
	if _, err := a.folders.Trash(c.ctx(), c.actor, ref); err != nil {
		return err
	}
	return c.nothing()
}

// folderStep makes a handler of a step that a folder named in the body takes.
func (a *API) folderStep(step func(c *call, ref string) error) folderHandler {
	return func(c *call, p *params.Set) error {
		ref := p.Need("id|vfolder_id|vfolderId")
		if err := p.Err(); err != nil {
			return err
		}
		if err := step(c, ref); err != nil {
			return err
		}
		return c.nothing()
	}
}

func (a *API) folderPurge(c *call, ref string) error {
	_, err := a.folders.Purge(c.ctx(), c.actor, ref)
	return err
}

func (a *API) folderRestore(c *call, ref string) error {
	_, err := a.folders.Restore(c.ctx(), c.actor, ref)
	return err
}

func (a *API) folderDeleteForever(c *call, ref string) error {
	_, err := a.folders.DeleteForever(c.ctx(), c.actor, ref)
	return err
}

// forceDeleteFolder deletes a folder without a stay in the trash bin; where it breaks off the folder lies there.
func (a *API) forceDeleteFolder(c *call, _ *params.Set) error {
	f, err := a.folders.Find(c.ctx(), c.actor, c.r.PathValue("v"))
	if err != nil {
		return err
	}
	if !f.Status.Deleting() {
		if _, err := a.folders.Trash(c.ctx(), c.actor, string(f.ID)); err != nil {
			return err
		}
	}
	if _, err := a.folders.DeleteForever(c.ctx(), c.actor, string(f.ID)); err != nil {
		return err
	}
	return c.nothing()
}

// created answers 201 without a body.
func (c *call) created() error {
	c.w.Header()["Content-Length"] = []string{"0"}
	c.w.WriteHeader(http.StatusCreated)
	return nil
}

func (a *API) renameFolder(c *call, p *params.Set) error {
	name := p.Need("new_name|newName")
	if err := p.Err(); err != nil {
		return err
	}
	if _, err := a.folders.Rename(c.ctx(), c.actor, c.r.PathValue("v"), name); err != nil {
		return err
	}
	return c.created()
}

func (a *API) updateFolderOptions(c *call, p *params.Set) error {
	var o folder.Options
	if p.Has("cloneable") {
		o.Cloneable = new(p.Flag("cloneable", false))
	}
	if perm := permission(p, "permission|perm", ""); perm != "" {
		o.Permission = &perm
	}
	if err := p.Err(); err != nil {
		return err
	}
	if _, err := a.folders.UpdateOptions(c.ctx(), c.actor, c.r.PathValue("v"), o); err != nil {
		return err
	}
	return c.created()
}

func (a *API) cloneFolder(c *call, p *params.Set) error {
	in := folder.CloneInput{
		Name: p.Need("target_name|targetName"), Host: p.Text("target_host|targetHost|folder_host", ""), Usage: usageMode(p, ""),
		Permission: permission(p, "permission|perm", ""), Cloneable: p.Flag("cloneable", false), Project: p.Text("group|groupId|group_id", ""),
	}
	if err := p.Err(); err != nil {
		return err
	}
	f, task, err := a.folders.Clone(c.ctx(), c.actor, c.r.PathValue("v"), in)
	if err != nil {
		return err
	}
	o := folderOf(f)
	o.TaskID = task
	return c.json(http.StatusCreated, o)
}

func (a *API) folderHosts(c *call, p *params.Set) error {
	project := p.Text("group_id|groupId|group", "")
	if err := p.Err(); err != nil {
		return err
	}
	h, err := a.folders.Hosts(c.ctx(), c.actor, project)
	if err != nil {
		return err
	}
	info := map[string]api.VolumeInfo{}
	for name, i := range h.Info {
		info[name] = api.VolumeInfo{
			Backend: i.Backend, Capabilities: notNull(i.Capabilities), Usage: api.VolumeUsage{Percent: i.UsedPercent},
			SFTPGroups: notNull(i.SFTPGroups), Permissions: texts(i.Permissions), Problem: i.Problem,
		}
	}
	return c.ok(api.FolderHosts{Default: orNil(h.Default), Allowed: notNull(h.Allowed), Info: info})
}

// notNull is a list that is [] where there is none; clients count without asking.
func notNull[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (a *API) allFolderHosts(c *call, _ *params.Set) error {
	h, err := a.folders.AllHosts(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(api.FolderHosts{Default: orNil(h.Default), Allowed: notNull(h.Allowed)})
}

func (a *API) folderTypes(c *call, _ *params.Set) error {
	kinds, err := a.folders.AllowedTypes(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(notNull(kinds))
}

// hostPermissions are all that policies may list.
func (a *API) hostPermissions(c *call, _ *params.Set) error {
	all, err := a.folders.PermissionsOfHosts(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(api.HostPermissions{Permissions: texts(all)})
}

// folderHost is the host that a route of quotas or measurements names.
func folderHost(p *params.Set) string { return p.Text("folder_host|folderHost|host", "") }

func (a *API) folderPerformance(c *call, p *params.Set) error {
	host := folderHost(p)
	if host == "" {
		p.Fail("folder_host", "is required")
	}
	if err := p.Err(); err != nil {
		return err
	}
	m, err := a.folders.PerfMetric(c.ctx(), c.actor, host)
	if err != nil {
		return err
	}
	return c.ok(json.RawMessage(m))
}

// quotaOf is what a folder's scope holds; a null limit is none, a null use is unknown.
func quotaOf(q folder.Quota) api.Quota {
	return api.Quota{
		SizeBytes: q.LimitBytes, LimitBytes: q.LimitBytes, UsedBytes: q.UsedBytes, LowerBound: q.LowerBound,
		Scope: q.Scope.String(), Host: q.Host,
	}
}

func (a *API) folderQuota(c *call, p *params.Set) error {
	host, ref := folderHost(p), p.Need("id|vfolder_id")
	if err := p.Err(); err != nil {
		return err
	}
	q, err := a.folders.GetQuota(c.ctx(), c.actor, host, ref)
	if err != nil {
		return err
	}
	return c.ok(quotaOf(q))
}

// maxScopeBytes is the largest limit that every file system can express.
const maxScopeBytes = 1 << 60

func (a *API) setFolderQuota(c *call, p *params.Set) error {
	host, ref := folderHost(p), p.Need("id|vfolder_id")
	in := p.Object("input")
	bytes := in.Number("size_bytes", -1, 0, maxScopeBytes)
	if !in.Has("size_bytes") {
		in.Fail("size_bytes", "is required")
	}
	if err := p.Err(); err != nil {
		return err
	}
	q, err := a.folders.SetQuota(c.ctx(), c.actor, host, ref, int64(bytes))
	if err != nil {
		return err
	}
	return c.ok(quotaOf(q))
}

func (a *API) folderUsage(c *call, p *params.Set) error {
	host, ref := folderHost(p), p.Need("id|vfolder_id")
	if err := p.Err(); err != nil {
		return err
	}
	u, err := a.folders.Usage(c.ctx(), c.actor, host, ref)
	if err != nil {
		return err
	}
	return c.ok(api.FolderUsage{Files: u.FileCount, UsedBytes: u.UsedBytes, Complete: &u.Complete, At: isoTime(u.At)})
}

func (a *API) folderUsedBytes(c *call, p *params.Set) error {
	host, ref := folderHost(p), p.Need("id|vfolder_id")
	if err := p.Err(); err != nil {
		return err
	}
	n, err := a.folders.UsedBytes(c.ctx(), c.actor, host, ref)
	if err != nil {
		return err
	}
	return c.ok(api.UsedBytes{UsedBytes: n})
}

// folderMounts tells where volumes are: proxies have them, managers have none, and agents look for them by path.
func (a *API) folderMounts(c *call, _ *params.Set) error {
	volumes, err := a.folders.Volumes(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	mounts, problem := []string{}, ""
	for _, v := range volumes {
		mounts = append(mounts, v.ID+" "+v.Path)
		if v.Problem != "" {
			problem += v.ID + ": " + v.Problem + "\n"
		}
	}
	return c.ok(api.MountReport{
		Manager:      api.MountedVolumes{Success: true, Mounts: []string{}, Message: "managers mount no volumes"},
		StorageProxy: api.MountedVolumes{Success: problem == "", Mounts: mounts, Message: problem},
		Agents:       map[string]api.MountedVolumes{},
	})
}

func (a *API) mountElsewhere(c *call, _ *params.Set) error {
	if _, err := a.folders.AllHosts(c.ctx(), c.actor); err != nil { // the same people
		return err
	}
	return fault.Invalidf("Berth does not mount file systems and does not edit fstab").WithReason(reasonNotImplemented).
		WithNext(
			"mount the file system on the hosts by their own means (fstab, systemd) and name its path as a volume in the storage " +
				"proxy's configuration",
		)
}
