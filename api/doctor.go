package api

import (
	"context"
	"net/http"
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
func (c *Client) Findings(ctx context.Context) ([]Finding, error) {
	var out FindingList
	err := c.call(ctx, request{method: http.MethodGet, path: "/manager/doctor"}, &out)
	return out.Findings, err
}
