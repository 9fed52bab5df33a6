package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Modes of circuits.
const (
	CircuitPort      = "port"
	CircuitSubdomain = "subdomain"
)

// Circuit is a published way to an app. It lasts until it is closed or expires, and no longer than its session's container.
type Circuit struct {
	ID          string   `json:"id"`
	App         string   `json:"app"`
	Protocol    string   `json:"protocol"`
	SessionID   string   `json:"session_id"`
	SessionName string   `json:"session_name"`
	Kernel      string   `json:"kernel"` // its name in the session: main1, sub1 and so on
	Mode        string   `json:"mode"`
	URL         string   `json:"url"`
	Public      bool     `json:"public"`
	Mine        bool     `json:"mine"`               // else it is shared with the caller
	Allowed     []string `json:"allowed_client_ips"` // addresses and prefixes; empty allows all
	Users       []string `json:"shared_users"`
	Projects    []string `json:"shared_projects"`
	CreatedAt   Time     `json:"created_at"`
	ExpiresAt   *Time    `json:"expires_at"`
	LastUsed    *Time    `json:"last_used"`
}

// HTTP reports whether visitors speak HTTP on the circuit; all others carry bytes.
func (k Circuit) HTTP() bool { return speaksHTTP(k.Protocol) }

// CircuitChange changes a circuit; what is nil stays.
type CircuitChange struct {
	Public   *bool      `json:"public,omitempty"`
	Allowed  *[]string  `json:"allowed_client_ips,omitempty"`
	Users    *[]string  `json:"shared_users,omitempty"`
	Projects *[]string  `json:"shared_projects,omitempty"`
	Expires  *time.Time `json:"expires_at,omitempty"`
	// RevokeTickets ends what visitors have at once; they have to enter anew.
	RevokeTickets bool `json:"revoke_tickets,omitempty"`
}

// Circuits lists the circuits that the caller owns or that are shared with them, of one session or, with "", of all.
func (c *Client) Circuits(ctx context.Context, session string) ([]Circuit, error) {
	q := url.Values{}
	if session != "" {
		q.Set("session", session)
	}
	out := []Circuit{}
	err := c.call(ctx, request{method: http.MethodGet, path: "/apps/circuits", query: q}, &out)
	return out, err
}

// ChangeCircuit changes who may use a circuit and until when; it takes effect on live connections too.
func (c *Client) ChangeCircuit(ctx context.Context, id string, ch CircuitChange) error {
	return c.call(ctx, request{method: http.MethodPatch, path: "/apps/circuits/" + url.PathEscape(id), json: ch}, nil)
}

// CloseCircuit takes a circuit away; its live connections end.
func (c *Client) CloseCircuit(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/apps/circuits/" + url.PathEscape(id)}, nil)
}

// Entry lets the caller into a circuit: browsers by URL, others by BaseURL and Ticket.
type Entry struct {
	URL       string `json:"url"`
	BaseURL   string `json:"base_url"`
	Circuit   string `json:"circuit"`
	Ticket    string `json:"ticket"`
	ExpiresAt Time   `json:"expires_at"`
}

// EnterCircuit returns an address that lets the caller into a circuit, once and for minutes only.
func (c *Client) EnterCircuit(ctx context.Context, id string) (string, error) {
	var out Entry
	err := c.call(ctx, request{method: http.MethodPost, path: "/apps/circuits/" + url.PathEscape(id) + "/enter"}, &out)
	return out.URL, err
}
