package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// TunnelProtocol is the upgrade that turns a request into a plain connection to an app.
const TunnelProtocol = "berth-conn/1"

const (
	// ticketMargin is how long before its end a ticket is not begun with any more.
	ticketMargin = 10 * time.Second
	// proxyAvoided is how long an app proxy that did not answer is left alone, so that not every connection waits for it.
	proxyAvoided = 30 * time.Second
	// proxyConnect bounds connecting to an app proxy and its answer.
	proxyConnect = 10 * time.Second
	// maxTickets bounds how many tickets are kept.
	maxTickets = 256
	// maxTunnelHead bounds the reply to a tunnel request in bytes.
	maxTunnelHead = 8 << 10
	// appFrame bounds a message of the WebSocket way in bytes.
	appFrame = 1 << 20
)

// AppTicket is the right to connect to an app without a browser.
type AppTicket struct {
	URL       string // base of the app proxy
	Circuit   string
	Ticket    Secret
	ExpiresAt time.Time
}

// TicketReply is the answer of POST /session/{s}/tickets; the ticket is in the clear.
type TicketReply struct {
	URL       string `json:"url"`
	Circuit   string `json:"circuit"`
	Ticket    string `json:"ticket"`
	ExpiresAt Time   `json:"expires_at"`
}

// AppTicket asks for the right to connect to an app; it starts the app. With an empty app, port names it.
func (c *Client) AppTicket(ctx context.Context, session, app string, port int) (AppTicket, error) {
	var out TicketReply
	r := request{method: http.MethodPost, json: StartAppRequest{App: app, Port: port}, timeout: slowTimeout}
	err := c.sessionCall(ctx, session, "tickets", r, &out)
	return AppTicket{URL: out.URL, Circuit: out.Circuit, Ticket: Secret(out.Ticket), ExpiresAt: out.ExpiresAt.Time}, err
}

// tickets are kept until they expire, by what they are for.
type tickets struct {
	mu   sync.Mutex
	kept map[string]*keptTicket
	// avoid holds until when an app proxy is not tried.
	avoid map[string]time.Time
}

type keptTicket struct {
	mu sync.Mutex // held while the ticket is fetched: callers at the same time share one
	AppTicket
}

func (t *tickets) of(key string) *keptTicket {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept == nil || len(t.kept) >= maxTickets {
		t.kept = map[string]*keptTicket{}
	}
	k := t.kept[key]
	if k == nil {
		k = &keptTicket{}
		t.kept[key] = k
	}
	return k
}

func (t *tickets) avoided(base string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.avoid[base])
}

func (t *tickets) shun(base string, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.avoid == nil || len(t.avoid) >= maxTickets {
		t.avoid = map[string]time.Time{}
	}
	t.avoid[base] = until
}

// DialApp connects to an app of a running session and starts it if need be. port chooses among the app's ports, 0 the
// first; with an empty app it names a port of the container. ctx bounds the opening only.
//
// The connection goes through the app proxy that the manager names, with a ticket that is used again until it expires.
// Such a connection can be closed by half: it has CloseWrite. When no app proxy is connected to the manager, or it cannot be
// reached from here or has no way to the app itself, the bytes go through the manager as messages of a WebSocket. That
// connection has no CloseWrite, since a WebSocket ends both ways at once, and it ends when the manager does.
func (c *Client) DialApp(ctx context.Context, session, app string, port int) (net.Conn, error) {
	key := session + "\x00" + app + "\x00" + strconv.Itoa(port)
	for try := 0; ; try++ {
		t, fresh, err := c.keptTicket(ctx, key, session, app, port)
		if noProxy(err) {
			return c.dialThroughManager(ctx, session, app, port, err)
		}
		if err != nil {
			return nil, err
		}
		if c.tickets.avoided(t.URL, c.now()) {
			return c.dialThroughManager(ctx, session, app, port, &proxyError{t.URL, errors.New("it did not answer a moment ago")})
		}
		conn, err := c.dialTunnel(ctx, t)
		var refused *Error
		switch {
		case err == nil:
			return conn, nil
		case (IsProxyUnreachable(err) || noWay(err)) && ctx.Err() == nil:
			c.tickets.shun(t.URL, c.now().Add(proxyAvoided))
			return c.dialThroughManager(ctx, session, app, port, err)
		case errors.As(err, &refused) && staleTicket(refused.Status) && !fresh && try == 0:
			c.tickets.forget(key, t)
		default:
			return nil, err
		}
	}
}

// staleTicket reports whether a refusal may be due to a ticket that was revoked, or to a circuit that is gone.
func staleTicket(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		return true
	}
	return false
}

// noWay reports whether the app proxy itself has no way to the app's agent; the manager may have one.
func noWay(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code != CodeAppRefused &&
		(e.Status == http.StatusBadGateway || e.Status == http.StatusServiceUnavailable || e.Status == http.StatusGatewayTimeout)
}

// noProxy reports whether the manager has no app proxy to offer, or knows no tickets.
func noProxy(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == CodeNoAppProxy || e.Status == http.StatusMethodNotAllowed ||
		e.Status == http.StatusNotFound && e.Slug() != SlugNotFound
}

// keptTicket returns a ticket that is still good; fresh says that it was fetched just now.
func (c *Client) keptTicket(ctx context.Context, key, session, app string, port int) (_ AppTicket, fresh bool, err error) {
	k := c.tickets.of(key)
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.now().Add(ticketMargin).Before(k.ExpiresAt) {
		return k.AppTicket, false, nil
	}
	t, err := c.AppTicket(ctx, session, app, port)
	if err != nil {
		return t, true, err
	}
	k.AppTicket = t
	return t, true, nil
}

func (t *tickets) forget(key string, used AppTicket) {
	k := t.of(key)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Ticket == used.Ticket {
		k.AppTicket = AppTicket{}
	}
}

// dialTunnel opens a tunnel through the app proxy.
func (c *Client) dialTunnel(ctx context.Context, t AppTicket) (_ net.Conn, err error) {
	base, err := url.Parse(strings.TrimRight(t.URL, "/"))
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("the manager named an app proxy at %q, which is no address", t.URL)
	}
	if strings.ContainsAny(string(t.Ticket), "\r\n") {
		return nil, errors.New("the manager sent a ticket that cannot be used")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, proxyConnect, fmt.Errorf("no answer within %s", proxyConnect))
	defer cancel()
	addr := base.Host
	if base.Port() == "" {
		addr = net.JoinHostPort(base.Hostname(), map[string]string{"http": "80", "https": "443"}[base.Scheme])
	}
	conn, err := (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &proxyError{t.URL, err}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil { // the deadline may strike the open connection
			err = &proxyError{t.URL, context.Cause(ctx)}
		}
		if err != nil {
			_ = conn.Close()
		}
	}()
	if base.Scheme == "https" {
		secure := tls.Client(conn, c.tunnelTLS(base.Hostname()))
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, &proxyError{t.URL, err}
		}
		conn = secure
	}
	head := "POST " + base.EscapedPath() + "/v2/tunnel?circuit=" + url.QueryEscape(t.Circuit) + " HTTP/1.1\r\nHost: " + base.Host +
		"\r\nUser-Agent: " + c.agent + "\r\nConnection: Upgrade\r\nUpgrade: " + TunnelProtocol +
		"\r\nAuthorization: Berth " + string(t.Ticket) + "\r\nContent-Length: 0\r\n\r\n"
	if _, err := io.WriteString(conn, head); err != nil {
		return nil, &proxyError{t.URL, err}
	}
	r := bufio.NewReaderSize(conn, maxTunnelHead)
	resp, err := readTunnelReply(r)
	if err != nil {
		return nil, &proxyError{t.URL, err}
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, readProblem("connect to the app through "+t.URL, resp.StatusCode, resp.Body)
	}
	if n := r.Buffered(); n > 0 { // the app speaks first
		ahead, _ := r.Peek(n)
		return &readAhead{Conn: conn, ahead: bytes.NewReader(bytes.Clone(ahead))}, nil
	}
	return conn, nil
}

// readTunnelReply reads the head of the reply, bounded.
func readTunnelReply(r *bufio.Reader) (*http.Response, error) {
	var head bytes.Buffer
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		if head.Write(line); head.Len() > maxTunnelHead {
			return nil, errors.New("the head of the reply is too long")
		}
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			break
		}
	}
	return http.ReadResponse(bufio.NewReader(io.MultiReader(&head, r)), nil)
}

// tunnelTLS is what the client's transport trusts, for HTTP/1.1 alone.
func (c *Client) tunnelTLS(host string) *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t, ok := c.http.Transport.(*http.Transport); ok && t.TLSClientConfig != nil {
		cfg = t.TLSClientConfig.Clone()
	}
	cfg.ServerName, cfg.NextProtos = host, []string{"http/1.1"}
	return cfg
}

// readAhead puts back what came with the reply.
type readAhead struct {
	net.Conn
	ahead *bytes.Reader
}

func (c *readAhead) Read(p []byte) (int, error) {
	if c.ahead.Len() > 0 {
		return c.ahead.Read(p)
	}
	return c.Conn.Read(p)
}

// CloseWrite ends our direction.
func (c *readAhead) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// dialThroughManager opens the manager's WebSocket to an app. why is what kept the app proxy from being used.
func (c *Client) dialThroughManager(ctx context.Context, session, app string, port int, why error) (net.Conn, error) {
	p, err := sessionPath("/stream/session", session, "tcpproxy")
	if err != nil {
		return nil, err
	}
	q := url.Values{"app": {app}}
	if port != 0 {
		q.Set("port", strconv.Itoa(port))
	}
	conn, err := c.dial(ctx, p, q)
	if err != nil {
		var refused *Error
		if errors.As(err, &refused) && refused.Status == http.StatusNotFound && refused.Slug() != SlugNotFound {
			return nil, why // this manager knows no such streams
		}
		return nil, err
	}
	conn.SetReadLimit(appFrame)
	// The connection lives longer than its opening.
	return &streamConn{Conn: websocket.NetConn(context.WithoutCancel(ctx), conn, websocket.MessageBinary)}, nil
}

// streamConn is an app's connection through the manager. The manager ends it with 1001 when the app has closed, and with 1013
// when nothing listens: the former is the end, the latter an error.
type streamConn struct{ net.Conn }

func (c *streamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	switch websocket.CloseStatus(err) {
	case -1, websocket.StatusNormalClosure:
		return n, err
	case websocket.StatusGoingAway:
		return n, io.EOF
	}
	return n, streamError("connect to the app", errors.Unwrap(err))
}
