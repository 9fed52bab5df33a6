package data_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/data"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/tunnel"
)

// Whoever has the certificate of an app proxy reaches exactly what a manager granted that app proxy, on both ways to the port.
func TestOnlyWhatIsGrantedIsReached(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	web := h.manager.Join(t, proxy.NamePrefix+"web")
	with := func(change func(*proxy.Grant)) http.Header {
		g := granted()
		change(&g)
		return signed(t, g, signing)
	}
	const other = "/kernels/00000000-0000-4000-8000-000000000009/ports/8080"
	for name, c := range map[string]struct {
		path   string
		header http.Header
		reason string
		remote bool // the case is about certificates
	}{
		"no grant":                {path, nil, "grant-missing", false},
		"no grant at all":         {path, http.Header{proxy.HeaderGrant: {"please"}}, "grant-not-valid", false},
		"forged":                  {path, signed(t, granted(), forging), "grant-not-valid", false},
		"another kernel's":        {path, with(func(g *proxy.Grant) { g.Kernel = ended }), "grant-other-kernel", false},
		"for another kernel":      {other, with(func(*proxy.Grant) {}), "grant-other-kernel", false},
		"an earlier generation":   {path, with(func(g *proxy.Grant) { g.Generation = 2 }), "grant-other-generation", false},
		"another port's":          {path, with(func(g *proxy.Grant) { g.Port = 22 }), "grant-other-port", false},
		"for another port":        {"/kernels/" + kernelID + "/ports/22", with(func(*proxy.Grant) {}), "grant-other-port", false},
		"expired":                 {path, with(func(g *proxy.Grant) { g.Expires = time.Now().Add(-time.Second) }), "grant-expired", false},
		"of another cluster":      {path, with(func(g *proxy.Grant) { g.Issuer = "d" }), "grant-other-cluster", false},
		"another app proxy's":     {path, with(func(g *proxy.Grant) { g.Proxy = "eu" }), "grant-other-proxy", true},
		"a name that begins so":   {path, with(func(g *proxy.Grant) { g.Proxy = "web2" }), "grant-other-proxy", true},
		"of a name with a prefix": {path, with(func(g *proxy.Grant) { g.Proxy = proxy.NamePrefix + "web" }), "grant-other-proxy", true},
	} {
		if !c.remote {
			_, err := tunnel.Open(within(t), h.local(t), c.path, c.header)
			require.Equal(t, c.reason, fault.ReasonOf(err), "%s, on the host: %v", name, err)
		}
		conn, err := h.remote(t, web)
		require.NoError(t, err)
		_, err = tunnel.Open(within(t), conn, c.path, c.header)
		require.Equal(t, c.reason, fault.ReasonOf(err), "%s: %v", name, err)
	}
	// A grant that was obeyed once is obeyed by nobody else: what is remembered is the grant, not the answer.
	conn, err := h.remote(t, web)
	require.NoError(t, err)
	conn, err = h.open(t, conn, path)
	require.NoError(t, err)
	talk(t, conn)
	conn, err = h.remote(t, h.manager.Join(t, proxy.NamePrefix+"eu"))
	require.NoError(t, err)
	_, err = h.open(t, conn, path)
	require.Equal(t, "grant-other-proxy", fault.ReasonOf(err))
}

// A circuit that ended while its kernel runs on is refused, and what is carried for it is closed.
func TestEndedCircuits(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	conn, err := h.remote(t, h.manager.Join(t, proxy.NamePrefix+"web"))
	require.NoError(t, err)
	conn, err = h.open(t, conn, path)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, 6))
	require.NoError(t, err)
	require.NoError(t, h.grants.Set([][]byte{publicOf(t, signing)}, []string{circuitID}, nil))
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = h.open(t, h.local(t), path)
	require.Equal(t, "grant-circuit-ended", fault.ReasonOf(err))
	// The manager says which they are; another list replaces it.
	require.NoError(t, h.grants.Set(nil, nil, nil))
	local, err := h.open(t, h.local(t), path)
	require.NoError(t, err)
	talk(t, local)
}

// TestRevokedAppProxies: what an app proxy was granted before its certificates ended is refused, what is carried for it is closed, and
// neither a restart of the agent nor a manager that does not know of it brings it back. What it is granted afterwards counts.
func TestRevokedAppProxies(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	open := func(expires time.Time) (net.Conn, error) {
		g := granted()
		g.Expires = expires
		conn, err := h.remote(t, h.manager.Join(t, proxy.NamePrefix+"web"))
		require.NoError(t, err)
		return tunnel.Open(within(t), conn, path, signed(t, g, signing))
	}
	now := time.Now()
	before := now.Add(proxy.GrantLife)
	conn, err := open(before)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, 6))
	require.NoError(t, err)
	revoked := proxy.Revoke("web", now)
	require.NoError(t, h.grants.Set([][]byte{publicOf(t, signing)}, nil, []proxy.Revocation{revoked, proxy.Revoke("eu", now)}))
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = open(before)
	require.Equal(t, "grant-proxy-revoked", fault.ReasonOf(err))
	require.NoError(t, h.grants.Set([][]byte{publicOf(t, signing)}, nil, nil), "a manager of an earlier version")
	_, err = open(before)
	require.Equal(t, "grant-proxy-revoked", fault.ReasonOf(err))
	conn, err = open(revoked.Until.Add(time.Second))
	require.NoError(t, err, "it joined again, and got a grant of a later time")
	talk(t, conn)

	for _, clock := range []time.Time{now, revoked.Until.Add(time.Second)} {
		file := filepath.Join(t.TempDir(), "keys")
		g, err := data.OpenGrants(file, fixed{chassis.RealClock(), clock})
		require.NoError(t, err)
		require.NoError(t, g.Set([][]byte{publicOf(t, signing)}, nil, []proxy.Revocation{revoked}))
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, clock.Equal(now), strings.Contains(string(raw), `"web"`), "kept until its grants have expired: %s", raw)
	}
}

// fixed is a clock that stands still.
type fixed struct {
	chassis.Clock
	now time.Time
}

func (f fixed) Now() time.Time { return f.now }

// Keys that a manager told are kept over restarts and never lost to a manager that tells none. Before the first nothing is obeyed.
func TestGrantKeys(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	file := filepath.Join(t.TempDir(), "keys")
	fresh, err := data.OpenGrants(file, chassis.RealClock())
	require.NoError(t, err)
	dial := func(g *data.Grants, header http.Header) error {
		p := data.New(data.Options{Find: h.find, Runners: h.pool, Member: h.member, Grants: g, Dir: shortDir(t), Log: h.log, Clock: h.clock})
		svc := p.Service("agent-data")
		require.NoError(t, svc.Start(t.Context()))
		defer func() { require.NoError(t, svc.Stop(within(t))) }()
		raw, err := net.Dial("unix", p.Socket())
		require.NoError(t, err)
		c, err := tunnel.Open(within(t), raw, path, header)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	good := signed(t, granted(), signing)
	require.Equal(t, "no-grant-keys", fault.ReasonOf(dial(fresh, good)))
	require.Equal(t, "grant-missing", fault.ReasonOf(dial(fresh, nil)))
	require.NoError(t, fresh.Set([][]byte{publicOf(t, signing)}, nil, nil))
	require.NoError(t, dial(fresh, good))

	again, err := data.OpenGrants(file, chassis.RealClock())
	require.NoError(t, err)
	require.NoError(t, dial(again, good))
	for _, nothing := range [][][]byte{nil, {}, {[]byte("short")}} {
		require.NoError(t, again.Set(nothing, nil, nil))
		require.NoError(t, dial(again, good))
		require.Equal(t, "grant-missing", fault.ReasonOf(dial(again, nil)), "there is no way back to connections without grants")
	}
	require.NoError(t, again.Set([][]byte{publicOf(t, forging), publicOf(t, signing)}, nil, nil))
	require.NoError(t, dial(again, good))
	require.NoError(t, again.Set([][]byte{publicOf(t, forging)}, nil, nil))
	require.Equal(t, "grant-not-valid", fault.ReasonOf(dial(again, good)), "a key that is gone verifies nothing, remembered or not")

	old, err := json.Marshal([][]byte{publicOf(t, signing)})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, old, 0o600))
	older, err := data.OpenGrants(file, chassis.RealClock())
	require.NoError(t, err)
	require.NoError(t, dial(older, good), "the file of an earlier version")
	require.NoError(t, os.WriteFile(file, []byte("rubbish"), 0o600))
	broken, err := data.OpenGrants(file, chassis.RealClock())
	require.NoError(t, err)
	require.Equal(t, "no-grant-keys", fault.ReasonOf(dial(broken, good)))
}
