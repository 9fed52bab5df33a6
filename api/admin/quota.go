package admin

import (
	"context"
	"net/http"
	"net/url"

	"berth.dev/berth/api"
)

// Quota is a level of the tree of quotas: a domain, a project, or a user in a project, named by its path.
type Quota struct {
	Path          string      `json:"path"`
	ResourceGroup string      `json:"scaling_group,omitempty"` // absent: all together
	Own           bool        `json:"own"`                     // it has a rule; others are there for what lies below them
	Weight        *float64    `json:"weight,omitempty"`        // of the fair share
	Slots         []QuotaSlot `json:"slots"`
	Problems      []string    `json:"problems,omitempty"` // promises that cannot be kept any more
}

// QuotaSlot is what a level has of one slot. Amounts are texts; an absent one was not given.
type QuotaSlot struct {
	Slot       string `json:"slot"`
	Guaranteed string `json:"guaranteed,omitempty"`
	Limit      string `json:"limit,omitempty"`
	// Effective is the lowest limit of the level and of those above it, EffectiveBy the level that has it.
	Effective   string `json:"effective_limit,omitempty"`
	EffectiveBy string `json:"effective_by,omitempty"`
	Used        string `json:"using"`
	Waiting     string `json:"waiting"`
	Borrowed    string `json:"borrowed"` // used beyond the guarantee
	Lent        string `json:"lent"`     // of the guarantee, neither used nor waited for
}

// Quotas is a list of them.
type Quotas struct {
	Items []Quota `json:"items"`
}

// QuotaChange is what a level is given. Slots that are not named stay; an empty amount takes one away.
type QuotaChange struct {
	Path          string            `json:"path"`
	ResourceGroup string            `json:"scaling_group,omitempty"`
	Guaranteed    map[string]string `json:"guaranteed,omitempty"`
	Limit         map[string]string `json:"limit,omitempty"`
	Weight        *float64          `json:"weight,omitempty"` // 0 takes it away
	DryRun        bool              `json:"dry_run,omitempty"`
}

// ProjectPlace says where a project lies: in a parent, or (empty) directly in its domain.
type ProjectPlace struct {
	Project string `json:"group"`
	Parent  string `json:"parent"`
}

// QuotaTree lists the levels that the caller administers, of a path and below it; "" is all.
func QuotaTree(ctx context.Context, c *api.Client, path string) ([]Quota, error) {
	var out Quotas
	err := c.Get(ctx, "/quotas", url.Values{"path": {path}}, &out)
	return out.Items, err
}

// SetQuota gives something to a level.
func SetQuota(ctx context.Context, c *api.Client, change QuotaChange) (Quota, error) {
	var out Quota
	err := c.Do(ctx, http.MethodPost, "/quotas", change, &out)
	return out, err
}

// UnsetQuota takes the rule of a level away.
func UnsetQuota(ctx context.Context, c *api.Client, path, resourceGroup string) error {
	q := url.Values{"path": {path}}
	if resourceGroup != "" {
		q.Set("scaling_group", resourceGroup)
	}
	return c.Do(ctx, http.MethodDelete, "/quotas?"+q.Encode(), nil, nil)
}

// PlaceProject puts a project under another one, or directly into its domain.
func PlaceProject(ctx context.Context, c *api.Client, place ProjectPlace) error {
	return c.Do(ctx, http.MethodPost, "/quotas/place", place, nil)
}
