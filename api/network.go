package api

import (
	"context"
	"net/http"
	"net/url"
)

// GroupNetwork is what sessions of a resource group may reach from inside.
type GroupNetwork struct {
	ResourceGroup string `json:"name"`
	// Egress is open, none or proxy:ADDRESS:PORT.
	Egress string `json:"egress"`
	// EncryptedNetworks: the networks of sessions that begin are encrypted between agents.
	EncryptedNetworks bool `json:"encrypted_networks"`
}

// GroupNetworkChange is the body of PATCH /scaling-groups/{sg}/network.
type GroupNetworkChange struct {
	Egress string `json:"egress"`
}

func networkPath(group string) string { return "/scaling-groups/" + url.PathEscape(group) + "/network" }

// GroupNetwork reads what sessions of a resource group may reach.
func (c *Client) GroupNetwork(ctx context.Context, group string) (GroupNetwork, error) {
	var out GroupNetwork
	err := c.call(ctx, request{method: http.MethodGet, path: networkPath(group)}, &out)
	return out, err
}

// SetGroupNetwork changes it (superadmins), for sessions that run, too.
func (c *Client) SetGroupNetwork(ctx context.Context, group, egress string) (GroupNetwork, error) {
	var out GroupNetwork
	err := c.call(ctx, request{method: http.MethodPatch, path: networkPath(group), json: GroupNetworkChange{Egress: egress}}, &out)
	return out, err
}
