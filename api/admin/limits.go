package admin

import (
	"context"
	"net/url"

	"berth.dev/berth/api"
)

// Limits is what somebody may start now with a keypair in a project.
type Limits struct {
	User           string   `json:"user"`
	AccessKey      string   `json:"access_key"`
	Project        string   `json:"group"`
	Domain         string   `json:"domain"`
	ResourceGroups []string `json:"scaling_groups"`
	Limits         []Limit  `json:"limits"`
}

// Limit is one thing with its limits. Amounts are texts; "Infinity" is no limit, "NaN" is not shown.
type Limit struct {
	Kind   string       `json:"kind"` // running: together; waiting: together; session: of one session
	What   string       `json:"what"` // a slot such as cpu, or what is counted
	Left   string       `json:"remaining"`
	Levels []LimitLevel `json:"levels"`
}

// LimitLevel is what one level says: a keypair, user, project, domain or resource group.
type LimitLevel struct {
	Level  string `json:"level"`
	Name   string `json:"name,omitempty"`
	Policy string `json:"policy,omitempty"`
	Limit  string `json:"limit"`
	Used   string `json:"using"`
	Left   string `json:"remaining"`
	// Binds says that it is the level that leaves least.
	Binds bool `json:"binds"`
}

// GetLimits tells what a user ("" is the caller) may start now in a project; resourceGroup "" is every one that they may use.
func GetLimits(ctx context.Context, c *api.Client, user, project, resourceGroup string) (Limits, error) {
	q := url.Values{}
	for k, v := range map[string]string{"user": user, "group": project, "scaling_group": resourceGroup} {
		if v != "" {
			q.Set(k, v)
		}
	}
	var out Limits
	err := c.Get(ctx, "/resource/limits", q, &out)
	return out, err
}
