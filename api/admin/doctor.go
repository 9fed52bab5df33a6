package admin

import (
	"context"

	"berth.dev/berth/api"
)

// Finding is something in the cluster's rows that should not be.
type Finding struct {
	Severity string `json:"severity"` // error or warning
	Kind     string `json:"kind"`
	Object   string `json:"object"`
	Detail   string `json:"detail"`
	Next     string `json:"next"`
}

// FindingList is the answer of GET /manager/doctor.
type FindingList struct {
	Findings []Finding `json:"findings"`
}

// Findings asks the manager what its rows say that should not be; none is well. Superadmins only.
func Findings(ctx context.Context, c *api.Client) ([]Finding, error) {
	var out FindingList
	err := c.Get(ctx, "/manager/doctor", nil, &out)
	return out.Findings, err
}
