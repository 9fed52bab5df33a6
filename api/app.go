package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Protocols of apps.
const (
	AppHTTP    = "http"
	AppTCP     = "tcp"
	AppPreopen = "preopen"
	AppVNC     = "vnc"
	AppRDP     = "rdp"
	AppPTY     = "pty"
)

// States of apps. They are "" where the manager does not know them.
const (
	AppStopped  = "stopped"
	AppStarting = "starting"
	AppReady    = "ready"
	AppFailed   = "failed"
	AppMissing  = "missing"
)

// Origins of apps: the session's own services, what its image or request declares, well-known ones that are installed in it,
// and ports that were noticed.
const (
	AppIntrinsic = "intrinsic"
	AppDeclared  = "declared"
	AppInstalled = "installed"
	AppNoticed   = "noticed"
)

// App is an app of a session, with how it is doing.
type App struct {
	ServicePort
	State  string `json:"state,omitempty"`
	Detail string `json:"detail,omitempty"` // what happened and what to do next, for people
	Origin string `json:"origin,omitempty"`
}

// HTTP reports whether the app speaks HTTP of any version; all others carry bytes.
func (a App) HTTP() bool { return speaksHTTP(a.Protocol) }

func speaksHTTP(protocol string) bool {
	switch protocol {
	case AppHTTP, AppPreopen, "h2", "grpc", "":
		return true
	}
	return false
}

// HasPort reports whether the app listens on port of the container.
func (a App) HasPort(port int) bool {
	for _, p := range a.Ports {
		if p == port {
			return true
		}
	}
	return false
}

// Apps lists the apps of a session.
func (c *Client) Apps(ctx context.Context, session string) ([]App, error) {
	p, err := sessionPath("/stream/session", session, "apps")
	if err != nil {
		return nil, err
	}
	out := []App{}
	err = c.call(ctx, request{method: http.MethodGet, path: p}, &out)
	return out, err
}

// StartApp asks for an app to run.
type StartApp struct {
	App  string
	Port int // inside the container; 0 means the app's first
	// Envs and Arguments are limited to what the image allows. A value of Arguments is a string, a list of strings, or nil
	// for a flag without a value.
	Envs      map[string]string
	Arguments map[string]any
}

// StartAppRequest is the body of POST /session/{s}/start-service and, without Envs and Arguments, of the one for a ticket.
type StartAppRequest struct {
	App  string `json:"app"`
	Port int    `json:"port,omitempty"`
	// Envs and Arguments are JSON objects in a text.
	Envs      string `json:"envs,omitempty"`
	Arguments string `json:"arguments,omitempty"`
}

// StopAppRequest is the body of POST /session/{s}/shutdown-service.
type StopAppRequest struct {
	App string `json:"service_name"`
}

// ProxyVersion tells which protocol of app proxies a resource group uses.
type ProxyVersion struct {
	Version string `json:"wsproxy_version"`
}

// Launch is the right to publish an app, for a short while.
type Launch struct {
	Token string `json:"token"`
	// Proxy is the base URL of the app proxy.
	Proxy string `json:"wsproxy_addr"`
}

// StartApp starts an app, waits until it answers, and returns the right to publish it. An app that runs goes on.
func (c *Client) StartApp(ctx context.Context, session string, s StartApp) (Launch, error) {
	body := StartAppRequest{App: s.App, Port: s.Port}
	for _, f := range []struct {
		name string
		v    any
		to   *string
	}{{"envs", s.Envs, &body.Envs}, {"arguments", s.Arguments, &body.Arguments}} {
		if b, err := json.Marshal(f.v); err != nil {
			return Launch{}, fmt.Errorf("write %s: %w", f.name, err)
		} else if string(b) != "null" {
			*f.to = string(b)
		}
	}
	var out Launch
	err := c.sessionCall(ctx, session, "start-service", request{method: http.MethodPost, json: body, timeout: slowTimeout}, &out)
	return out, err
}

// StopApp stops an app and closes the circuits of it.
func (c *Client) StopApp(ctx context.Context, session, app string) error {
	r := request{method: http.MethodPost, json: StopAppRequest{App: app}, timeout: slowTimeout}
	return c.sessionCall(ctx, session, "shutdown-service", r, nil)
}

// Publish is how an app is made reachable.
type Publish struct {
	App      string
	Protocol string
	Port     int  // inside the container; 0 means the app's first
	Public   bool // to anybody, without a login
	// Allowed are the addresses and prefixes that may visit; empty allows all.
	Allowed []string
	// Mode is port or subdomain; empty leaves it to the proxy. Label is a wish for the subdomain, ProxyPort for the port.
	Mode      string
	Label     string
	ProxyPort int
}

// Published is an app as it is reachable now.
type Published struct {
	// URL opens the app for whoever it was made for; it works once and for minutes only.
	URL   string `json:"url"`
	Reuse bool   `json:"reuse"`
	// Gateway is host:port of an app that is no HTTP app; empty else.
	Gateway string `json:"gateway,omitempty"`
}

// PublishApp asks the app proxy for a way to an app that StartApp started. session is the session's id.
func (c *Client) PublishApp(ctx context.Context, l Launch, session string, p Publish) (Published, error) {
	q := url.Values{"app": {p.App}, "protocol": {or(p.Protocol, AppHTTP)}}
	set := func(name, v string) {
		if v != "" {
			q.Set(name, v)
		}
	}
	set("allowed_client_ips", strings.Join(p.Allowed, ","))
	set("mode", p.Mode)
	set("subdomain", p.Label)
	if p.Public {
		q.Set("open_to_public", "true")
	}
	if p.Port != 0 {
		q.Set("app_port", strconv.Itoa(p.Port))
	}
	if p.ProxyPort != 0 {
		q.Set("port", strconv.Itoa(p.ProxyPort))
	}
	var added struct {
		URL string `json:"url"`
	}
	base := strings.TrimRight(l.Proxy, "/")
	add := base + "/v2/proxy/" + url.PathEscape(l.Token) + "/" + url.PathEscape(session) + "/add?" + q.Encode()
	if err := c.askProxy(ctx, base, add, &added); err != nil {
		return Published{}, err
	}
	var ready struct {
		RedirectURL string `json:"redirect_url"`
		Reuse       bool   `json:"reuse"`
	}
	if err := c.askProxy(ctx, base, added.URL, &ready); err != nil {
		return Published{}, err
	}
	out := Published{URL: ready.RedirectURL, Reuse: ready.Reuse}
	if speaksHTTP(p.Protocol) {
		return out, nil
	}
	var tcp struct {
		RedirectURI string `json:"redirectURI"`
		Redirect    string `json:"redirect"`
	}
	sep := "?"
	if strings.Contains(ready.RedirectURL, "?") {
		sep = "&"
	}
	if err := c.askProxy(ctx, base, ready.RedirectURL+sep+"do-not-redirect=true", &tcp); err != nil {
		return out, err
	}
	gateway := ""
	if u, err := url.Parse(or(tcp.RedirectURI, tcp.Redirect)); err == nil {
		gateway = u.Query().Get("gateway")
	}
	out.Gateway = strings.TrimPrefix(gateway, "tcp://")
	if out.Gateway == "" {
		return out, fmt.Errorf("the app proxy at %s did not say on which port the app %s is", base, p.App)
	}
	return out, nil
}

// maxProxyReply bounds a reply of the app proxy in bytes.
const maxProxyReply = 64 << 10

// proxyError marks failures that end at the app proxy, not at the manager.
type proxyError struct {
	base string
	err  error
}

func (e *proxyError) Error() string {
	return fmt.Sprintf("reach the app proxy at %s: %v", e.base, e.err)
}
func (e *proxyError) Unwrap() error { return e.err }

// IsProxyUnreachable reports whether err says that the app proxy could not be reached from here.
func IsProxyUnreachable(err error) bool {
	var e *proxyError
	return errors.As(err, &e)
}

// askProxy gets JSON from the app proxy. Nothing of the client's own keys is sent there: the address carries the right.
func (c *Client) askProxy(ctx context.Context, base, target string, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quickTimeout,
		fmt.Errorf("no answer from the app proxy within %s: %w", quickTimeout, context.DeadlineExceeded))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil || req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return fmt.Errorf("the app proxy at %s answered an address that cannot be used", base)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.agent)
	resp, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return &proxyError{base, bare(err)}
	}
	defer drain(resp)
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return readProblem("publish app", resp.StatusCode, resp.Body)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxProxyReply)).Decode(out); err != nil {
		return fmt.Errorf("read the reply of the app proxy at %s: %w", base, err)
	}
	return nil
}
