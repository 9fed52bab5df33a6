package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// CallbackPolicy says where session callbacks may go. Link-local, multicast and unspecified
// addresses, which include the metadata services of clouds, are always refused.
type CallbackPolicy struct {
	// AllowPrivate lets callbacks go to private and loopback addresses.
	AllowPrivate bool
	// Allowed lists prefixes that are allowed although they are private.
	Allowed []netip.Prefix
}

// sharedSpace is carrier-grade NAT space (RFC 6598): as private as the private ranges.
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// Check refuses addresses that callbacks must not reach.
func (p CallbackPolicy) Check(ip netip.Addr) error {
	ip = ip.Unmap()
	switch {
	case !ip.IsValid(), ip.IsUnspecified(), ip.IsMulticast(), ip.IsLinkLocalUnicast(), ip == netip.MustParseAddr("fd00:ec2::254"),
		ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fault.Deniedf("callbacks may not go to %s", ip)
	case ip.IsPrivate(), ip.IsLoopback(), sharedSpace.Contains(ip):
		if p.AllowPrivate {
			return nil
		}
		for _, prefix := range p.Allowed {
			if prefix.Contains(ip) {
				return nil
			}
		}
		return fault.Deniedf("callbacks may not go to the private address %s", ip).
			WithNext("an administrator can allow its network in the manager's configuration")
	}
	return nil
}

// topicCallbacks wakes the callback worker.
const topicCallbacks = "callbacks"

const (
	callbackTimeout  = 30 * time.Second
	callbackTries    = 5
	callbacksAtOnce  = 8
	callbacksEvery   = 5 * time.Second
	callbackFirstGap = 2 * time.Second
)

// runCallbacks delivers callbacks until ctx ends, a few at a time.
func (s *Service) runCallbacks(ctx context.Context) {
	client := s.callbackClient()
	defer client.CloseIdleConnections()
	wakes := s.d.Store.Wakes(func(topic string) bool { return topic == topicCallbacks })
	defer wakes.Close()
	tick := time.NewTicker(callbacksEvery)
	defer tick.Stop()
	for {
		rows, err := s.d.Store.DueCallbacks(ctx, callbacksAtOnce)
		if err != nil && ctx.Err() == nil {
			s.d.Log.Warn("could not read callbacks", "error", err)
		}
		var sending sync.WaitGroup
		for _, r := range rows {
			sending.Go(func() { s.deliver(ctx, client, r) })
		}
		sending.Wait()
		if len(rows) == callbacksAtOnce {
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

// callbackClient checks the address at the moment of connecting, after the name is resolved, so that no name
// can lead anywhere else. It follows no redirects and uses no proxy.
func (s *Service) callbackClient() *http.Client {
	policy := s.d.Callbacks
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return policy.Check(ap.Addr())
	}}
	return &http.Client{
		Timeout: callbackTimeout,
		Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConns: callbacksAtOnce, IdleConnTimeout: 10 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: callbackTimeout, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (s *Service) deliver(ctx context.Context, client *http.Client, r dbgen.DueCallbacksRow) {
	err := post(ctx, client, r.Url, r.Body)
	if ctx.Err() != nil {
		return // it is due again in a minute
	}
	if err != nil && int(r.Attempts) < callbackTries && !fault.Is(err, fault.Denied) {
		gap := callbackFirstGap << (2 * (r.Attempts - 1)) // 2 s, 8 s, 32 s, 128 s
		if derr := s.d.Store.DeferCallback(ctx, gap, store.Text(err.Error()), r.ID); derr != nil {
			s.d.Log.Warn("could not defer a callback", "error", derr)
		}
		return
	}
	if err != nil {
		s.d.Log.Warn("gave up a session callback", "session", r.SessionID, "attempts", r.Attempts, "error", err)
	}
	if derr := s.d.Store.DropCallback(ctx, r.ID); derr != nil {
		s.d.Log.Warn("could not forget a callback", "error", derr)
	}
}

func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "berth-callback/1")
	resp, err := client.Do(req)
	if err != nil {
		var f *fault.Error
		if errors.As(err, &f) {
			return f
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // the body means nothing
	if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
		return fmt.Errorf("the receiver answered %s", resp.Status)
	}
	return nil
}
