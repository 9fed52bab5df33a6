// Package credential is the part of the API that is about how callers prove who they are: API tokens, service accounts, one-time passwords.
// Its functions take the client that they ask with.
package credential

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"berth.dev/berth/api"
)

// Token is an API token of a user, without its secret.
type Token struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Email     string `json:"email"`
	Service   bool   `json:"is_service"` // of a service account
	AccessKey string `json:"access_key"`
	ReadOnly  bool   `json:"read_only"`
	// Areas and Projects (ids) are those that the token is for; empty means all.
	Areas     []string  `json:"areas"`
	Projects  []string  `json:"projects"`
	CreatedAt api.Time  `json:"created_at"`
	ExpiresAt api.Time  `json:"expires_at"`
	LastUsed  *api.Time `json:"last_used"`
	// Provider is the identity provider that the token speaks for by SCIM; it is for nothing else then.
	Provider string `json:"scim_provider,omitempty"`
}

// NewToken is a token that was just made; its secret is shown here and never again.
type NewToken struct {
	Token
	Secret string `json:"token"`
}

// TokenPage is a page of tokens.
type TokenPage struct {
	Items      []Token `json:"items"`
	TotalCount int     `json:"total_count"`
}

// TokenRequest asks for a token.
type TokenRequest struct {
	Name string `json:"name"`
	// For is the email of the service account that the token is for; "" is the caller.
	For      string   `json:"for,omitempty"`
	ReadOnly bool     `json:"read_only,omitempty"`
	Areas    []string `json:"areas,omitempty"`
	Projects []string `json:"projects,omitempty"` // names or ids
	// Provider makes a token for SCIM alone.
	Provider string `json:"scim_provider,omitempty"`
	// ExpiresIn is a duration such as 720h, or seconds; "" is the server's choice.
	ExpiresIn string `json:"expires_in,omitempty"`
}

// ServiceAccount is a user that no password lets in.
type ServiceAccount struct {
	ID     string `json:"id"`
	Email  string `json:"email"`
	Domain string `json:"domain_name"`
}

// CreateToken makes an API token.
func CreateToken(ctx context.Context, c *api.Client, r TokenRequest) (NewToken, error) {
	var out NewToken
	err := c.Do(ctx, http.MethodPost, "/auth/tokens", r, &out)
	return out, err
}

// TokenQuery selects tokens: one's own, those of a user, or all that one may see.
type TokenQuery struct {
	User          string
	All           bool
	Limit, Offset int
}

// Tokens lists API tokens, the newest first.
func Tokens(ctx context.Context, c *api.Client, q TokenQuery) (TokenPage, error) {
	query := url.Values{}
	for name, n := range map[string]int{"limit": q.Limit, "offset": q.Offset} {
		if n > 0 {
			query.Set(name, strconv.Itoa(n))
		}
	}
	if q.User != "" {
		query.Set("user", q.User)
	}
	if q.All {
		query.Set("all", "true")
	}
	var out TokenPage
	err := c.Get(ctx, "/auth/tokens", query, &out)
	return out, err
}

// DeleteToken takes an API token back.
func DeleteToken(ctx context.Context, c *api.Client, id string) error {
	return c.Do(ctx, http.MethodDelete, "/auth/tokens/"+url.PathEscape(id), nil, nil)
}

// CreateServiceAccount makes a service account of a domain ("" is the caller's), which is a member of project ("" for none).
func CreateServiceAccount(ctx context.Context, c *api.Client, name, domain, project string) (ServiceAccount, error) {
	var out ServiceAccount
	err := c.Do(ctx, http.MethodPost, "/auth/service-accounts",
		map[string]string{"name": name, "domain": domain, "project": project}, &out)
	return out, err
}

// Ended reports whether the token has ended.
func (t Token) Ended(now time.Time) bool { return !now.Before(t.ExpiresAt.Time) }

// OTPStatus is what a user has as a second factor.
type OTPStatus struct {
	Activated bool `json:"totp_activated"`
	// Required says that the role of the user has to have one.
	Required bool `json:"required"`
	// RecoveryCodes are how many are left.
	RecoveryCodes int `json:"recovery_codes"`
}

// OTPEnrolment is a secret that awaits its first code.
type OTPEnrolment struct {
	Key string `json:"totp_key"` // base32
	URI string `json:"totp_uri"` // for a picture that phones read
}

// OTPConfirmed answers the first code: recovery codes, which are shown here and never again.
type OTPConfirmed struct {
	Success       bool     `json:"success"`
	RecoveryCodes []string `json:"recovery_codes"`
}

// SignedUp is the keypair of an account that somebody made for themselves.
type SignedUp struct {
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
}

// Done answers what has nothing to tell.
type Done struct{}
