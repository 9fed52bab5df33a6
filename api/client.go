package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"berth.dev/berth/api/endpoint"
	"berth.dev/berth/api/pin"
)

const (
	// maxReply bounds a JSON reply in bytes.
	maxReply = 64 << 20
	// quickTimeout bounds a request that the manager answers from its own state.
	quickTimeout = 60 * time.Second
	// slowTimeout bounds a request that waits for an agent.
	slowTimeout = 10 * time.Minute
)

// Client talks to the managers of one cluster as one keypair. It is safe for concurrent use.
type Client struct {
	managers *endpoint.Managers

	cfg   Config
	http  *http.Client
	now   func() time.Time
	agent string
	// tickets are for connections to apps.
	tickets tickets
}

// Option changes a client at its making.
type Option func(*Client)

// WithTransport replaces the HTTP transport.
func WithTransport(rt http.RoundTripper) Option { return func(c *Client) { c.http.Transport = rt } }

// WithUserAgent replaces the User-Agent header.
func WithUserAgent(agent string) Option { return func(c *Client) { c.agent = agent } }

// New makes a client. It opens no connection.
func New(cfg Config, opts ...Option) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := endpoint.New(append([]string{cfg.Endpoint}, cfg.Others...))
	if err != nil {
		return nil, err
	}
	c := &Client{managers: m, cfg: cfg, now: time.Now, agent: "berth"}
	var secure *tls.Config
	if cfg.Fingerprint != "" {
		fingerprint, err := pin.Parse(cfg.Fingerprint)
		if err != nil {
			return nil, err
		}
		secure = pin.TLS(fingerprint)
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSClientConfig:     secure,
			TLSHandshakeTimeout: 10 * time.Second,
			IdleConnTimeout:     60 * time.Second,
			MaxIdleConnsPerHost: 8,
			DisableCompression:  true,
		},
		// A redirect would resend signed headers to an address that nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for _, o := range opts {
		o(c)
	}
	return c, nil
}

// Config returns what the client was made with.
func (c *Client) Config() Config { return c.cfg }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// request is one call before it is signed.
type request struct {
	method string
	path   string // escaped
	query  url.Values
	json   any // marshalled as the body when not nil
	// body with its media type is an alternative to json.
	body        io.Reader
	contentType string
	accept      string
	header      http.Header
	timeout     time.Duration // of the whole call; 0 = none beyond ctx
	// reads says that the request changes nothing although its method is not GET.
	reads bool
}

func (r request) op() string { return r.method + " " + r.path }

// Get reads from a path of the API, which is escaped, and decodes the JSON reply into out.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	return c.call(ctx, request{method: http.MethodGet, path: path, query: query}, out)
}

// Do sends a request with a JSON body (nil for none) to a path of the API and decodes the JSON reply into out, which may be nil.
func (c *Client) Do(ctx context.Context, method, path string, body, out any) error {
	return c.call(ctx, request{method: method, path: path, json: body}, out)
}

// call sends a request and decodes its JSON reply into out, which may be nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	if r.timeout == 0 {
		r.timeout = quickTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout,
		fmt.Errorf("%s: no answer within %s: %w", r.op(), r.timeout, context.DeadlineExceeded))
	defer cancel()
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer drain(resp)
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	body := &io.LimitedReader{R: resp.Body, N: maxReply + 1}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		if body.N <= 0 {
			return fmt.Errorf("%s: the reply is larger than %d MiB", r.op(), maxReply>>20)
		}
		return fmt.Errorf("%s: read reply: %w", r.op(), err)
	}
	return nil
}

// send signs and sends a request; the caller closes the body. Every status but 2xx is an error.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var payload []byte
	if r.json != nil {
		b, err := json.Marshal(r.json)
		if err != nil {
			return nil, fmt.Errorf("%s: write request: %w", r.op(), err)
		}
		payload, r.contentType = b, "application/json"
	}
	for try := c.managers.Attempts(r.reads || endpoint.ChangesNothing(r.method)); ; {
		var body io.Reader
		switch {
		case payload != nil:
			body = bytes.NewReader(payload)
		case r.body != nil:
			// The transport closes what it could not send, and another manager may get it. Whoever made the body closes it.
			body = struct{ io.Reader }{r.body}
		}
		req, err := c.signed(ctx, try.Base(), r, body, payload)
		if err != nil {
			return nil, err
		}
		resp, err := c.http.Do(req)
		if err == nil {
			if resp.StatusCode < 200 || resp.StatusCode > 299 {
				defer drain(resp)
				return nil, readProblem(r.op(), resp.StatusCode, resp.Body)
			}
			return resp, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		at := try.Base()
		if !try.Again(ctx, err) {
			return nil, unreached(ctx, at, err)
		}
	}
}

// unreached is the error of a request that a manager did not answer.
func unreached(ctx context.Context, at *url.URL, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("reach the manager at %s: %w", at, bare(err))
}

// bare drops the URL that net/http repeats in its errors.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// signed makes and signs a request to the manager at base; payload is what body holds, nil when that is not known.
func (c *Client) signed(ctx context.Context, base *url.URL, r request, body io.Reader, payload []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, r.url(base), body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.op(), err)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	switch {
	case r.contentType != "":
		req.Header.Set("Content-Type", r.contentType)
	case body == nil && r.accept == "":
		req.Header.Set("Content-Type", "text/plain")
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set(HeaderDomain, c.cfg.Domain)
	digest := BodyDigest(payload)
	if body != nil && payload == nil {
		digest = StreamBody
	}
	c.Prove(req, digest)
	return req, nil
}

// Way is where requests go now, and through what.
func (c *Client) Way() (*url.URL, http.RoundTripper) {
	return c.managers.Attempts(false).Base(), c.http.Transport
}

// Prove says whose request this is: signed by the keypair, or with the login or token that the client has.
func (c *Client) Prove(req *http.Request, digest string) {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	SignStrictly(req, c.cfg.AccessKey, string(c.cfg.SecretKey), c.now(), Strict{Nonce: hex.EncodeToString(nonce[:]), Body: digest})
	switch {
	case c.cfg.Login != "":
		req.Header.Del("Authorization") // the web server signs
		req.Header.Set(HeaderLogin, string(c.cfg.Login))
	case c.cfg.Token != "":
		req.Header.Set("Authorization", "Bearer "+string(c.cfg.Token))
	}
}

func (r request) url(base *url.URL) string {
	s := base.Scheme + "://" + base.Host + base.EscapedPath() + r.path
	if len(r.query) > 0 {
		s += "?" + r.query.Encode()
	}
	return s
}

// drain lets the connection be used again, unless much is left unread.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	_ = resp.Body.Close()
}

// sessionPath builds /session/{s}/verb and its like; prefix is /session or /stream/session.
func sessionPath(prefix, session, verb string) (string, error) {
	switch session {
	case "", "_", ".", "..":
		return "", fmt.Errorf("%q is not the name or id of a session", session)
	}
	p := prefix + "/" + url.PathEscape(session)
	if verb != "" {
		p += "/" + verb
	}
	return p, nil
}

// sessionCall is call on a path of a session.
func (c *Client) sessionCall(ctx context.Context, session, verb string, r request, out any) error {
	p, err := sessionPath("/session", session, verb)
	if err != nil {
		return err
	}
	r.path = p
	return c.call(ctx, r, out)
}
