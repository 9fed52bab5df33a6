package api

import "context"

// ResourceGroup is a set of agents with one scheduling policy.
type ResourceGroup struct {
	Name        string  `json:"name"`
	Description *string `json:"description"`
	IsActive    bool    `json:"is_active"`
	IsPublic    bool    `json:"is_public"`
	CreatedAt   *string `json:"created_at"`
	Driver      string  `json:"driver"`
	Scheduler   string  `json:"scheduler"`
}

var resourceGroupsQuery = `query{scaling_groups{` + selection[ResourceGroup]() + `}}`

// ResourceGroups lists the resource groups; callers need to be administrators.
func (c *Client) ResourceGroups(ctx context.Context) ([]ResourceGroup, error) {
	var out struct {
		G []ResourceGroup `json:"scaling_groups"`
	}
	err := c.GraphQL(ctx, resourceGroupsQuery, nil, &out)
	return out.G, err
}
