package front_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/appproxy/front"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/wire/proxy"
)

// manager redeems every code at epoch 2; the news of that comes when somebody waits for it.
type manager struct {
	front.Manager
	table *circuit.Table
	next  proxy.Circuit
}

func (m *manager) Table() *circuit.Table { return m.table }

func (m *manager) Redeem(context.Context, proxy.RedeemRequest) (proxy.RedeemReply, error) {
	return proxy.RedeemReply{User: "u", Epoch: 2, ExpiresAt: time.Now().Add(time.Hour), Path: "/"}, nil
}

func (m *manager) AwaitCircuit(_ context.Context, id string, epoch int64) *circuit.Circuit {
	if id == m.next.ID && epoch == m.next.Epoch {
		m.table, _ = m.table.With(circuit.Change{Put: []proxy.Circuit{m.next}})
	}
	return m.table.ByID(id)
}

// Strangers can make the proxy open few connections at once, and none to an app that is not open to their address.
func TestWarmUpsAreFew(t *testing.T) {
	t.Parallel()
	c := circuit.New(proxy.Circuit{ID: "11111111-2222-3333-4444-555555555555", Mode: proxy.ModeSubdomain, Label: "app", Protocol: "http"})
	var dials atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	f := front.New(front.Options{Base: &url.URL{Scheme: "http", Host: "apps.test"}, Clock: chassis.RealClock(),
		Log: slog.New(slog.DiscardHandler),
		Dial: func(context.Context, *circuit.Circuit, netip.Addr) (net.Conn, proxy.TargetID, error) {
			if dials.Add(1) <= 16 {
				<-ctx.Done() // not of the look's own context, which ends after some seconds
			}
			return nil, proxy.TargetID{}, context.Canceled
		}})
	ask := func(c *circuit.Circuit) int {
		q := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://app.apps.test/setup?token=x", nil)
		q.Header.Set("Sec-Fetch-Mode", "no-cors")
		w := httptest.NewRecorder()
		f.Setup(c).ServeHTTP(w, q)
		return w.Code
	}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() { ask(c) })
	}
	require.Eventually(t, func() bool { return dials.Load() == 16 }, 30*time.Second, time.Millisecond)
	require.Equal(t, http.StatusNoContent, ask(c), "answered without a look")
	require.EqualValues(t, 16, dials.Load())
	cancel()
	all.Wait()
	closed := c.Circuit
	closed.Allowed = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	require.Equal(t, http.StatusNoContent, ask(circuit.New(closed)))
	require.EqualValues(t, 16, dials.Load())
	require.Equal(t, http.StatusBadGateway, ask(c))
}

// A visitor whose code is newer than what the proxy has heard of the circuit is led to the app when the ticket works there.
func TestSetupWaitsForTheEpoch(t *testing.T) {
	t.Parallel()
	c := proxy.Circuit{ID: "11111111-2222-3333-4444-555555555555", Revision: 1, Epoch: 1, Mode: proxy.ModeSubdomain, Label: "app",
		Protocol: "http"}
	m := &manager{next: c}
	m.next.Revision, m.next.Epoch = 2, 2
	keys := [][]byte{[]byte("a key that is long enough")}
	m.table, _ = (*circuit.Table)(nil).With(circuit.Change{Reset: true, Put: []proxy.Circuit{c}, Keys: keys})
	f := front.New(front.Options{Base: &url.URL{Scheme: "http", Host: "apps.test"}, Manager: m, Clock: chassis.RealClock(),
		TicketLife: time.Hour, Log: slog.New(slog.DiscardHandler),
		Address: func(*circuit.Circuit) *url.URL { return &url.URL{Scheme: "http", Host: "app.apps.test"} }})
	w := httptest.NewRecorder()
	f.Setup(m.table.ByID(c.ID)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://app.apps.test/setup?token=x", nil))
	require.Equal(t, http.StatusFound, w.Code)
	cookies := w.Result().Cookies()
	require.Len(t, cookies, 1)
	_, ok := m.table.ByID(c.ID).Verify(cookies[0].Value, keys, time.Now())
	require.True(t, ok, "the page that follows lets the visitor in")
}
