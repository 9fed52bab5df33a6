// Package template is the part of the API about templates of sessions. Its functions take the client that they ask with.
package template

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"berth.dev/berth/api"
)

// Kinds of templates, as paths name them.
const (
	Session = "session"
	Cluster = "cluster"
)

// Request is the body of POST /template/{kind} and PUT /template/{kind}/{id}. The payload is JSON or YAML: a template, a list of
// {name, template}, or several documents.
type Request struct {
	Payload string `json:"payload"`
	Project string `json:"group_name,omitempty"`
	Domain  string `json:"domain_name,omitempty"`
	Owner   string `json:"owner_access_key,omitempty"`
}

// Created names a template that was made.
type Created struct {
	ID   string `json:"id"`
	User string `json:"user"`
}

// Template is a row of GET /template/{kind}.
type Template struct {
	Name      string          `json:"name"`
	ID        string          `json:"id"`
	CreatedAt api.Time        `json:"created_at"`
	IsOwner   bool            `json:"is_owner"`
	User      string          `json:"user"`
	ProjectID string          `json:"group"`
	UserEmail string          `json:"user_email"`
	Project   string          `json:"group_name"`
	Domain    string          `json:"domain_name"`
	Type      string          `json:"type"` // task or cluster
	Template  json.RawMessage `json:"template"`
}

// Info is the answer of GET /template/{kind}/{id}?format=json; format=yaml answers the document alone.
type Info struct {
	Template  json.RawMessage `json:"template"`
	Name      string          `json:"name"`
	User      string          `json:"user_uuid"`
	ProjectID string          `json:"group_id"`
	Domain    string          `json:"domain_name"`
}

// Start is the body of POST /session/_/create-from-template and, for a cluster template, of POST /session/_/create-cluster.
// What it says counts instead of what the template says.
type Start struct {
	TemplateID string `json:"template_id"`
	Name       string `json:"name,omitempty"`
	Group      string `json:"group,omitempty"`
	// EnqueueOnly answers at once instead of waiting until the session runs.
	EnqueueOnly bool `json:"enqueueOnly"`
}

func path(kind, ref string) string { return "/template/" + kind + "/" + url.PathEscape(ref) }

// Create stores the templates of a payload.
func Create(ctx context.Context, c *api.Client, kind string, body Request) ([]Created, error) {
	var out []Created
	err := c.Do(ctx, http.MethodPost, "/template/"+kind, body, &out)
	return out, err
}

// List lists the caller's templates, or all that the caller may see.
func List(ctx context.Context, c *api.Client, kind string, all bool) ([]Template, error) {
	q := url.Values{}
	if all {
		q.Set("all", "true")
	}
	var out []Template
	err := c.Get(ctx, "/template/"+kind, q, &out)
	return out, err
}

// Get finds a template by id, or by name among the caller's own.
func Get(ctx context.Context, c *api.Client, kind, ref string) (Info, error) {
	var out Info
	err := c.Get(ctx, path(kind, ref), url.Values{"format": {"json"}}, &out)
	return out, err
}

// Replace writes a template anew.
func Replace(ctx context.Context, c *api.Client, kind, ref, payload string) error {
	return c.Do(ctx, http.MethodPut, path(kind, ref), Request{Payload: payload}, nil)
}

// Delete deletes a template.
func Delete(ctx context.Context, c *api.Client, kind, ref string) error {
	return c.Do(ctx, http.MethodDelete, path(kind, ref), nil, nil)
}

// CreateSession creates a session from a template.
func CreateSession(ctx context.Context, c *api.Client, kind string, body Start) (api.CreatedSession, error) {
	to := "/session/_/create-from-template"
	if kind == Cluster {
		to = "/session/_/create-cluster"
	}
	var out api.CreatedSession
	err := c.Do(ctx, http.MethodPost, to, body, &out)
	return out, err
}
