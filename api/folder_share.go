package api

import (
	"context"
	"net/http"
	"net/url"
)

// Invitation offers a user's folder to another user.
type Invitation struct {
	ID         string `json:"id"`
	Inviter    string `json:"inviter"`
	Invitee    string `json:"invitee"`
	Permission string `json:"perm"`
	State      string `json:"state"`
	CreatedAt  string `json:"created_at"`
	ModifiedAt string `json:"modified_at,omitempty"`
	FolderID   string `json:"vfolder_id"`
	FolderName string `json:"vfolder_name"`
}

// InviteToFolder offers a folder of the caller to users, by e-mail address, and returns who was invited.
func (c *Client) InviteToFolder(ctx context.Context, folder, permission string, emails []string) ([]string, error) {
	var out struct {
		Invited []string `json:"invited_ids"`
	}
	body := map[string]any{"permission": permission, "perm": permission, "emails": emails, "user_ids": emails}
	err := c.folderCall(ctx, folder, "invite", request{method: http.MethodPost, json: body}, &out)
	return out.Invited, err
}

// Invitations lists open invitations: those to the caller, or those that the caller sent.
func (c *Client) Invitations(ctx context.Context, sent bool) ([]Invitation, error) {
	p := "/folders/invitations/list"
	if sent {
		p = "/folders/invitations/list-sent"
	}
	out := struct {
		Invitations []Invitation `json:"invitations"`
	}{Invitations: []Invitation{}}
	err := c.call(ctx, request{method: http.MethodGet, path: p}, &out)
	return out.Invitations, err
}

// AcceptInvitation gives the caller access to the folder offered.
func (c *Client) AcceptInvitation(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodPost, path: "/folders/invitations/accept", json: map[string]string{"inv_id": id}}, nil)
}

// DeleteInvitation rejects an invitation to the caller, or takes one back that the caller sent.
func (c *Client) DeleteInvitation(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/folders/invitations/delete", json: map[string]string{"inv_id": id}}, nil)
}

// UpdateInvitation changes the permission that an open invitation of the caller offers.
func (c *Client) UpdateInvitation(ctx context.Context, id, permission string) error {
	return c.call(ctx, request{
		method: http.MethodPost, path: "/folders/invitations/update/" + url.PathEscape(id), json: map[string]string{"perm": permission},
	}, nil)
}

// ShareFolder gives members of a project another permission on a project folder, without asking them.
// It returns the addresses that were given it.
func (c *Client) ShareFolder(ctx context.Context, folder, permission string, emails []string) ([]string, error) {
	var out struct {
		Shared []string `json:"shared_emails"`
	}
	body := map[string]any{"permission": permission, "emails": emails}
	err := c.folderCall(ctx, folder, "share", request{method: http.MethodPost, json: body}, &out)
	return out.Shared, err
}

// UnshareFolder takes permissions back: what ShareFolder gave, or an accepted invitation to a folder of the caller.
func (c *Client) UnshareFolder(ctx context.Context, folder string, emails []string) ([]string, error) {
	var out struct {
		Unshared []string `json:"unshared_emails"`
	}
	err := c.folderCall(ctx, folder, "unshare", request{method: http.MethodDelete, json: map[string]any{"emails": emails}}, &out)
	return out.Unshared, err
}

// LeaveFolder gives up the caller's access to a folder of somebody else.
func (c *Client) LeaveFolder(ctx context.Context, folder string) error {
	return c.folderCall(ctx, folder, "leave", request{method: http.MethodPost, json: map[string]any{"shared_user_uuid": nil}}, nil)
}

// FolderShare is who can use a folder besides its owner.
type FolderShare struct {
	FolderID   string `json:"vfolder_id"`
	FolderName string `json:"vfolder_name"`
	Status     string `json:"status"`
	Owner      string `json:"owner"`
	Type       string `json:"type"`
	SharedTo   struct {
		ID    string `json:"uuid"`
		Email string `json:"email"`
	} `json:"shared_to"`
	Permission string `json:"perm"`
}

// FolderShares lists who can use the folder with that id; "" lists all folders that the caller may see.
func (c *Client) FolderShares(ctx context.Context, folderID string) ([]FolderShare, error) {
	q := url.Values{}
	if folderID != "" {
		q.Set("vfolder_id", folderID)
	}
	out := struct {
		Shared []FolderShare `json:"shared"`
	}{Shared: []FolderShare{}}
	err := c.call(ctx, request{method: http.MethodGet, path: "/folders/_/shared", query: q}, &out)
	return out.Shared, err
}
