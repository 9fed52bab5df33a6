// Package callback delivers callbacks of sessions over HTTP: rows that moves of sessions leave in the store become requests.
// It is the one place that connects to addresses that users name, so it checks every address at the moment of connecting. It does
// not decide which sessions have callbacks. Package operation runs it; package notice sends its webhooks by the same way.
package callback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Policy says where callbacks of sessions and webhooks may go. Link-local, multicast and unspecified
// addresses, which include the metadata services of clouds, are always refused.
type Policy struct {
	// AllowPrivate lets callbacks go to private and loopback addresses.
	AllowPrivate bool
	// Allowed lists prefixes that are allowed although they are private.
	Allowed []netip.Prefix
}

// sharedSpace is carrier-grade NAT space (RFC 6598): as private as the private ranges.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// Check refuses addresses that callbacks must not reach.
func (p Policy) Check(ip netip.Addr) error {
	ip = ip.Unmap()
	switch {
	case !ip.IsValid(), ip.IsUnspecified(), ip.IsMulticast(), ip.IsLinkLocalUnicast(), ip == netip.MustParseAddr("fd00:ec2::254"),
		ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fault.Deniedf("callbacks and webhooks may not go to %s", ip)
	case ip.IsPrivate(), ip.IsLoopback(), sharedSpace.Contains(ip):
		if p.AllowPrivate {
			return nil
		}
		for _, prefix := range p.Allowed {
			if prefix.Contains(ip) {
				return nil
			}
		}
		return fault.Deniedf("callbacks and webhooks may not go to the private address %s", ip).
			WithNext("an administrator can allow its network in the manager's configuration")
	}
	return nil
}

const (
	timeout  = 30 * time.Second
	tries    = 5
	atOnce   = 8
	every    = 5 * time.Second
	firstGap = 2 * time.Second
)

// Worker delivers callbacks.
type Worker struct {
	Store  *store.Store
	Policy Policy
	Log    *slog.Logger
}

// Run delivers callbacks until ctx ends, a few at a time.
func (w *Worker) Run(ctx context.Context) {
	client := NewClient(w.Policy)
	defer client.Close()
	wakes := w.Store.Wakes(func(topic string) bool { return topic == store.TopicCallbacks })
	defer wakes.Close()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		rows, err := w.Store.DueCallbacks(ctx, atOnce)
		if err != nil && ctx.Err() == nil {
			w.Log.Warn("could not read callbacks", "error", err)
		}
		var sending sync.WaitGroup
		for _, r := range rows {
			sending.Go(func() { w.deliver(ctx, client, r) })
		}
		sending.Wait()
		if len(rows) == atOnce {
			continue
		}
		select {
		case <-wakes.C:
			wakes.Take()
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// CheckAddress refuses what is no address of HTTP that a user may name. Where it leads is checked at the moment of connecting.
func CheckAddress(text string) error {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxAddress || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil {
		return fault.Invalidf("%.80q is not an address that requests may go to", text).
			WithNext("use an http or https address without a user name")
	}
	return nil
}

// maxAddress bounds an address in bytes.
const maxAddress = 2048

// Client sends requests to addresses that users name.
type Client struct{ http *http.Client }

// NewClient makes a client that checks the address at the moment of connecting, after the name is resolved, so that no name
// can lead anywhere else. It follows no redirects and uses no proxy.
func NewClient(policy Policy) *Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return policy.Check(ap.Addr())
	}}
	return &Client{&http.Client{
		Timeout: timeout,
		Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConns: atOnce, IdleConnTimeout: 10 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: timeout, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes connections that nothing uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Post sends JSON and returns the status of the answer, whose body means nothing. The error is Denied for an address that the policy
// refuses; no error tells the address, which may be a secret.
func (c *Client) Post(ctx context.Context, address string, header http.Header, body []byte) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return 0, fault.Invalidf("the address is not one of HTTP")
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		if f, ok := errors.AsType[*fault.Error](err); ok {
			return 0, f
		}
		if u, ok := errors.AsType[*url.Error](err); ok {
			return 0, u.Err
		}
		return 0, err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	return resp.StatusCode, nil
}

func (w *Worker) deliver(ctx context.Context, client *Client, r dbgen.DueCallbacksRow) {
	err := post(ctx, client, r.Url, r.Body)
	if ctx.Err() != nil {
		return // it is due again in a minute
	}
	if err != nil && int(r.Attempts) < tries && !fault.Is(err, fault.Denied) {
		gap := firstGap << (2 * (r.Attempts - 1)) // 2 s, 8 s, 32 s, 128 s
		if derr := w.Store.DeferCallback(ctx, gap, store.Text(err.Error()), r.ID); derr != nil {
			w.Log.Warn("could not defer a callback", "error", derr)
		}
		return
	}
	if err != nil {
		w.Log.Warn("gave up a session callback", "session", r.SessionID, "attempts", r.Attempts, "error", err)
	}
	if derr := w.Store.DropCallback(ctx, r.ID); derr != nil {
		w.Log.Warn("could not forget a callback", "error", derr)
	}
}

func post(ctx context.Context, client *Client, address string, body []byte) error {
	status, err := client.Post(ctx, address, http.Header{"User-Agent": {"berth-callback/1"}}, body)
	if err != nil {
		return err
	}
	if status >= 500 || status == http.StatusTooManyRequests {
		return fmt.Errorf("the receiver answered %d %s", status, http.StatusText(status))
	}
	return nil
}
