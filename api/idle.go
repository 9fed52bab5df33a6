package api

import (
	"context"
	"net/http"
	"net/url"
)

// IdleChecker is a rule by which sessions count as idle. Times are in seconds, thresholds in percent of what is allocated.
type IdleChecker struct {
	Name         string        `json:"name,omitempty"`
	Description  string        `json:"description"`
	Type         string        `json:"type"` // session_lifetime, network_timeout or utilization
	Targets      []string      `json:"target_session_types"`
	InitialGrace float64       `json:"initial_grace_period"`
	NewUserGrace float64       `json:"new_user_grace_period"`
	WarnBefore   *float64      `json:"warn_before"` // nil: five minutes
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
	Remaining *int64     `json:"remaining"` // seconds; -1: ends now; nil: time alone does not end it
	Kind      string     `json:"remaining_time_type"`
	Extra     *IdleExtra `json:"extra"`
	Phase     string     `json:"phase"`
	Checker   string     `json:"checker"`
	Source    string     `json:"source"`
	Why       string     `json:"why"`
	DryRun    bool       `json:"dry_run"`
	EndsAt    *string    `json:"ends_at"`
}

// IdleExtra is what a check of utilisation saw: the mean and the threshold of each resource in percent; a mean that is not
// known is nil.
type IdleExtra struct {
	Operator  string                 `json:"thresholds_check_operator"`
	Resources map[string][2]*float64 `json:"resources"`
}

// IdleReport is how one running session stands with idle checks, by their type.
type IdleReport struct {
	SessionID      string               `json:"session_id"`
	SessionName    string               `json:"session_name"`
	UserEmail      string               `json:"user_email"`
	AccessKey      string               `json:"access_key"`
	ProjectID      string               `json:"project_id"`
	ResourceGroup  string               `json:"resource_group"`
	StartedAt      string               `json:"started_at"`
	LastAccess     *string              `json:"last_access"`
	KeptAliveUntil *string              `json:"kept_alive_until"`
	Checks         map[string]IdleCheck `json:"idle_checks"`
}

// IdleCheckerList is the answer of GET /resource/idle-checkers.
type IdleCheckerList struct {
	Checkers []IdleChecker `json:"idle_checkers"`
}

// IdleReportList is the answer of GET /resource/idle-report; Total is how many sessions were looked at.
type IdleReportList struct {
	Sessions []IdleReport `json:"sessions"`
	Total    int          `json:"total"`
}

// KeepAliveRequest is the body of POST /session/{s}/keep-alive.
type KeepAliveRequest struct {
	For    string `json:"for"` // such as 90m or 2h
	Reason string `json:"reason"`
}

// KeptAlive says until when a session is kept from ending as idle (ISO time); nil is not at all.
type KeptAlive struct {
	Until *string `json:"until"`
}

// IdleCheckers lists all checkers.
func (c *Client) IdleCheckers(ctx context.Context) ([]IdleChecker, error) {
	var out IdleCheckerList
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
	var out IdleReportList
	err = c.call(ctx, request{method: http.MethodGet, path: "/resource/idle-report"}, &out)
	return out.Sessions, out.Total, err
}

// KeepAlive keeps a session from ending as idle; duration is a text such as 90m or 2h. It returns until when (ISO time).
func (c *Client) KeepAlive(ctx context.Context, session, duration, reason string) (string, error) {
	var out KeptAlive
	r := request{method: http.MethodPost, json: KeepAliveRequest{For: duration, Reason: reason}}
	err := c.sessionCall(ctx, session, "keep-alive", r, &out)
	return deref(out.Until), err
}

// EndKeepAlive takes back what KeepAlive gave.
func (c *Client) EndKeepAlive(ctx context.Context, session string) error {
	return c.sessionCall(ctx, session, "keep-alive", request{method: http.MethodDelete}, nil)
}
