package forward

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/wire/tunnel"
)

func echoSockets(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"tea"},
		CompressionMode: websocket.CompressionContextTakeover, InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	for {
		kind, text, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if string(text) == "close me" {
			_ = c.Close(4321, "as you wish")
			return
		}
		if c.Write(r.Context(), kind, text) != nil {
			return
		}
	}
}

// The main cases of a WebSocket test suite: a proxy must let all of them pass unharmed.
func TestWebSockets(t *testing.T) {
	r := newRig(t, nil)
	var asked atomic.Pointer[http.Header]
	r.server("app", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		h := q.Header.Clone()
		asked.Store(&h)
		echoSockets(w, q)
	}))
	open := func() *websocket.Conn {
		c, resp, err := websocket.Dial(t.Context(), "ws://app/x", &websocket.DialOptions{HTTPClient: r.client(), Subprotocols: []string{"tea"},
			HTTPHeader: http.Header{"Origin": {"http://app"}, "Cookie": {"berth-1=s; a=b"}}, CompressionMode: websocket.CompressionContextTakeover})
		require.NoError(t, err)
		require.Equal(t, "tea", resp.Header.Get("Sec-WebSocket-Protocol"))
		c.SetReadLimit(-1)
		return c
	}
	c := open()
	defer c.CloseNow()
	require.Equal(t, "a=b", asked.Load().Get("Cookie"))
	require.Equal(t, "http://app", asked.Load().Get("Origin"))
	for _, size := range []int{0, 1, 125, 126, 127, 128, 65535, 65536, 65537, 1 << 20, 8 << 20} {
		for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
			text := strings.Repeat("a", size)
			require.NoError(t, c.Write(t.Context(), kind, []byte(text)))
			gotKind, got, err := c.Read(t.Context())
			require.NoError(t, err)
			require.Equal(t, kind, gotKind)
			require.Equal(t, size, len(got))
		}
	}
	// A message in fragments.
	w, err := c.Writer(t.Context(), websocket.MessageText)
	require.NoError(t, err)
	for range 100 {
		_, err = io.WriteString(w, strings.Repeat("piece ", 1000))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	_, got, err := c.Read(t.Context())
	require.NoError(t, err)
	require.Len(t, got, 600000)
	// Pings are answered by the other end; they need a reader.
	ctx := c.CloseRead(t.Context())
	for range 5 {
		require.NoError(t, c.Ping(ctx))
	}
	require.NoError(t, c.Close(websocket.StatusNormalClosure, "bye"))
	// Codes of the app's own reach the visitor.
	c2 := open()
	defer c2.CloseNow()
	require.NoError(t, c2.Write(t.Context(), websocket.MessageText, []byte("close me")))
	_, _, err = c2.Read(t.Context())
	require.EqualValues(t, 4321, websocket.CloseStatus(err))
	require.ErrorContains(t, err, "as you wish")
	until(t, "the connections are over", func() bool { return r.e.Live().Open == 0 })
}

// A connection that stays open, such as SSH or a WebSocket, is activity without a byte; bytes from the visitor are counted.
func TestActivityCountsBytesOfVisitors(t *testing.T) {
	r := newRig(t, nil)
	r.server("app", http.HandlerFunc(echoSockets))
	c, _, err := websocket.Dial(t.Context(), "ws://app/", &websocket.DialOptions{HTTPClient: r.client()})
	require.NoError(t, err)
	defer c.CloseNow()
	// The visitor's side of the handshake ends before the proxy begins to carry frames.
	silent := r.e.Activity()
	until(t, "the connection is there", func() bool { silent = r.e.Activity(); return len(silent) == 1 })
	require.Zero(t, silent[0].BytesIn)
	require.WithinDuration(t, time.Now(), silent[0].LastAt, patience)
	require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte("hello")))
	_, _, err = c.Read(t.Context())
	require.NoError(t, err)
	var in int64
	until(t, "the frame is counted", func() bool {
		for _, a := range r.e.Activity() {
			in += a.BytesIn
			require.WithinDuration(t, time.Now(), a.LastAt, patience)
		}
		return in == 6+5
	})
}

func TestCloseCircuitEndsEverything(t *testing.T) {
	r := newRig(t, nil)
	quiet := make(chan struct{})
	defer close(quiet)
	a := r.server("app", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/ws":
			echoSockets(w, q)
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-q.Context().Done():
			case <-quiet:
			}
		case "/slow":
			select {
			case <-q.Context().Done():
			case <-quiet:
			}
		}
	}))
	other := r.server("other", http.HandlerFunc(echoSockets))
	_ = other
	ws, _, err := websocket.Dial(t.Context(), "ws://app/ws", &websocket.DialOptions{HTTPClient: r.client()})
	require.NoError(t, err)
	defer ws.CloseNow()
	stay, _, err := websocket.Dial(t.Context(), "ws://other/ws", &websocket.DialOptions{HTTPClient: r.client()})
	require.NoError(t, err)
	defer stay.CloseNow()
	events, err := r.client().Get("http://app/events")
	require.NoError(t, err)
	defer events.Body.Close()
	slow := r.conn()
	_, err = io.WriteString(slow, "GET /slow HTTP/1.1\r\nHost: app\r\n\r\n")
	require.NoError(t, err)
	kept := r.conn()
	_, err = io.WriteString(kept, "GET /quick HTTP/1.1\r\nHost: app\r\n\r\n")
	require.NoError(t, err)
	keptReader := bufio.NewReader(kept)
	readHeadOf(t, keptReader)
	near, far := net.Pipe()
	var raw sync.WaitGroup
	raw.Go(func() { r.e.ServeTCP(t.Context(), far, a) })
	until(t, "everything is open", func() bool { l := r.e.Live(); return l.Open == 3 && l.Connections == 6 && l.Upstream == 1 })

	r.e.CloseCircuit("app", "revoked")
	_, _, err = ws.Read(t.Context())
	require.Error(t, err)
	_, err = io.ReadAll(events.Body)
	require.Error(t, err)
	for _, c := range []net.Conn{slow, kept} {
		left, _ := io.ReadAll(c)
		require.Empty(t, left)
	}
	raw.Wait()
	_, err = near.Read(make([]byte, 1))
	require.Error(t, err)
	require.Equal(t, 0, r.e.Live().Upstream)
	require.NoError(t, stay.Write(t.Context(), websocket.MessageText, []byte("still here")))
	_, text, err := stay.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "still here", string(text))
}

// A request that was admitted under a table that is replaced meanwhile is asked about again.
func TestCloseCircuitWhileAdmitting(t *testing.T) {
	r := newRig(t, nil)
	r.app("app", canned("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	first := true
	r.onRoute = func(Head) {
		if first {
			first = false
			r.e.CloseCircuit("app", "revoked") // as if right after the Router had decided
			return
		}
		delete(r.circuits, "app")
	}
	require.Equal(t, "404 Not Found", status(r.say(get("app", "/"))))
	require.Equal(t, 2, r.routed)
}

func TestServeTCPChecksTheTable(t *testing.T) {
	gone := &circuit.Circuit{}
	r := newRig(t, func(c *Config) { c.Current = func(string) *circuit.Circuit { return gone } })
	app := r.app("app", func(c net.Conn) { _, _ = io.Copy(c, c) })
	near, far := net.Pipe()
	r.e.ServeTCP(t.Context(), far, app)
	_, err := near.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
}

// Raw connections from an address end when it is let in no more, those from others stay.
func TestCloseAddresses(t *testing.T) {
	r := newRig(t, nil)
	app := r.app("app", func(c net.Conn) { _, _ = io.Copy(c, c) })
	var all sync.WaitGroup
	defer all.Wait()
	open := func() net.Conn {
		near, far := tcpPair(t)
		all.Go(func() { r.e.ServeTCP(t.Context(), far, app) })
		require.NoError(t, near.SetDeadline(time.Now().Add(patience)))
		return near
	}
	near := open()
	defer near.Close()
	echo := func() error {
		if _, err := near.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(near, make([]byte, 1))
		return err
	}
	require.NoError(t, echo())
	r.e.CloseAddresses("app", []netip.Addr{netip.MustParseAddr("192.0.2.9")}, "revoked")
	r.e.CloseAddresses("nothing", []netip.Addr{netip.MustParseAddr("127.0.0.1")}, "revoked")
	require.NoError(t, echo(), "others stay")
	kept := r.conn()
	_, err := io.WriteString(kept, "GET / HTTP/1.1\r\nHost: app\r\n\r\n")
	require.NoError(t, err)
	until(t, "a request is there", func() bool { return r.e.Live().Connections == 2 })
	r.e.CloseAddresses("app", []netip.Addr{netip.MustParseAddr("127.0.0.1")}, "revoked")
	_, err = near.Read(make([]byte, 1))
	require.Error(t, err)
	until(t, "it has ended, and nothing else", func() bool { return r.e.Live().Connections == 1 })
	_ = kept.Close()
}

// The deadline of a wait that is over must reach neither the visit nor whoever has its connection to the app next.
func TestLateDeadlines(t *testing.T) {
	e := New(DefaultConfig(), nil, nil, chassis.RealClock(), slog.New(slog.DiscardHandler))
	late := e.now.Load() + int64(time.Hour)
	side := func() *sock {
		_, far := tcpPair(t)
		s := new(sock)
		s.init(far)
		return s
	}
	begin := func() *visit {
		v := &visit{e: e, opened: late}
		_, far := tcpPair(t)
		v.sock.init(far)
		v.ctx, v.cancel = context.WithCancel(t.Context())
		return v
	}
	usable := func(s *sock) bool {
		_, err := s.write([]byte("x"))
		return err == nil
	}

	v, up := begin(), side()
	require.True(t, v.use(up))
	v.arm(phaseWait, time.Second)
	v.check(late)
	v.arm(phaseStall, time.Minute) // the answer had come all the same, and goes on
	require.False(t, v.part(), "a connection that was struck is not kept")

	v, up = begin(), side()
	require.True(t, v.use(up))
	v.arm(phaseWait, time.Second)
	require.True(t, v.part())
	next := side()
	require.True(t, v.use(next), "a request that was sent ahead follows")
	v.check(late)
	require.True(t, usable(up))
	require.True(t, usable(next))
	require.Nil(t, v.ended.Load())
	v.arm(phaseWait, time.Second)
	v.check(late)
	require.False(t, usable(next), "its own deadline reaches it")

	v, up = begin(), side()
	require.True(t, v.use(up))
	v.arm(phaseSend, time.Second)
	require.True(t, v.part())
	v.check(late)
	require.Nil(t, v.ended.Load(), "a visit that has its answer goes on")
}

// wrongClock is a machine's clock that somebody sets: what it shows jumps, what it measures does not.
type wrongClock struct {
	chassis.Clock
	by atomic.Int64 // seconds
}

func (c *wrongClock) Now() time.Time {
	t := time.Now()
	*(*uint64)(unsafe.Pointer(&t)) += uint64(c.by.Load()) << 30 // package time offers no other way to a Time that has both readings
	return t
}

// Setting the machine's clock ends no connection, stops no visitor, and does not change when a circuit was used.
func TestClockIsSet(t *testing.T) {
	clock := &wrongClock{Clock: chassis.RealClock()}
	e := New(DefaultConfig(), nil, nil, clock, slog.New(slog.DiscardHandler))
	var b bucket
	for _, by := range []time.Duration{0, -time.Hour, 30 * 24 * time.Hour} {
		clock.by.Store(int64(by / time.Second))
		require.WithinDuration(t, time.Now().Add(by).Round(0), clock.Now().Round(0), time.Minute)
		_, ok := b.take(e.ticks(), 100)
		require.True(t, ok, by)
		require.Less(t, e.ticks()-e.now.Load(), int64(time.Minute), by)
		require.GreaterOrEqual(t, e.ticks(), e.now.Load(), by)
		g := e.group("app")
		g.sent(1, e.ticks())
		a, ok := e.activity(g)
		require.True(t, ok)
		require.WithinDuration(t, clock.Now().Round(0), a.LastAt.Round(0), time.Minute)
	}
}

// tcpPair is a connection of the kernel's.
func tcpPair(t *testing.T) (near, far *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	require.NoError(t, a.SetDeadline(time.Now().Add(patience)))
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

func TestRawConnections(t *testing.T) {
	r := newRig(t, nil)
	app := r.app("app", func(c net.Conn) {
		// Everything back only after the visitor's end: the half-close has to arrive.
		all, _ := io.ReadAll(c)
		_, _ = c.Write(all)
	})
	near, far := tcpPair(t)
	var done sync.WaitGroup
	done.Go(func() { r.e.ServeTCP(t.Context(), far, app) })
	text := strings.Repeat("0123456789abcdef", 1<<19) // 8 MiB
	var writer sync.WaitGroup
	writer.Go(func() { _, _ = io.WriteString(near, text); _ = near.CloseWrite() })
	all, err := io.ReadAll(near)
	writer.Wait()
	require.NoError(t, err)
	require.True(t, text == string(all), "%d of %d bytes came back", len(all), len(text))
	done.Wait()
	a := r.e.Activity()
	require.Len(t, a, 1)
	require.EqualValues(t, len(text), a[0].BytesIn)
	require.EqualValues(t, len(text), a[0].BytesOut)
}

func TestTunnels(t *testing.T) {
	r := newRig(t, nil)
	app := r.app("app", func(c net.Conn) { _, _ = io.Copy(c, c) })
	r.handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { r.e.Tunnel(w, q, app) })
	c, err := net.Dial("tcp", r.addr)
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, "POST /v2/tunnel HTTP/1.1\r\nHost: own\r\nConnection: Upgrade\r\nUpgrade: "+tunnel.Protocol+"\r\n"+
		"Content-Length: 0\r\n\r\nearly")
	require.NoError(t, err)
	b := bufio.NewReader(c)
	require.Equal(t, "101 Switching Protocols", status(readHeadOf(t, b)))
	early := make([]byte, 5)
	_, err = io.ReadFull(b, early)
	require.NoError(t, err)
	require.Equal(t, "early", string(early))
	require.NoError(t, c.Close())
	require.Equal(t, "426 Upgrade Required", status(r.say(get("own", "/v2/tunnel"))))
	until(t, "it is over", func() bool { return r.e.Live() == Counts{} })
}

func TestLimits(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.ConnectionsPerCircuit, c.ConnectionsPerAddress, c.RequestsPerUser = 2, 5, 0.001
	})
	a := r.app("app", canned("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	_ = a
	hold := func() net.Conn {
		c := r.conn()
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: app\r\n\r\n")
		require.NoError(t, err)
		readHeadOf(t, bufio.NewReader(c))
		return c
	}
	c1, c2 := hold(), hold()
	answer := r.say(get("app", "/"))
	require.Equal(t, "503 Service Unavailable", status(answer))
	require.Contains(t, answer, "Retry-After: 2\r\n")
	require.NoError(t, c1.Close())
	until(t, "it has left", func() bool { return r.e.Live().Connections == 1 })
	for i, want := range []string{"200 OK", "200 OK", "429 Too Many Requests"} { // twice the rate, at least two
		answer := r.say(get("app", "/", "Test-User: u1\r\n"))
		require.Equal(t, want, status(answer), "request %d", i)
		until(t, "it has left", func() bool { return r.e.Live().Connections == 1 })
	}
	require.Equal(t, "200 OK", status(r.say(get("app", "/", "Test-User: u2\r\n"))))
	require.NoError(t, c2.Close())
	until(t, "all have left", func() bool { return r.e.Live().Connections == 0 })
	for range 5 {
		r.conn()
	}
	until(t, "all have come", func() bool { return r.e.Live().Connections == 5 })
	require.Equal(t, "503 Service Unavailable", status(r.say("")))
}

func TestBuckets(t *testing.T) {
	var b bucket
	now := int64(1e18)
	for i := range 20 {
		_, ok := b.take(now, 10)
		require.True(t, ok, i)
	}
	wait, ok := b.take(now, 10)
	require.False(t, ok)
	require.Equal(t, 100*time.Millisecond, wait)
	_, ok = b.take(now+int64(wait), 10)
	require.True(t, ok)
	all := newBuckets[netip.Addr]()
	for i := range 200000 {
		all.of(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	n := 0
	for i := range all.shards {
		n += len(all.shards[i].m)
	}
	require.LessOrEqual(t, n, maxBuckets*limitShards)
	require.Equal(t, circuit.Network(netip.MustParseAddr("2001:db8::1")), circuit.Network(netip.MustParseAddr("2001:db8::2")))
	require.Equal(t, circuit.Network(netip.MustParseAddr("::ffff:1.2.3.4")), netip.MustParseAddr("1.2.3.4"))
}

func TestTrustedProxies(t *testing.T) {
	r := newRig(t, func(c *Config) {
		var err error
		c.Trusted, err = clientaddr.ParseTrusted("trusted_proxies", []string{"127.0.0.0/8", "10.0.0.0/8"})
		require.NoError(t, err)
	})
	rec := record(r, "app")
	var got Head
	r.onRoute = func(h Head) { got = h }
	for forwarded, want := range map[string]string{"6.6.6.6, 1.2.3.4, 10.0.0.1": "1.2.3.4", "1.2.3.4": "1.2.3.4",
		"nonsense, 10.1.1.1": "10.1.1.1", "": "127.0.0.1"} {
		require.Equal(t, "200 OK", status(r.say(get("app", "/", "X-Forwarded-For: "+forwarded+"\r\n", "X-Forwarded-Proto: https\r\n"))))
		head := <-rec.got
		require.Contains(t, head, "X-Forwarded-For: "+want+"\r\nX-Forwarded-Proto: https\r\n")
		require.Equal(t, 1, strings.Count(head, "X-Forwarded-For"))
		require.Equal(t, want, got.Client.String())
		require.True(t, got.Secure)
		require.False(t, got.TLS)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A visitor who leaves while the app thinks takes the app's connection along.
func TestVisitorLeaves(t *testing.T) {
	r := newRig(t, nil)
	left := make(chan struct{})
	r.app("app", func(c net.Conn) {
		b := bufio.NewReader(c)
		_, _ = http.ReadRequest(b)
		_, _ = io.Copy(io.Discard, b)
		close(left)
	})
	c := r.conn()
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: app\r\n\r\n")
	require.NoError(t, err)
	until(t, "the app has it", func() bool { return r.e.Live().Connections == 1 })
	require.NoError(t, c.Close())
	<-left
}

// A connection that the app has closed meanwhile is noticed: what can be repeated is repeated, nothing else.
func TestStaleConnections(t *testing.T) {
	r := newRig(t, nil)
	var conns, requests atomic.Int32
	r.app("app", func(c net.Conn) {
		conns.Add(1)
		b := bufio.NewReader(c)
		q, err := http.ReadRequest(b)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, q.Body)
		requests.Add(1)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") // keep-alive, says it
		// A second request is read and dropped.
		if q.URL.Path == "/drop" {
			_, _ = http.ReadRequest(b)
		}
	})
	c := r.conn()
	b := bufio.NewReader(c)
	ask := func(text, want string) {
		_, err := io.WriteString(c, text)
		require.NoError(t, err)
		resp, err := http.ReadResponse(b, nil)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, fmt.Sprint(resp.StatusCode), text)
	}
	for range 5 {
		ask("GET / HTTP/1.1\r\nHost: app\r\n\r\n", "200")
		ask("PUT / HTTP/1.1\r\nHost: app\r\nContent-Length: 2\r\n\r\nab", "200")
	}
	ask("GET /drop HTTP/1.1\r\nHost: app\r\n\r\n", "200")
	ask("GET / HTTP/1.1\r\nHost: app\r\n\r\n", "200")
	ask("GET /drop HTTP/1.1\r\nHost: app\r\n\r\n", "200")
	ask("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 2\r\n\r\nab", "502")
}

func TestPipelining(t *testing.T) {
	r := newRig(t, nil)
	r.server("app", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		_, _ = fmt.Fprintf(w, "%s %s;", q.URL.Path, b)
	}))
	r.server("two", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { _, _ = io.WriteString(w, "other;") }))
	c := r.conn()
	_, err := io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: app\r\n\r\nPOST /2 HTTP/1.1\r\nHost: app\r\nContent-Length: 3\r\n\r\nabc"+
		"GET /x HTTP/1.1\r\nHost: two\r\n\r\nPOST /3 HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	require.NoError(t, err)
	b := bufio.NewReader(c)
	var all strings.Builder
	for range 4 {
		resp, err := http.ReadResponse(b, nil)
		require.NoError(t, err)
		_, err = io.Copy(&all, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	require.Equal(t, "/1 ;/2 abc;other;/3 abc;", all.String())
}

func TestContinue(t *testing.T) {
	r := newRig(t, nil)
	r.server("app", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/no" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		b, _ := io.ReadAll(q.Body)
		_, _ = fmt.Fprintf(w, "%d", len(b))
	}))
	r.handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		_, _ = fmt.Fprintf(w, "%d", len(b))
	})
	for _, host := range []string{"app", "own"} {
		c := r.conn()
		b := bufio.NewReader(c)
		_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+host+"\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
		require.Equal(t, "100 Continue", status(readHeadOf(t, b)))
		_, err = io.WriteString(c, "abc")
		require.NoError(t, err)
		require.Equal(t, "200 OK", status(readHeadOf(t, b)))
		all, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "3", string(all))
	}
	c := r.conn()
	_, err := io.WriteString(c, "POST /no HTTP/1.1\r\nHost: app\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
	require.NoError(t, err)
	all, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "403 Forbidden", status(string(all)))
	require.Contains(t, string(all), "Connection: close\r\n")
}

func TestServerSentEvents(t *testing.T) {
	r := newRig(t, nil)
	next := make(chan struct{})
	r.server("app", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush() // the head alone
		for i := range 3 {
			<-next
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	resp, err := r.client().Get("http://app/")
	require.NoError(t, err)
	defer resp.Body.Close()
	b := bufio.NewReader(resp.Body)
	for i := range 3 {
		next <- struct{}{}
		line, err := b.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("data: %d\n", i), line)
		_, _ = b.ReadString('\n')
	}
}

// An app that answers before it has the whole body, and one that closes then.
func TestEarlyAnswers(t *testing.T) {
	r := newRig(t, nil)
	r.app("app", func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	c := r.conn()
	go func() {
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 100000000\r\n\r\n")
		_, _ = io.CopyN(c, zeros{}, 1e8)
	}()
	b := bufio.NewReader(c)
	require.Equal(t, "413 Too Large", status(readHeadOf(t, b)))
}

func TestChunkedBodyLimit(t *testing.T) {
	r := newRig(t, func(c *Config) { c.BodyBytes = 100 })
	r.server("app", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(io.Discard, q.Body) }))
	answer := r.say("POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n" + strings.Repeat("a",
		64) + "\r\n40\r\n" + strings.Repeat("a", 64) + "\r\n0\r\n\r\n")
	require.Equal(t, "413 Request Entity Too Large", status(answer))
	answer = r.say("POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	require.Equal(t, "400 Bad Request", status(answer))
}

func TestOwnHandlers(t *testing.T) {
	r := newRig(t, func(c *Config) { c.OwnBody = 1000 })
	r.handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/panic":
			panic("no")
		case "/stream":
			for i := range 3 {
				_, _ = fmt.Fprintf(w, "%d", i)
				_ = http.NewResponseController(w).Flush()
			}
		case "/big":
			_, _ = io.CopyN(w, zeros{}, 100000)
		case "/redirect":
			w.Header().Set("X-Bad", "a\r\nSet-Cookie: x")
			http.Redirect(w, q, "/elsewhere", http.StatusFound)
		default:
			b, err := io.ReadAll(q.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
				return
			}
			http.SetCookie(w, &http.Cookie{Name: "berth-1", Value: "x"})
			_, _ = fmt.Fprintf(w, "%s %s %d %s", q.Method, q.URL, len(b), q.RemoteAddr[:9])
		}
	})
	c := r.client()
	for range 2 {
		for path, want := range map[string]string{"/stream": "012", "/a?b=c": "POST /a?b=c 4 127.0.0.1", "/big": strings.Repeat("\x00", 100000)} {
			resp, err := c.Post("http://own"+path, "text/plain", strings.NewReader("body"))
			require.NoError(t, err)
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, want, string(b))
		}
	}
	require.Equal(t, "500 Internal Server Error", status(r.say(get("own", "/panic"))))
	answer := r.say(get("own", "/redirect"))
	require.Contains(t, answer, "Location: /elsewhere\r\n")
	require.NotContains(t, answer, "\r\nSet-Cookie")
	require.Equal(t, "413 Request Entity Too Large",
		status(r.say("POST / HTTP/1.1\r\nHost: own\r\nContent-Length: 1001\r\n\r\n"+strings.Repeat("a", 1001))))
	require.Equal(t, "413 Request Entity Too Large",
		status(r.say("POST / HTTP/1.1\r\nHost: own\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n"+strings.Repeat("a", 1001)+"\r\n0\r\n\r\n")))
	head := r.say("HEAD /a HTTP/1.1\r\nHost: own\r\nConnection: close\r\n\r\n")
	require.True(t, strings.HasSuffix(head, "\r\n\r\n"))
	require.Equal(t, "200 OK", status(r.say("GET /x HTTP/1.0\r\nHost: own\r\n\r\n")))
}
