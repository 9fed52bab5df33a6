package admin

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"berth.dev/berth/api"
)

// Formats of tenancies: everything, or a table of users.
const (
	TenancyYAML = "yaml"
	TenancyCSV  = "csv"
)

// maxTenancyStep is how many changes one request carries out: few enough that it ends in time on a busy machine, too.
const maxTenancyStep = 50

// Tenancy is a tenancy as a text.
type Tenancy struct {
	Format string `json:"format"`
	Text   string `json:"text"`
}

// TenancyRequest asks what has to change for a text to be true. Prune makes inactive what its lists leave out.
type TenancyRequest struct {
	Format string `json:"format"`
	Text   string `json:"text"`
	Prune  bool   `json:"prune"`
}

// TenancyChange is one step: an object is made, or properties change from something to something. The texts are the manager's own form.
type TenancyChange struct {
	Kind   string            `json:"kind"`
	Domain string            `json:"domain_name"`
	Name   string            `json:"name"`
	Make   bool              `json:"make"`
	From   map[string]string `json:"from"`
	To     map[string]string `json:"to"`
	// Words are the change for people, a line each.
	Words []string `json:"words,omitempty"`
	// Password is that of a new user; without one no password lets them in until they get one. Letter has an e-mail sent with which
	// they set it.
	Password string `json:"password,omitempty"`
	Letter   bool   `json:"letter,omitempty"`
}

// NewUser reports whether the change makes a user.
func (c TenancyChange) NewUser() bool { return c.Kind == "user" && c.Make }

// TenancyPlan is what has to change, in this order.
type TenancyPlan struct {
	Changes []TenancyChange `json:"changes"`
	Notes   []string        `json:"notes"`
	Summary string          `json:"summary"`
}

// TenancyResult is what became of a change: done, already (it was as it should be) or failed.
type TenancyResult struct {
	State  string `json:"state"`
	Error  string `json:"error,omitempty"`
	Next   string `json:"next,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// TenancySteps are changes that shall be carried out, TenancyResults what became of them, in the same order.
type TenancySteps struct {
	Changes []TenancyChange `json:"changes"`
}

// TenancyResults are the answer to TenancySteps.
type TenancyResults struct {
	Results []TenancyResult `json:"results"`
}

// ExportTenancy writes a domain, or ("") all that the caller administers, as a text that changes nothing when it is applied.
func ExportTenancy(ctx context.Context, c *api.Client, domain, format string) (string, error) {
	q := url.Values{"format": {format}}
	if domain != "" {
		q.Set("domain", domain)
	}
	var out Tenancy
	err := c.Get(ctx, "/tenancy/export", q, &out)
	return out.Text, err
}

// PlanTenancy asks what has to change; it changes nothing.
func PlanTenancy(ctx context.Context, c *api.Client, r TenancyRequest) (TenancyPlan, error) {
	var out TenancyPlan
	err := c.Do(ctx, http.MethodPost, "/tenancy/plan", r, &out)
	return out, err
}

// ApplyTenancy carries out changes in steps; before sees each step before it is sent, each what became of it. Whoever is interrupted plans
// and applies again.
func ApplyTenancy(ctx context.Context, c *api.Client, changes []TenancyChange, before func([]TenancyChange) error,
	each func(TenancyChange, TenancyResult)) error {
	for step := range slices.Chunk(slices.Clone(changes), maxTenancyStep) {
		for i := range step {
			step[i].Words = nil
		}
		if err := before(step); err != nil {
			return err
		}
		var out TenancyResults
		if err := c.Do(ctx, http.MethodPost, "/tenancy/apply", TenancySteps{step}, &out); err != nil {
			return err
		}
		for i := range min(len(step), len(out.Results)) {
			each(step[i], out.Results[i])
		}
	}
	return nil
}
