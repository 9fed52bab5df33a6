// Package login opens and ends logins by password at a web server of a cluster. What a login opens is the web server's /func, which is
// an endpoint for clients: they send the login's token instead of signing.
package login

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/api/endpoint"
	"berth.dev/berth/api/pin"
)

const (
	maxReply = 1 << 20
	patience = 30 * time.Second
	noWords  = "the server says no more"
)

// ErrNoWebServer means that something else than a web server of a cluster answers at the address.
var ErrNoWebServer = errors.New("no web server of a cluster")

// Refused is why a login did not open.
type Refused struct {
	// Reason is the last part of the problem's type, such as auth-failed.
	Reason string
	// Text is what the server says.
	Text string
}

// The reasons that callers tell apart.
const (
	// ReasonOTP asks for a one-time password.
	ReasonOTP = "require-totp-authentication"
	// ReasonEnrol asks the user to enrol a second factor first.
	ReasonEnrol = "require-totp-registration"
	// ReasonFull says that the user has as many logins as allowed.
	ReasonFull = "active-login-session-exists"
)

func (r *Refused) Error() string { return r.Text }

// Server is a web server.
type Server struct {
	address string
	http    *http.Client
	agent   string
}

// New reads the address of a web server, such as https://berth.example.org. fingerprint pins its certificate authority; "" means that the
// system's authorities count. agent is how the program names itself in lists of logins.
func New(address, fingerprint, agent string) (*Server, error) {
	u, err := endpoint.Parse(strings.TrimRight(address, "/"))
	if err != nil {
		return nil, err
	}
	var secure *tls.Config
	if fingerprint != "" {
		f, err := pin.Parse(fingerprint)
		if err != nil {
			return nil, err
		}
		secure = pin.TLS(f)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = secure
	return &Server{address: u.String(), agent: agent, http: &http.Client{
		Transport: transport, Timeout: patience,
		// A redirect would send a password to an address that nobody named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Address is that of the web server, without a slash at its end.
func (s *Server) Address() string { return s.address }

// Endpoint is what clients use as the address of a manager.
func (s *Server) Endpoint() string { return s.address + "/func" }

// AddressOf is the web server's address that belongs to an endpoint; "" when the endpoint is none of a web server.
func AddressOf(address string) string {
	web, ok := strings.CutSuffix(strings.TrimRight(address, "/"), "/func")
	if !ok {
		return ""
	}
	return web
}

// Close drops idle connections.
func (s *Server) Close() { s.http.CloseIdleConnections() }

// Credentials are what a user knows.
type Credentials struct {
	// User is the e-mail address or the name.
	User     string
	Password api.Secret
	// OTP is the one-time password, where the user has a second factor.
	OTP api.Secret
	// Force ends the oldest login where the user has as many as allowed.
	Force bool
}

// Login is an open login.
type Login struct {
	// Token is its secret.
	Token     api.Secret
	AccessKey string
	Role      string
}

type reply struct {
	Authenticated bool `json:"authenticated"`
	Data          *struct {
		AccessKey string `json:"access_key"`
		Role      string `json:"role"`
		Type      string `json:"type"`
		Title     string `json:"title"`
		Details   string `json:"details"`
	} `json:"data"`
}

// Open logs in. An error of type *Refused says why the server does not let the user in.
func (s *Server) Open(ctx context.Context, c Credentials) (Login, error) {
	body := map[string]any{"username": c.User, "password": string(c.Password)}
	if c.OTP != "" {
		body["otp"] = string(c.OTP)
	}
	if c.Force {
		body["force"] = true
	}
	var r reply
	header, err := s.do(ctx, "/server/login", "", body, &r)
	if err != nil {
		return Login{}, fmt.Errorf("log in: %w", err)
	}
	switch token := header.Get(api.HeaderLogin); {
	case r.Data == nil:
		return Login{}, fmt.Errorf("log in at %s: %w", s.address, ErrNoWebServer)
	case !r.Authenticated:
		return Login{}, fmt.Errorf("log in: %w", &Refused{Reason: slug(r.Data.Type), Text: cmp.Or(r.Data.Details, r.Data.Title, noWords)})
	case token == "":
		return Login{}, fmt.Errorf("log in at %s: the answer has no token: %w", s.address, ErrNoWebServer)
	default:
		return Login{Token: api.Secret(token), AccessKey: r.Data.AccessKey, Role: r.Data.Role}, nil
	}
}

// Check reports whether a login goes on; without a token it tells that a web server is there. The error is ErrNoWebServer when another
// program answers.
func (s *Server) Check(ctx context.Context, token api.Secret) (bool, error) {
	r := struct {
		Authenticated *bool `json:"authenticated"`
	}{}
	if _, err := s.do(ctx, "/server/login-check", token, struct{}{}, &r); err != nil {
		return false, err
	}
	if r.Authenticated == nil {
		return false, fmt.Errorf("%s: %w", s.address, ErrNoWebServer)
	}
	return *r.Authenticated, nil
}

// End ends a login; it is no error when it has ended before.
func (s *Server) End(ctx context.Context, token api.Secret) error {
	_, err := s.do(ctx, "/server/logout", token, struct{}{}, nil)
	if err != nil {
		return fmt.Errorf("log out: %w", err)
	}
	return nil
}

func (s *Server) do(ctx context.Context, path string, token api.Secret, body, out any) (http.Header, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", s.agent)
	if token != "" {
		req.Header.Set(api.HeaderLogin, string(token))
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("reach the web server at %s: %w", s.address, err)
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", s.address, err)
	}
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, fmt.Errorf("%s answers with a redirect to %q: log in there", s.address, resp.Header.Get("Location"))
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed:
		return nil, fmt.Errorf("%s: %w", s.address, ErrNoWebServer)
	case resp.StatusCode != http.StatusOK:
		var p api.Problem
		if json.Unmarshal(raw, &p) != nil || p.Type == "" {
			return nil, fmt.Errorf("%s answers %s", s.address, resp.Status)
		}
		return nil, &Refused{Reason: p.Slug(), Text: cmp.Or(p.Msg, p.Title, noWords)}
	}
	if out != nil && json.Unmarshal(raw, out) != nil {
		return nil, fmt.Errorf("%s: %w", s.address, ErrNoWebServer)
	}
	return resp.Header, nil
}

func slug(kind string) string { return kind[strings.LastIndexByte(kind, '/')+1:] }
