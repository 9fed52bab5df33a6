// Package upstream is the way of a web server to the managers: requests go out for a login, to the manager that answered last, and to the
// next one when there is no connection. Managers are reached over the network, or in this process.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/api/endpoint"
	"berth.dev/berth/api/pin"
	"berth.dev/berth/internal/fault"
)

type (
	loginKey  struct{}
	clientKey struct{}
	agentKey  struct{}
)

// As has the requests of a context made for the login of a token.
func As(ctx context.Context, token api.Secret) context.Context {
	return context.WithValue(ctx, loginKey{}, token)
}

// From says which client the requests of a context come from, and by which program.
func From(ctx context.Context, client netip.AddrPort, agent string) context.Context {
	return context.WithValue(context.WithValue(ctx, clientKey{}, client), agentKey{}, agent)
}

// Agent tells by which program the requests of a context come, "" when nobody knows.
func Agent(ctx context.Context) string {
	agent, _ := ctx.Value(agentKey{}).(string)
	return agent
}

// Client tells which client the requests of a context come from.
func Client(ctx context.Context) (netip.Addr, bool) {
	at, ok := ctx.Value(clientKey{}).(netip.AddrPort)
	return at.Addr(), ok && at.IsValid()
}

// Managers is an http.RoundTripper that replaces the scheme and host of requests by a manager's.
type Managers struct {
	list    []*url.URL
	rt      http.RoundTripper
	current atomic.Int64
}

// How long a connection to a manager may take, and its TLS.
const dialTimeout = 5 * time.Second

// Network reaches managers at their addresses. fingerprint pins their certificate authority; "" trusts the system's.
func Network(addresses []string, fingerprint string) (*Managers, error) {
	m := &Managers{}
	for _, a := range addresses {
		u, err := endpoint.Parse(a)
		if err != nil {
			return nil, fault.Invalidf("webserver.managers: %q is no address", a).WithCause(err).WithNext("write http:// or https://host:port")
		}
		m.list = append(m.list, u)
	}
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		IdleConnTimeout:     60 * time.Second, MaxIdleConnsPerHost: 64, DisableCompression: true,
	}
	if fingerprint != "" {
		raw, err := pin.Parse(fingerprint)
		if err != nil {
			return nil, fault.Invalidf("webserver.ca_fingerprint cannot be read").WithCause(err).
				WithNext("write sha256: and 64 hex digits, as `berth status` shows them")
		}
		t.TLSClientConfig = pin.TLS(raw)
	}
	m.rt = t
	return m, nil
}

// Inside reaches the manager of this process by an in-memory listener, see NewPipe.
func Inside(p *Pipe) *Managers {
	return &Managers{list: []*url.URL{{Scheme: "http", Host: "manager.local"}},
		// Each connection tells the manager its client by its address, so none is used twice.
		rt: &http.Transport{DialContext: p.dial, DisableKeepAlives: true, DisableCompression: true}}
}

// body notes that somebody began to read it: then the request may have arrived.
type body struct {
	io.Reader
	begun *atomic.Bool
}

func (b body) Read(p []byte) (int, error) {
	b.begun.Store(true)
	return b.Reader.Read(p)
}

var errBegun = errors.New("a part of the body is gone")

// Close leaves the body open for another attempt; the server that received it closes it.
func (body) Close() error { return nil }

// RoundTrip sends a request for the login of its context, or anonymously. It tries every manager once, as long as the request cannot have
// arrived anywhere. When none answers the error is fault.Unavailable.
func (m *Managers) RoundTrip(r *http.Request) (*http.Response, error) {
	as, _ := r.Context().Value(loginKey{}).(api.Secret)
	var begun atomic.Bool
	first := m.current.Load()
	var last error
	for i := range int64(len(m.list)) {
		at := (first + i) % int64(len(m.list))
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.Host = m.list[at].Scheme, m.list[at].Host, m.list[at].Host
		if r.Body != nil && r.Body != http.NoBody {
			fresh := func() (io.ReadCloser, error) {
				if begun.Load() {
					return nil, errBegun
				}
				return body{r.Body, &begun}, nil
			}
			// A kept connection that the manager closed meanwhile is replaced as long as nobody has read of the body.
			out.Body, out.GetBody = body{r.Body, &begun}, fresh
		}
		authorize(out, as)
		resp, err := m.rt.RoundTrip(out)
		if err == nil {
			if i > 0 {
				m.current.CompareAndSwap(first, at)
			}
			return resp, nil
		}
		if ctxErr := r.Context().Err(); ctxErr != nil {
			return nil, fmt.Errorf("ask a manager: %w", ctxErr)
		}
		last = err
		if begun.Load() || !endpoint.Unsent(err) && !endpoint.ChangesNothing(r.Method) {
			break
		}
	}
	return nil, fault.Unavailablef("no manager of the cluster answers").WithCause(last).WithNext("try again in some seconds")
}

// authorize replaces what the client said of itself by the login; "" leaves the request anonymous.
func authorize(r *http.Request, token api.Secret) {
	for _, h := range []string{"Authorization", "Date", api.HeaderSignature} {
		r.Header.Del(h)
	}
	if token == "" {
		return
	}
	r.Header.Set("Authorization", api.LoginScheme+" "+string(token))
	if r.Header.Get(api.HeaderVersion) == "" {
		r.Header.Set(api.HeaderVersion, api.Version)
	}
}

// Ready is an error while no manager answers.
func (m *Managers) Ready(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://manager.local/", nil)
	if err != nil {
		return err
	}
	resp, err := m.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the manager answers %s", resp.Status)
	}
	return nil
}

// Pipe is a listener inside this process. Its connections have the addresses of the clients for whom they were opened: whoever accepts
// them believes these, because nobody else can open one.
type Pipe struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewPipe makes a listener; an http.Server serves it.
func NewPipe() *Pipe { return &Pipe{conns: make(chan net.Conn), done: make(chan struct{})} }

// pipeConn is the accepting end of a connection.
type pipeConn struct {
	net.Conn
	client net.Addr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.client }

func (p *Pipe) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, _ := ctx.Value(clientKey{}).(netip.AddrPort)
	if !client.IsValid() {
		client = netip.AddrPortFrom(netip.IPv6Loopback(), 0)
	}
	near, far := net.Pipe()
	select {
	case p.conns <- pipeConn{far, net.TCPAddrFromAddrPort(client)}:
		return near, nil
	case <-p.done:
		// As where nobody listens: the request has certainly not arrived.
		return nil, errors.Join(near.Close(), far.Close(), &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed})
	case <-ctx.Done():
		return nil, errors.Join(near.Close(), far.Close(), ctx.Err())
	}
}

// Accept implements net.Listener.
func (p *Pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// Addr implements net.Listener.
func (p *Pipe) Addr() net.Addr { return &net.UnixAddr{Name: "inside", Net: "pipe"} }
