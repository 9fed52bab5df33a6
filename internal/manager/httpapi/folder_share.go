package httpapi

import (
	"net/http"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/httpapi/params"
)

// maxPeople bounds whom one request invites or shares with.
const maxPeople = 1_000

// folderShareRoutes are those by which people give each other folders.
func (a *API) folderShareRoutes() {
	a.onFolders(unfrozen, a.inviteToFolder, "POST /folders/{v}/invite")
	a.onFolders(signedOnly, a.invitations, "GET /folders/invitations/list")
	a.onFolders(signedOnly, a.sentInvitations, "GET /folders/invitations/list-sent", "GET /folders/invitations/list_sent")
	a.onFolders(unfrozen, a.acceptInvitation, "POST /folders/invitations/accept")
	a.onFolders(unfrozen, a.deleteInvitation, "DELETE /folders/invitations/delete", "POST /folders/invitations/delete")
	a.onFolders(unfrozen, a.updateInvitation, "POST /folders/invitations/update/{inv}")
	a.onFolders(unfrozen, a.shareFolder, "POST /folders/{v}/share")
	a.onFolders(unfrozen, a.unshareFolder, "DELETE /folders/{v}/unshare", "POST /folders/{v}/unshare")
	a.onFolders(unfrozen, a.leaveFolder, "POST /folders/{v}/leave")
	a.onFolders(signedOnly, a.sharedFolders, "GET /folders/_/shared")
	a.onFolders(unfrozen, a.updateShared, "POST /folders/_/shared")
	a.onFolders(unfrozen, a.updateSharing, "POST /folders/_/sharing")
	a.onFolders(unfrozen, a.changeFolderOwner, "POST /folders/_/change-ownership", "POST /folders/_/change_ownership")
}

func people(p *params.Set, names string) []string {
	list := p.List(names)
	switch {
	case len(list) == 0 && p.Err() == nil:
		p.Fail(names, "is required")
	case len(list) > maxPeople:
		p.Fail(names, "names %d people; %d are allowed at once", len(list), maxPeople)
	}
	return list
}

func (a *API) inviteToFolder(c *call, p *params.Set) error {
	perm, emails := permission(p, "perm|permission", cluster.ReadWrite), people(p, "user_ids|emails|userIDs")
	if err := p.Err(); err != nil {
		return err
	}
	invited, err := a.folders.Invite(c.ctx(), c.actor, c.r.PathValue("v"), perm, emails)
	if err != nil {
		return err
	}
	return c.json(http.StatusCreated, api.InvitedUsers{Emails: notNull(invited)})
}

func invitationsOf(list []folder.Invitation) api.InvitationList {
	out := make([]api.Invitation, len(list))
	for i, v := range list {
		out[i] = api.Invitation{
			ID: v.ID, Inviter: v.Inviter, InviterEmail: v.Inviter, Invitee: v.Invitee, InviteeEmail: v.Invitee, Permission: string(v.Permission),
			MountPermission: string(v.Permission), State: string(v.State), Status: string(v.State), CreatedAt: isoTime(v.CreatedAt),
			ModifiedAt: isoTime(v.ModifiedAt), FolderID: string(v.Folder), FolderName: v.FolderName,
		}
	}
	return api.InvitationList{Invitations: out}
}

func (a *API) invitations(c *call, _ *params.Set) error {
	list, err := a.folders.ListInvitations(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(invitationsOf(list))
}

func (a *API) sentInvitations(c *call, _ *params.Set) error {
	list, err := a.folders.ListSentInvitations(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(invitationsOf(list))
}

// said answers with a sentence for people.
func (c *call) said(what string) error { return c.ok(api.Said{Msg: what}) }

func (a *API) acceptInvitation(c *call, p *params.Set) error {
	id := p.Need("inv_id|invId")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.AcceptInvitation(c.ctx(), c.actor, id); err != nil {
		return err
	}
	return c.said("The invitation is accepted.")
}

func (a *API) deleteInvitation(c *call, p *params.Set) error {
	id := p.Need("inv_id|invId")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.DeleteInvitation(c.ctx(), c.actor, id); err != nil {
		return err
	}
	return c.said("The invitation is withdrawn or rejected.")
}

func (a *API) updateInvitation(c *call, p *params.Set) error {
	perm := permission(p, "perm|permission", "")
	if perm == "" {
		p.Need("perm")
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.UpdateInvitation(c.ctx(), c.actor, c.r.PathValue("inv"), perm); err != nil {
		return err
	}
	return c.said("The invitation now offers " + string(perm) + ".")
}

func (a *API) shareFolder(c *call, p *params.Set) error {
	perm, emails := permission(p, "permission|perm", cluster.ReadWrite), people(p, "emails|user_ids")
	if err := p.Err(); err != nil {
		return err
	}
	shared, err := a.folders.Share(c.ctx(), c.actor, c.r.PathValue("v"), perm, emails)
	if err != nil {
		return err
	}
	return c.json(http.StatusCreated, api.SharedUsers{Emails: notNull(shared)})
}

func (a *API) unshareFolder(c *call, p *params.Set) error {
	emails := people(p, "emails|user_ids")
	if err := p.Err(); err != nil {
		return err
	}
	gone, err := a.folders.Unshare(c.ctx(), c.actor, c.r.PathValue("v"), emails)
	if err != nil {
		return err
	}
	return c.ok(api.UnsharedUsers{Emails: notNull(gone)})
}

func (a *API) leaveFolder(c *call, p *params.Set) error {
	var user *cluster.UserID
	if id := p.UUID("shared_user_uuid|sharedUserUuid"); id != "" {
		user = new(cluster.UserID(id))
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.Leave(c.ctx(), c.actor, c.r.PathValue("v"), user); err != nil {
		return err
	}
	return c.said("The shared folder is left.")
}

func (a *API) sharedFolders(c *call, p *params.Set) error {
	ref := p.Text("vfolder_id|vfolderId|vfolder", "")
	if err := p.Err(); err != nil {
		return err
	}
	list, err := a.folders.Shared(c.ctx(), c.actor, ref)
	if err != nil {
		return err
	}
	out := make([]api.FolderShare, len(list))
	for i, s := range list {
		out[i] = api.FolderShare{
			FolderID: string(s.Folder), FolderName: s.FolderName, Status: string(s.Status), Owner: s.Owner, Type: string(s.Ownership),
			SharedTo: api.SharedTo{ID: string(s.UserID), Email: s.UserEmail}, Permission: string(s.Permission),
		}
	}
	return c.ok(api.FolderShareList{Shared: out})
}

// sharing reads one change of a user's permission; a permission that is null or absent takes it away.
func sharing(p *params.Set, user string) folder.SharingChange {
	change := folder.SharingChange{User: cluster.UserID(p.UUID(user))}
	if change.User == "" {
		p.Need(user)
	}
	if perm := permission(p, "perm|permission", ""); perm != "" {
		change.Permission = &perm
	}
	return change
}

func (a *API) updateShared(c *call, p *params.Set) error {
	ref, change := p.Need("vfolder|vfolder_id|vfolderId"), sharing(p, "user|user_id")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.UpdateSharing(c.ctx(), c.actor, ref, []folder.SharingChange{change}); err != nil {
		return err
	}
	return c.said("The permission is changed.")
}

// updateSharing changes the permissions of several users at once, all or none.
func (a *API) updateSharing(c *call, p *params.Set) error {
	ref := p.Need("vfolder|vfolder_id|vfolderId")
	v, _ := p.Get("user_perm|user_perm_list|userPermList")
	list, ok := v.([]any)
	if !ok || len(list) == 0 || len(list) > maxPeople {
		p.Fail("user_perm_list", "must be a list of 1 to %d objects with user_id and perm", maxPeople)
	}
	var changes []folder.SharingChange
	for _, item := range list[:min(len(list), maxPeople)] {
		one, ok := item.(map[string]any)
		if !ok {
			p.Fail("user_perm_list", "must hold objects")
			break
		}
		changes = append(changes, sharing(p.Within("user_perm_list", one), "user_id|userID|user"))
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.UpdateSharing(c.ctx(), c.actor, ref, changes); err != nil {
		return err
	}
	return c.json(http.StatusCreated, api.Said{Msg: "The permissions are changed."})
}

func (a *API) changeFolderOwner(c *call, p *params.Set) error {
	ref, email := p.Need("vfolder|vfolder_id|vfolderId"), p.Need("user_email|userEmail")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.folders.ChangeOwnership(c.ctx(), c.actor, ref, email); err != nil {
		return err
	}
	return c.ok(api.Empty{})
}
