package api

import (
	"context"
	"net/http"
)

// SlotDetails is how a kind of resource is shown to people.
type SlotDetails struct {
	Name        string       `json:"slot_name"`
	Description string       `json:"description"`
	HumanName   string       `json:"human_readable_name"`
	DisplayUnit string       `json:"display_unit"`
	Format      NumberFormat `json:"number_format"`
	DisplayIcon string       `json:"display_icon"`
}

// NumberFormat is how amounts of a slot are written: Binary ones are bytes.
type NumberFormat struct {
	Binary      bool `json:"binary"`
	RoundLength int  `json:"round_length"` // digits after the point
}

// Slots are the kinds of resources that the cluster knows, by name.
func (c *Client) Slots(ctx context.Context) (map[string]SlotDetails, error) {
	out := map[string]SlotDetails{}
	err := c.call(ctx, request{method: http.MethodGet, path: "/config/resource-slots/details"}, &out)
	return out, err
}

// ResourceGroupName names a resource group.
type ResourceGroupName struct {
	Name string `json:"name"`
}

// ResourceGroupNames is the answer of GET /scaling-groups.
type ResourceGroupNames struct {
	Groups []ResourceGroupName `json:"scaling_groups"`
}

// UsageRecalculated names the agents that hold more than they have; there should be none.
type UsageRecalculated struct {
	OvercommittedAgents []string `json:"overcommitted_agents,omitempty"`
}

// VisibilityChange is the body of PUT /resource/project-visibility.
type VisibilityChange struct {
	Visible bool `json:"group_resource_visibility"`
}
