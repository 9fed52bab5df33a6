package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// IdleChecker is a rule by which sessions count as idle. Times are in seconds, thresholds in percent of what is allocated.
type IdleChecker struct {
	Name         string        `json:"name,omitempty"`
	Description  string        `json:"description,omitempty"`
	Type         string        `json:"type"` // session_lifetime, network_timeout or utilization
	Targets      []string      `json:"target_session_types,omitempty"`
	InitialGrace float64       `json:"initial_grace_period,omitempty"`
	NewUserGrace float64       `json:"new_user_grace_period,omitempty"`
	WarnBefore   *float64      `json:"warn_before,omitempty"` // nil: five minutes
	DryRun       bool          `json:"dry_run"`
	Enabled      bool          `json:"enabled"`
	Spec         IdleSpec      `json:"spec"`
	Bindings     []IdleBinding `json:"bindings"`
	CreatedAt    string        `json:"created_at,omitempty"`
	ModifiedAt   string        `json:"modified_at,omitempty"`
}

// IdleSpec is the part of a checker that depends on its type.
type IdleSpec struct {
	MaxLifetime          int64              `json:"max_lifetime_seconds,omitempty"`
	MaxNetworkInactivity int64              `json:"max_network_inactivity_seconds,omitempty"`
	Window               int64              `json:"time_window_seconds,omitempty"`
	Operator             string             `json:"thresholds_check_operator,omitempty"` // and, or
	Thresholds           map[string]float64 `json:"resource_thresholds,omitempty"`
}

// IdleBinding is where a checker applies; the empty one is the whole cluster.
type IdleBinding struct {
	Domain        string `json:"domain,omitempty"`
	Project       string `json:"project,omitempty"`
	ProjectName   string `json:"project_name,omitempty"` // only when read
	ResourceGroup string `json:"resource_group,omitempty"`
}

// IdleCheck is how a session stands with its strictest check of one type.
type IdleCheck struct {
	Remaining *int64          `json:"remaining"` // seconds; -1: ends now; nil: time alone does not end it
	Kind      string          `json:"remaining_time_type"`
	Extra     json.RawMessage `json:"extra"`
	Phase     string          `json:"phase"`
	Checker   string          `json:"checker"`
	Source    string          `json:"source"`
	Why       string          `json:"why"`
	DryRun    bool            `json:"dry_run"`
	EndsAt    *string         `json:"ends_at"`
}

// IdleReport is how one running session stands with idle checks, by their type.
type IdleReport struct {
	SessionID      string               `json:"session_id"`
	SessionName    string               `json:"session_name"`
	UserEmail      string               `json:"user_email"`
	ResourceGroup  string               `json:"resource_group"`
	StartedAt      string               `json:"started_at"`
	LastAccess     *string              `json:"last_access"`
	KeptAliveUntil *string              `json:"kept_alive_until"`
	Checks         map[string]IdleCheck `json:"idle_checks"`
}

// IdleCheckers lists all checkers.
func (c *Client) IdleCheckers(ctx context.Context) ([]IdleChecker, error) {
	var out struct {
		Checkers []IdleChecker `json:"idle_checkers"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/resource/idle-checkers"}, &out)
	return out.Checkers, err
}

// SetIdleChecker makes a checker or replaces the one of that name.
func (c *Client) SetIdleChecker(ctx context.Context, k IdleChecker) error {
	name := k.Name
	k.Name = ""
	return c.call(ctx, request{method: http.MethodPut, path: "/resource/idle-checkers/" + url.PathEscape(name), json: k}, nil)
}

// RemoveIdleChecker removes a checker.
func (c *Client) RemoveIdleChecker(ctx context.Context, name string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/resource/idle-checkers/" + url.PathEscape(name)}, nil)
}

// IdleReport lists running sessions, those that end first; total is how many were looked at.
func (c *Client) IdleReport(ctx context.Context) (list []IdleReport, total int, err error) {
	var out struct {
		Sessions []IdleReport `json:"sessions"`
		Total    int          `json:"total"`
	}
	err = c.call(ctx, request{method: http.MethodGet, path: "/resource/idle-report"}, &out)
	return out.Sessions, out.Total, err
}

// KeepAlive keeps a session from ending as idle; duration is a text such as 90m or 2h. It returns until when (ISO time).
func (c *Client) KeepAlive(ctx context.Context, session, duration, reason string) (string, error) {
	var out struct {
		Until string `json:"until"`
	}
	err := c.sessionCall(ctx, session, "keep-alive",
		request{method: http.MethodPost, json: map[string]string{"for": duration, "reason": reason}}, &out)
	return out.Until, err
}

// EndKeepAlive takes back what KeepAlive gave.
func (c *Client) EndKeepAlive(ctx context.Context, session string) error {
	return c.sessionCall(ctx, session, "keep-alive", request{method: http.MethodDelete}, nil)
}
