package api

import (
	"context"
	"net/http"
	"net/url"
)

// Invitation offers a user's folder to another user.
type Invitation struct {
	ID              string `json:"id"`
	Inviter         string `json:"inviter"`            // e-mail address
	InviterEmail    string `json:"inviter_user_email"` // the same
	Invitee         string `json:"invitee"`            // e-mail address
	InviteeEmail    string `json:"invitee_user_email"` // the same
	Permission      string `json:"perm"`
	MountPermission string `json:"mount_permission"` // the same
	State           string `json:"state"`
	Status          string `json:"status"` // the same
	CreatedAt       string `json:"created_at"`
	ModifiedAt      string `json:"modified_at"`
	FolderID        string `json:"vfolder_id"`
	FolderName      string `json:"vfolder_name"`
}

// InvitationList is the answer of the lists of invitations.
type InvitationList struct {
	Invitations []Invitation `json:"invitations"`
}

// InviteRequest is the body of POST /folders/{v}/invite. Servers of different ages read either member of each pair.
type InviteRequest struct {
	Permission string   `json:"permission"`
	Perm       string   `json:"perm"`
	Emails     []string `json:"emails"`
	UserIDs    []string `json:"user_ids"`
}

// InvitedUsers are the addresses that were invited.
type InvitedUsers struct {
	Emails []string `json:"invited_ids"`
}

// InvitationRef is the body of requests about one invitation.
type InvitationRef struct {
	ID string `json:"inv_id"`
}

// InvitationChange is the body of POST /folders/invitations/update/{inv}.
type InvitationChange struct {
	Permission string `json:"perm"`
}

// ShareRequest is the body of POST /folders/{v}/share and, without a permission, of unshare.
type ShareRequest struct {
	Permission string   `json:"permission,omitempty"`
	Emails     []string `json:"emails"`
}

// SharedUsers are the addresses that were given a folder.
type SharedUsers struct {
	Emails []string `json:"shared_emails"`
}

// UnsharedUsers are the addresses from which a folder was taken.
type UnsharedUsers struct {
	Emails []string `json:"unshared_emails"`
}

// LeaveRequest is the body of POST /folders/{v}/leave; nil means the caller.
type LeaveRequest struct {
	User *string `json:"shared_user_uuid"`
}

// InviteToFolder offers a folder of the caller to users, by e-mail address, and returns who was invited.
func (c *Client) InviteToFolder(ctx context.Context, folder, permission string, emails []string) ([]string, error) {
	var out InvitedUsers
	body := InviteRequest{Permission: permission, Perm: permission, Emails: emails, UserIDs: emails}
	err := c.folderCall(ctx, folder, "invite", request{method: http.MethodPost, json: body}, &out)
	return out.Emails, err
}

// Invitations lists open invitations: those to the caller, or those that the caller sent.
func (c *Client) Invitations(ctx context.Context, sent bool) ([]Invitation, error) {
	p := "/folders/invitations/list"
	if sent {
		p = "/folders/invitations/list-sent"
	}
	out := InvitationList{Invitations: []Invitation{}}
	err := c.call(ctx, request{method: http.MethodGet, path: p}, &out)
	return out.Invitations, err
}

// AcceptInvitation gives the caller access to the folder offered.
func (c *Client) AcceptInvitation(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodPost, path: "/folders/invitations/accept", json: InvitationRef{ID: id}}, nil)
}

// DeleteInvitation rejects an invitation to the caller, or takes one back that the caller sent.
func (c *Client) DeleteInvitation(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/folders/invitations/delete", json: InvitationRef{ID: id}}, nil)
}

// UpdateInvitation changes the permission that an open invitation of the caller offers.
func (c *Client) UpdateInvitation(ctx context.Context, id, permission string) error {
	return c.call(ctx, request{
		method: http.MethodPost, path: "/folders/invitations/update/" + url.PathEscape(id), json: InvitationChange{Permission: permission},
	}, nil)
}

// ShareFolder gives members of a project another permission on a project folder, without asking them.
// It returns the addresses that were given it.
func (c *Client) ShareFolder(ctx context.Context, folder, permission string, emails []string) ([]string, error) {
	var out SharedUsers
	body := ShareRequest{Permission: permission, Emails: emails}
	err := c.folderCall(ctx, folder, "share", request{method: http.MethodPost, json: body}, &out)
	return out.Emails, err
}

// UnshareFolder takes permissions back: what ShareFolder gave, or an accepted invitation to a folder of the caller.
func (c *Client) UnshareFolder(ctx context.Context, folder string, emails []string) ([]string, error) {
	var out UnsharedUsers
	err := c.folderCall(ctx, folder, "unshare", request{method: http.MethodDelete, json: ShareRequest{Emails: emails}}, &out)
	return out.Emails, err
}

// LeaveFolder gives up the caller's access to a folder of somebody else.
func (c *Client) LeaveFolder(ctx context.Context, folder string) error {
	return c.folderCall(ctx, folder, "leave", request{method: http.MethodPost, json: LeaveRequest{}}, nil)
}

// FolderShare is who can use a folder besides its owner.
type FolderShare struct {
	FolderID   string   `json:"vfolder_id"`
	FolderName string   `json:"vfolder_name"`
	Status     string   `json:"status"`
	Owner      string   `json:"owner"`
	Type       string   `json:"type"`
	SharedTo   SharedTo `json:"shared_to"`
	Permission string   `json:"perm"`
}

// SharedTo is who was given a folder.
type SharedTo struct {
	ID    string `json:"uuid"`
	Email string `json:"email"`
}

// FolderShareList is the answer of GET /folders/_/shared.
type FolderShareList struct {
	Shared []FolderShare `json:"shared"`
}

// ShareChange is the body of POST /folders/_/shared: a permission of one user; nil takes it away.
type ShareChange struct {
	Folder     string  `json:"vfolder"`
	User       string  `json:"user"`
	Permission *string `json:"perm"`
}

// UserPermission is a permission of one user; nil takes it away.
type UserPermission struct {
	User       string  `json:"user_id"`
	Permission *string `json:"perm"`
}

// ShareChanges is the body of POST /folders/_/sharing: permissions of several users, all or none.
type ShareChanges struct {
	Folder      string           `json:"vfolder_id"`
	Permissions []UserPermission `json:"user_perm_list"`
}

// OwnerChange is the body of POST /folders/_/change-ownership.
type OwnerChange struct {
	Folder string `json:"vfolder"`
	Email  string `json:"user_email"`
}

// FolderShares lists who can use the folder with that id; "" lists all folders that the caller may see.
func (c *Client) FolderShares(ctx context.Context, folderID string) ([]FolderShare, error) {
	q := url.Values{}
	if folderID != "" {
		q.Set("vfolder_id", folderID)
	}
	out := FolderShareList{Shared: []FolderShare{}}
	err := c.call(ctx, request{method: http.MethodGet, path: "/folders/_/shared", query: q}, &out)
	return out.Shared, err
}
