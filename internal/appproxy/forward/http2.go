package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/wire/proxy"
)

// h2side is what goes through net/http: visitors that speak HTTP/2, and apps that do.
type h2side struct {
	e      *Engine
	base   *http.Server
	server *http2.Server
	// Apps that speak HTTP/1.1, and those that speak HTTP/2 without TLS. Connections of different circuits have different
	// host names there and never meet.
	one, two *http.Transport
	buffers  bufferPool
}

// maxStreams bounds what one visitor's connection asks at once.
const maxStreams = 250

// frameSize is the largest frame that is taken, the protocol's smallest bound (RFC 9113, 4.2): a stream's window is always wider.
const frameSize = 16 << 10

func newH2(e *Engine) *h2side {
	s := &h2side{e: e}
	quiet := stdlog.New(io.Discard, "", 0) // whatever a visitor does wrong is no news
	s.base = &http.Server{MaxHeaderBytes: e.cfg.HeaderBytes, ErrorLog: quiet, IdleTimeout: e.cfg.IdleTimeout,
		ReadHeaderTimeout: e.cfg.HeaderTimeout}
	s.server = &http2.Server{MaxConcurrentStreams: maxStreams, MaxReadFrameSize: frameSize, IdleTimeout: e.cfg.IdleTimeout,
		ReadIdleTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: e.cfg.StallTimeout,
		MaxUploadBufferPerConnection: 1 << 20, MaxUploadBufferPerStream: 256 << 10}
	_ = http2.ConfigureServer(s.base, s.server) // fails for TLS settings alone, and there are none
	transport := func() *http.Transport {
		return &http.Transport{DialContext: s.dial, DisableCompression: true, MaxIdleConnsPerHost: e.cfg.MaxIdleUpstream,
			IdleConnTimeout: e.cfg.KeepUpstream, ResponseHeaderTimeout: e.cfg.ResponseTimeout, ExpectContinueTimeout: time.Second,
			MaxResponseHeaderBytes: int64(e.cfg.HeaderBytes), WriteBufferSize: 32 << 10, ReadBufferSize: 32 << 10}
	}
	s.one, s.two = transport(), transport()
	s.one.Protocols, s.two.Protocols = new(http.Protocols), new(http.Protocols)
	s.one.Protocols.SetHTTP1(true)
	s.two.Protocols.SetUnencryptedHTTP2(true)
	s.two.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
	return s
}

func (s *h2side) stop() {
	s.one.CloseIdleConnections()
	s.two.CloseIdleConnections()
}

// multiplexed reports whether the circuit's app speaks HTTP/2.
func multiplexed(c *circuit.Circuit) bool { return c.Protocol == "h2" || c.Protocol == "grpc" }

// serve serves a visitor's HTTP/2 connection until it is over and its requests with it.
func (s *h2side) serve(v *visit, conn net.Conn, l Listener) {
	v.arm(phaseOpen, 0)
	var requests requests
	s.server.ServeConn(conn, &http2.ServeConnOpts{Context: v.ctx, BaseConfig: s.base,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if requests.begin() {
				defer requests.end()
				s.answer(w, r, v, l)
			}
		})})
	v.cancel()
	requests.wait()
}

// requests are those of one connection. The library begins some after it has said that the connection is over: they are not
// answered any more.
type requests struct {
	mu      sync.Mutex
	over    bool
	running sync.WaitGroup
}

func (q *requests) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		return false
	}
	q.running.Add(1)
	return true
}

func (q *requests) end() { q.running.Done() }

// wait waits for those that have begun; none begins after it.
func (q *requests) wait() {
	q.mu.Lock()
	q.over = true
	q.mu.Unlock()
	q.running.Wait()
}

// answer is for HTTP/2 what serveRequest is for HTTP/1.
func (s *h2side) answer(w http.ResponseWriter, r *http.Request, v *visit, l Listener) {
	e := s.e
	head := Head{Listener: l, Method: r.Method, Host: strings.ToLower(r.Host), Remote: v.remote, TLS: l.TLS, Major: 2}
	fields := 0
	for name, values := range r.Header {
		for _, value := range values {
			fields++
			head.Header.fields = append(head.Header.fields, field{name, value, kindOf(name)})
		}
	}
	head.Path, head.RawQuery, _ = strings.Cut(r.RequestURI, "?")
	head.Client, head.Secure = e.visitorBehind(v.remote.Addr(), l.TLS, head.Header.Values)
	if e.binds(l) { // for the app's answers, too, which lose their own
		w.Header().Set("Strict-Transport-Security", chassis.HSTS)
	}
	now := e.ticks()
	switch {
	case fields > e.cfg.HeaderCount:
		writeProblem(w, r, tooManyFields(e.cfg.HeaderCount))
		return
	case !validHost(r.Host) || r.Host == "":
		writeProblem(w, r, malformed("there must be one Host"))
		return
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		writeProblem(w, r, trouble(405, "method", "This method does not pass."))
		return
	case !strings.HasPrefix(r.RequestURI, "/") && r.RequestURI != "*":
		writeProblem(w, r, malformed("the target is no path"))
		return
	}
	if wait, ok := e.byAddress.of(circuit.Network(head.Client), now).take(now, e.cfg.RequestsPerAddress); !ok {
		writeProblem(w, r, tooManyRequests("your address", wait))
		return
	}
	for range maxRoutes {
		closes := e.closes.Load()
		route := e.router(head)
		c := route.Circuit
		switch {
		case route.Handler != nil:
			r.RemoteAddr = netip.AddrPortFrom(head.Client, v.remote.Port()).String()
			if e.cfg.OwnBody > 0 {
				r.Body = http.MaxBytesReader(w, r.Body, e.cfg.OwnBody)
			}
			e.guard(w.Header(), l)
			route.Handler.ServeHTTP(w, r)
			return
		case c == nil:
			writeProblem(w, r, trouble(404, "no-app", "There is no app at this address."))
			return
		case !c.HTTP():
			writeProblem(w, r, trouble(404, "no-http", "This app does not speak HTTP."))
			return
		}
		t, ok := c.Pick(route.Key)
		if !ok {
			writeProblem(w, r, dialProblem(Drained()))
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		m := &stream{cancel: cancel, target: t.ID()}
		g, ok := e.join(c, m)
		if !ok {
			cancel()
			writeProblem(w, r, busy("Too many connections to this app are open."))
			return
		}
		if e.closes.Load() != closes {
			g.leave(m)
			cancel()
			continue
		}
		var user *bucket
		if route.User != "" {
			user = e.byUser.of(route.User, now)
		}
		if p := e.overRate(c, g, user, now); p != nil {
			writeProblem(w, r, p)
		} else {
			g.requests.Add(1)
			g.sent(len(r.RequestURI)+len(r.Host), e.now.Load())
			limit := e.bodyLimit(c)
			if limit > 0 {
				r.Body = http.MaxBytesReader(w, r.Body, limit)
			}
			func() {
				defer cancel()
				defer g.leave(m)
				v := told(head.Client, head.Secure)
				v.jar = route.Jar
				s.toApp(c, t, g, v).ServeHTTP(w, r.WithContext(ctx))
			}()
			return
		}
		g.leave(m)
		cancel()
		return
	}
	writeProblem(w, r, busy("The app is being changed."))
}

// stream is one request of an HTTP/2 connection.
type stream struct {
	cancel context.CancelFunc
	target proxy.TargetID
}

func (m *stream) end(string) { m.cancel() }

func (m *stream) uses(targets []proxy.TargetID) bool { return slices.Contains(targets, m.target) }

// destination is where a transport's request goes; destinationKey is its key in the request's context.
type destination struct {
	circuit *circuit.Circuit
	target  proxy.Target
}

type destinationKey struct{}

// host stands for a target in a transport, whose connections of different hosts never meet.
func (d destination) host() string {
	return fmt.Sprintf("%s.%d.%s.invalid", d.target.Kernel, d.target.Port, d.circuit.ID)
}

// toApp passes a request of net/http on to a target of the circuit.
func (s *h2side) toApp(c *circuit.Circuit, t proxy.Target, g *group, v visitor) http.Handler {
	to := destination{c, t}
	transport := s.one
	if multiplexed(c) {
		transport = s.two
	}
	reverse := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out = p.Out.WithContext(context.WithValue(p.Out.Context(), destinationKey{}, to))
			p.Out.URL.Scheme, p.Out.URL.Host = "http", to.host()
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			p.Out.Host = p.In.Host
			cleanRequest(p.Out.Header, p.In.Host, v)
		},
		Transport:     transport,
		FlushInterval: -1,
		BufferPool:    &s.buffers,
		ErrorLog:      s.base.ErrorLog,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			writeProblem(w, r, s.problem(err))
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &countedBody{r.Body, g, s.e}
		}
		counted := &countedWriter{ResponseWriter: w, g: g, stall: s.e.cfg.StallTimeout}
		reverse.ModifyResponse = func(r *http.Response) error {
			cleanResponse(r.Header, r.Request.Host, v.jar)
			if c.Mode == proxy.ModePort {
				r.Header.Add("Vary", "Cookie")
			}
			counted.whole = r.ContentLength == 0
			return nil
		}
		reverse.ServeHTTP(counted, r)
	})
}

func (s *h2side) problem(err error) *problem {
	var large *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &large):
		return bodyTooLarge(large.Limit)
	case errors.As(err, &timeout) && timeout.Timeout():
		return &problem{504, "no-answer", "The app did not answer in time.", "Try again; see the app's log when it goes on.", 0}
	}
	return dialProblem(err)
}

func (s *h2side) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	to, ok := ctx.Value(destinationKey{}).(destination)
	if !ok {
		return nil, errors.New("a connection to no circuit was asked for")
	}
	g, id := s.e.group(to.circuit.ID), to.target.ID()
	// A transport dials on for others when its request has ended: the circuit may have been closed, and be elsewhere now.
	now := s.e.current(to.circuit)
	if now == nil || !now.Has(id) {
		return nil, closedMeanwhile()
	}
	ctx, cancel := context.WithTimeout(ctx, s.e.cfg.DialTimeout)
	defer cancel()
	conn, err := s.e.dial(ctx, now, to.target)
	if err != nil {
		return nil, err
	}
	d := &dialed{Conn: conn, g: g, target: id}
	g.mu.Lock()
	closed := g.closed // since the look at the table
	if !closed {
		g.live[d] = struct{}{}
		g.apps++
	}
	g.mu.Unlock()
	// A target that was closed before the connection was entered is gone from the table; one that is closed later finds it.
	if now = s.e.current(to.circuit); closed || now == nil || !now.Has(id) {
		_ = d.Close()
		return nil, closedMeanwhile()
	}
	return d, nil
}

// dialed is a transport's connection to a target.
type dialed struct {
	net.Conn
	g      *group
	target proxy.TargetID
	once   sync.Once
}

func (d *dialed) uses(targets []proxy.TargetID) bool { return slices.Contains(targets, d.target) }

func (d *dialed) Close() error {
	d.once.Do(func() { d.g.leave(d) })
	return d.Conn.Close()
}

func (d *dialed) end(string) { _ = endBelow(d.Conn).Close() }

type countedBody struct {
	io.ReadCloser
	g *group
	e *Engine
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.g.sent(n, b.e.now.Load())
	return n, err
}

// countedWriter counts and does not wait for visitors who do not read.
type countedWriter struct {
	http.ResponseWriter
	g     *group
	stall time.Duration
	// whole: the head is all there is. It must end its stream by itself: gRPC takes a head, then an end, for a broken answer.
	whole bool
}

func (w *countedWriter) Write(p []byte) (int, error) {
	if w.stall > 0 {
		// Real time: the deadline is the library's. HTTP/1 has the engine's own.
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.stall))
	}
	n, err := w.ResponseWriter.Write(p)
	w.g.out.Add(int64(n))
	return n, err
}

func (w *countedWriter) Flush() {
	if w.whole {
		return
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	if w.stall > 0 {
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Time{})
	}
}

func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// writeProblem answers through net/http.
func writeProblem(w http.ResponseWriter, r *http.Request, p *problem) {
	kind, text := p.body(r.Header.Get("Accept"))
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", problemPolicy)
	if p.retry > 0 {
		h.Set("Retry-After", retryAfter(p.retry))
	}
	w.WriteHeader(p.status)
	_, _ = w.Write(text) // who has gone needs no answer
}

// bufferPool lends ReverseProxy its copy buffers.
type bufferPool struct{ p sync.Pool }

func (b *bufferPool) Get() []byte {
	if one, ok := b.p.Get().(*[]byte); ok {
		return *one
	}
	return make([]byte, 32<<10)
}

func (b *bufferPool) Put(one []byte) { b.p.Put(&one) }
