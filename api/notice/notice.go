// Package notice is the part of the API about notices by e-mail and webhook: where a user hears of what, the last notices, and for
// receivers of webhooks what they get and whether it is genuine.
package notice

import (
	"context"
	"net/http"

	"berth.dev/berth/api"
)

// Preferences are where the caller hears of what: the answer of GET and PUT /notices/preferences.
type Preferences struct {
	// Kinds are all kinds of notices: ended, failed, idle, shared.
	Kinds []string `json:"kinds"`
	// Email is where e-mails go. NoEmail says why none are sent; it is empty when they are.
	Email      string   `json:"email"`
	NoEmail    string   `json:"no_email"`
	EmailKinds []string `json:"email_kinds"`
	// WebhookURL is empty when there is no webhook.
	WebhookURL   string   `json:"webhook_url"`
	WebhookKinds []string `json:"webhook_kinds"`
	// WebhookSecret signs what the webhook gets. It is in the answer to the request that made it, and nowhere else.
	WebhookSecret string `json:"webhook_secret,omitempty"`
}

// PreferenceChange is the body of PUT /notices/preferences: all of it replaces what was there.
type PreferenceChange struct {
	EmailKinds   []string `json:"email_kinds"`
	WebhookURL   string   `json:"webhook_url"`
	WebhookKinds []string `json:"webhook_kinds"`
	// NewSecret asks for a new secret. A new address always gets one.
	NewSecret bool `json:"new_secret,omitempty"`
}

// Trial is the body of POST /notices/test.
type Trial struct {
	Channel string `json:"channel"` // email or webhook
}

// Tried names the notice that a trial sends.
type Tried struct {
	ID string `json:"id"`
}

// Delivery is a notice on one channel.
type Delivery struct {
	ID      string   `json:"id"`
	Channel string   `json:"channel"`
	Kind    string   `json:"kind"`
	At      api.Time `json:"at"`
	Subject *Subject `json:"subject"`
	Reason  string   `json:"reason"`
	Text    string   `json:"text"`
	// State is waiting, sent or failed; what failed is not tried again.
	State    string `json:"state"`
	Attempts int    `json:"attempts"`
	// NextAt is when it is tried again, DoneAt when it arrived or was given up, Error what went wrong last.
	NextAt *api.Time `json:"next_at"`
	DoneAt *api.Time `json:"done_at"`
	Error  string    `json:"error"`
}

// Deliveries is the answer of GET /notices: the newest first.
type Deliveries struct {
	Items []Delivery `json:"items"`
}

// Message is the body of a webhook.
type Message struct {
	// ID is the same whenever the notice comes again.
	ID   string   `json:"id"`
	Kind string   `json:"kind"`
	At   api.Time `json:"at"`
	// Subject is what it tells of; null for a test.
	Subject *Subject `json:"subject"`
	Reason  string   `json:"reason,omitempty"`
	Text    string   `json:"text"`
}

// Subject is a session or a folder.
type Subject struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	Name string `json:"name"`
}

const preferences = "/notices/preferences"

// Get reads the caller's preferences.
func Get(ctx context.Context, c *api.Client) (Preferences, error) {
	var out Preferences
	err := c.Get(ctx, preferences, nil, &out)
	return out, err
}

// Set replaces the caller's preferences.
func Set(ctx context.Context, c *api.Client, body PreferenceChange) (Preferences, error) {
	var out Preferences
	err := c.Do(ctx, http.MethodPut, preferences, body, &out)
	return out, err
}

// Try has a notice sent that tells of nothing.
func Try(ctx context.Context, c *api.Client, channel string) (Tried, error) {
	var out Tried
	err := c.Do(ctx, http.MethodPost, "/notices/test", Trial{channel}, &out)
	return out, err
}

// List lists the caller's last notices, the newest first.
func List(ctx context.Context, c *api.Client) (Deliveries, error) {
	var out Deliveries
	err := c.Get(ctx, "/notices", nil, &out)
	return out, err
}
