package credential

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"berth.dev/berth/api"
)

// Provider is an identity provider that people log in at.
type Provider struct {
	Name  string `json:"name"`
	Title string `json:"title"`
}

// Providers are all of them.
type Providers struct {
	Items []Provider `json:"items"`
}

// OIDCStart is the body of POST /auth/oidc/begin, of web servers.
type OIDCStart struct {
	Provider string `json:"provider"`
	Origin   string `json:"origin"`
	Next     string `json:"next,omitempty"`
	Force    bool   `json:"force,omitempty"`
}

// OIDCBegun is where a browser goes, and what it brings back.
type OIDCBegun struct {
	URL  string `json:"url"`
	Flow string `json:"flow"`
}

// OIDCAnswer is the body of POST /auth/oidc/finish: what the provider and the browser sent.
type OIDCAnswer struct {
	Provider string `json:"provider"`
	Flow     string `json:"flow"`
	State    string `json:"state"`
	Code     string `json:"code,omitempty"`
	Issuer   string `json:"iss,omitempty"`
	Error    string `json:"error,omitempty"`
	Details  string `json:"error_description,omitempty"`
}

// OIDCDone is a login with the path where the browser goes.
type OIDCDone struct {
	api.LoginReply
	Next string `json:"next"`
}

// Ceremony is what a browser gives to an authenticator (the options of navigator.credentials), and what comes back with the answer.
type Ceremony struct {
	Options json.RawMessage `json:"options"`
	Flow    string          `json:"flow"`
}

// Passkey is one of a user.
type Passkey struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt api.Time  `json:"created_at"`
	LastUsed  *api.Time `json:"last_used"`
	// Cloned: there are two of it, so it opens nothing.
	Cloned bool `json:"cloned"`
}

// Passkeys are those of a user.
type Passkeys struct {
	Items []Passkey `json:"items"`
}

// Identity is who a user is at an identity provider.
type Identity struct {
	Provider  string   `json:"provider"`
	Subject   string   `json:"subject"`
	Email     string   `json:"email"`
	GivenRole string   `json:"given_role"` // that the provider gave, "" for none
	CreatedAt api.Time `json:"created_at"`
	LastSeen  api.Time `json:"last_seen"`
}

// Identities are those of a user.
type Identities struct {
	Items []Identity `json:"items"`
}

// of is the query about a user; "" is the caller.
func of(user string) url.Values {
	if user == "" {
		return nil
	}
	return url.Values{"user": {user}}
}

// ListIdentities lists who a user (email; "" is the caller) is at identity providers.
func ListIdentities(ctx context.Context, c *api.Client, user string) (Identities, error) {
	var out Identities
	err := c.Get(ctx, "/auth/identities", of(user), &out)
	return out, err
}

// Unlink ends the identity of a user (email; "" is the caller) at a provider.
func Unlink(ctx context.Context, c *api.Client, user, provider string) error {
	return c.Do(ctx, http.MethodDelete, "/auth/identities/"+url.PathEscape(provider), map[string]string{"user": user}, nil)
}

// ListPasskeys lists the passkeys of a user (email; "" is the caller).
func ListPasskeys(ctx context.Context, c *api.Client, user string) (Passkeys, error) {
	var out Passkeys
	err := c.Get(ctx, "/auth/passkeys", of(user), &out)
	return out, err
}

// DeletePasskey forgets a passkey.
func DeletePasskey(ctx context.Context, c *api.Client, id string) error {
	return c.Do(ctx, http.MethodDelete, "/auth/passkeys/"+url.PathEscape(id), nil, nil)
}
