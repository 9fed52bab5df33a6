package forward

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
)

// client2 speaks HTTP/2 without TLS.
func (r *rig) client2() *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	t := &http.Transport{Protocols: p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
	}, DisableCompression: true}
	r.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// server2 adds a circuit whose app speaks HTTP/2 without TLS alone.
func (r *rig) server2(name string, handler http.Handler) *http.Server {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: handler, Protocols: p}
	var all sync.WaitGroup
	all.Go(func() { _ = s.Serve(l) })
	r.t.Cleanup(func() { r.stop(); _ = s.Close(); all.Wait() })
	r.circuit(name, "h2", l.Addr().String())
	return s
}

func testApp(w http.ResponseWriter, q *http.Request) {
	switch q.URL.Path {
	case "/echo":
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Trailer", "T")
		_, _ = io.Copy(w, q.Body)
		w.Header().Set("T", "end")
	case "/big":
		_, _ = io.CopyN(w, zeros{}, 4<<20)
	case "/head":
		w.Header()["Set-Cookie"] = []string{"a=1", "berth-1=x", "b=2; Domain=.bench"}
		w.Header().Set("Alt-Svc", "x")
		_, _ = fmt.Fprintf(w, "%s %q %q %q %q %q", q.Host, q.Header["Cookie"], q.Header["Authorization"], q.Header["X-Forwarded-For"],
			q.Header["X-Backendai-Token"], q.URL.RawQuery)
	case "/abort":
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "/wait":
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
	}
}

func TestHTTP2(t *testing.T) {
	r := newRig(t, func(c *Config) { c.BodyBytes = 8 << 20 })
	r.server("one", http.HandlerFunc(testApp))
	r.server2("two", http.HandlerFunc(testApp))
	r.handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { _, _ = fmt.Fprint(w, q.Proto, q.Host) })
	for client, c := range map[string]*http.Client{"http1": r.client(), "http2": r.client2()} {
		for _, host := range []string{"one", "two"} {
			t.Run(client+" "+host, func(t *testing.T) {
				var all sync.WaitGroup
				for i := range 100 {
					all.Go(func() {
						size := i * 3001
						resp, err := c.Post("http://"+host+"/echo", "x", strings.NewReader(strings.Repeat("a", size)))
						if err != nil {
							t.Error(err)
							return
						}
						defer resp.Body.Close()
						b, err := io.ReadAll(resp.Body)
						if err != nil || len(b) != size {
							t.Error(len(b), size, err)
						}
						if client == "http2" && resp.Trailer.Get("T") != "end" {
							t.Error("trailer is lost")
						}
					})
				}
				all.Wait()
				q, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+host+"/head?a;b=%zz", nil)
				require.NoError(t, err)
				q.Header = http.Header{"Cookie": {"berth-1=s; a=b", "berth-2=s"}, "Authorization": {"Berth x"}, "X-Forwarded-For": {"1.2.3.4"},
					"X-Backendai-Token": {"s"}}
				resp, err := c.Do(q)
				require.NoError(t, err)
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Equal(t, host+` ["a=b"] [] ["127.0.0.1"] [] "a;b=%zz"`, string(b))
				require.Equal(t, []string{"a=1", "b=2"}, resp.Header["Set-Cookie"])
				require.Empty(t, resp.Header["Alt-Svc"])
				resp, err = c.Get("http://" + host + "/big")
				require.NoError(t, err)
				defer resp.Body.Close()
				n, err := io.Copy(io.Discard, resp.Body)
				require.NoError(t, err)
				require.EqualValues(t, 4<<20, n)
				resp, err = c.Get("http://" + host + "/abort")
				if err == nil {
					defer resp.Body.Close()
					_, err = io.ReadAll(resp.Body)
				}
				require.Error(t, err)
				// A reset by the visitor reaches the app; others go on.
				ctx, cancel := context.WithCancel(t.Context())
				q, err = http.NewRequestWithContext(ctx, "GET", "http://"+host+"/wait", nil)
				require.NoError(t, err)
				resp, err = c.Do(q)
				require.NoError(t, err)
				defer resp.Body.Close()
				cancel()
				_, err = io.ReadAll(resp.Body)
				require.Error(t, err)
				resp, err = c.Post("http://"+host+"/echo", "x", io.MultiReader(strings.NewReader(strings.Repeat("a", 9<<20))))
				if err == nil {
					defer resp.Body.Close()
					if resp.StatusCode == 200 { // it had begun to answer
						_, err = io.ReadAll(resp.Body)
						require.Error(t, err)
					} else {
						require.Equal(t, 413, resp.StatusCode)
					}
				}
			})
		}
	}
	resp, err := r.client2().Get("http://own/")
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "HTTP/2.0own", string(b))
	resp, err = r.client2().Get("http://nobody/")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 404, resp.StatusCode)
}

func TestCloseCircuitResetsStreams(t *testing.T) {
	r := newRig(t, nil)
	r.server2("two", http.HandlerFunc(testApp))
	r.server2("other", http.HandlerFunc(testApp))
	c := r.client2()
	wait, err := c.Get("http://two/wait")
	require.NoError(t, err)
	defer wait.Body.Close()
	r.e.CloseCircuit("two", "gone")
	_, err = io.ReadAll(wait.Body)
	require.Error(t, err)
	resp, err := c.Get("http://two/big") // the circuit is still in the test's table
	require.NoError(t, err)
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.EqualValues(t, 4<<20, n)
}

// An app that goes away in an orderly way (GOAWAY) and comes back.
// What counts against a circuit's connections are visitors, not the connections that their requests made to the app.
func TestConnectionsToAppsAreNoVisitors(t *testing.T) {
	r := newRig(t, func(c *Config) { c.ConnectionsPerCircuit = 4 })
	var inside sync.WaitGroup
	inside.Add(4)
	r.server("app", http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		if q.ProtoMajor == 1 && q.URL.Path == "/together" {
			inside.Done()
			inside.Wait()
		}
	}))
	client := r.client2()
	get := func(path string) int {
		resp, err := client.Get("http://app" + path)
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if code := get("/together"); code != http.StatusOK {
				t.Errorf("got %d", code)
				inside.Done()
			}
		})
	}
	all.Wait()
	g := r.e.group("app")
	until(t, "the requests are over", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.live) == g.apps
	})
	var open []net.Conn
	for range 4 { // idle connections to the app are still there
		c := r.conn()
		open = append(open, c)
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: app\r\n\r\n")
		require.NoError(t, err)
		require.Contains(t, readHeadOf(t, bufio.NewReader(c)), "200 OK")
	}
	require.Equal(t, http.StatusServiceUnavailable, get("/"), "one too many")
	require.NoError(t, open[0].Close())
	until(t, "there is room again", func() bool { return get("/") == http.StatusOK })
}

// A visitor who leaves right after asking breaks nothing: the library begins requests of connections that are over.
func TestVisitorsLeaveRightAfterAsking(t *testing.T) {
	r := newRig(t, nil)
	r.handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "own"}, {":path", "/"}} {
		require.NoError(t, fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	var wire bytes.Buffer
	wire.WriteString(http2.ClientPreface)
	frames := http2.NewFramer(&wire, nil)
	require.NoError(t, frames.WriteSettings())
	for n := range 50 {
		require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*n + 1), BlockFragment: block.Bytes(), EndStream: true,
			EndHeaders: true}))
	}
	var all sync.WaitGroup
	defer all.Wait()
	for range 8 {
		all.Go(func() {
			for range 100 {
				c, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = c.Write(wire.Bytes())
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		})
	}
}

// A transport dials on when its request has ended. What it opens for a circuit that has moved meanwhile must not serve the
// circuit as it is now.
func TestDialsThatComeLate(t *testing.T) {
	var r *rig
	r = newRig(t, func(c *Config) {
		c.Current = func(id string) *circuit.Circuit {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.circuits[id]
		}
	})
	old := r.app("app", canned("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold"))
	old.Revision = 1
	late := func() error {
		conn, err := r.e.h2.dial(context.WithValue(t.Context(), destinationKey{}, destination{old, old.Targets[0]}), "", "")
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	require.NoError(t, late())
	r.mu.Lock()
	moved := *old
	moved.Revision, moved.Targets = 2, []proxy.Target{{Kernel: "k-1", Port: 81, Weight: 1}}
	r.circuits["app"] = &moved
	r.mu.Unlock()
	require.Error(t, late(), "the table is replaced")
	r.e.CloseCircuit("app", "moved")
	require.Error(t, late(), "the circuit's connections have ended")
	r.mu.Lock()
	named := *old
	named.Revision, named.Name = 3, "another"
	r.circuits["app"] = &named
	r.mu.Unlock()
	require.NoError(t, late(), "a change of nothing that matters")
	r.mu.Lock()
	over := named
	end := time.Now().Add(-time.Second)
	over.ExpiresAt = &end
	r.circuits["app"] = &over
	r.mu.Unlock()
	require.Error(t, late(), "its time is over")
}

func TestAppsGoAway(t *testing.T) {
	r := newRig(t, nil)
	s := r.server2("two", http.HandlerFunc(testApp))
	c := r.client2()
	for range 2 {
		resp, err := c.Get("http://two/big")
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, s.Shutdown(t.Context()))
		s = r.server2("two", http.HandlerFunc(testApp))
	}
}

func TestHTTP2OverTLS(t *testing.T) {
	r := newRig(t, nil)
	r.server("one", http.HandlerFunc(testApp))
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	for _, want := range []string{"HTTP/2.0", "HTTP/1.1"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var all sync.WaitGroup
		all.Go(func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			cfg := cert.TLS.Clone()
			cfg.NextProtos = []string{"h2", "http/1.1"}
			s := tls.Server(c, cfg)
			if s.HandshakeContext(t.Context()) == nil {
				r.e.ServeConn(t.Context(), s, Listener{TLS: true})
			}
		})
		tr := &http.Transport{ForceAttemptHTTP2: want == "HTTP/2.0", TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
			}}
		resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("https://one/big")
		require.NoError(t, err)
		require.Equal(t, want, resp.Proto)
		n, err := io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.EqualValues(t, 4<<20, n)
		tr.CloseIdleConnections()
		all.Wait()
		_ = l.Close()
	}
}

// Frames that a correct client does not send.
func TestHTTP2Protocol(t *testing.T) {
	r := newRig(t, nil)
	r.server("one", http.HandlerFunc(testApp))
	open := func() (net.Conn, *http2.Framer) {
		c := r.conn()
		_, err := io.WriteString(c, http2.ClientPreface)
		require.NoError(t, err)
		f := http2.NewFramer(c, c)
		require.NoError(t, f.WriteSettings())
		return c, f
	}
	head := func(fields ...string) []byte {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		for i := 0; i < len(fields); i += 2 {
			require.NoError(t, e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
		}
		return b.Bytes()
	}
	// what returns the first frame of interest: a reset, a goaway, headers or the ping's answer.
	what := func(f *http2.Framer) string {
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return "closed"
			}
			switch fr := frame.(type) {
			case *http2.RSTStreamFrame:
				return "reset"
			case *http2.GoAwayFrame:
				return "goaway"
			case *http2.HeadersFrame:
				d := hpack.NewDecoder(4096, nil)
				fields, err := d.DecodeFull(fr.HeaderBlockFragment())
				require.NoError(t, err)
				return fields[0].Value
			case *http2.PingFrame:
				if fr.IsAck() {
					return "pong"
				}
			}
		}
	}
	plain := []string{":method", "GET", ":scheme", "http", ":path", "/head", ":authority", "one"}
	for name, one := range map[string]struct {
		fields []string
		want   string
	}{
		"plain":           {plain, "200"},
		"no method":       {plain[2:], "refused"},
		"upper case":      {append(plain[:8:8], "X-Upper", "1"), "refused"},
		"connection":      {append(plain[:8:8], "connection", "close"), "refused"},
		"coding":          {append(plain[:8:8], "transfer-encoding", "chunked"), "refused"},
		"te":              {append(plain[:8:8], "te", "gzip"), "refused"},
		"two paths":       {append(plain[:8:8], ":path", "/x"), "refused"},
		"bad value":       {append(plain[:8:8], "x", "a\r\nb: c"), "refused"},
		"host with slash": {[]string{":method", "GET", ":scheme", "http", ":path", "/head", ":authority", "one/x"}, "refused"},
		"no authority":    {plain[:6], "refused"},
		"no slash":        {[]string{":method", "GET", ":scheme", "http", ":path", "head", ":authority", "one"}, "refused"},
		"many fields":     {append(plain[:8:8], strings.Split(strings.Repeat("x,y,", 200), ",")[:400]...), "431"},
	} {
		c, f := open()
		require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head(one.fields...), EndStream: true,
			EndHeaders: true}))
		got := what(f)
		if got == "400" || got == "reset" {
			got = "refused" // one is as good as the other
		}
		require.Equal(t, one.want, got, name)
		require.NoError(t, c.Close())
	}
	_, f := open()
	require.NoError(t, f.WritePing(false, [8]byte{1}))
	require.Equal(t, "pong", what(f))
	require.NoError(t, f.WriteData(5, true, []byte("x"))) // of a stream that was never opened
	require.Equal(t, "goaway", what(f))
	c, _ := open()
	_, err := c.Write(bytes.Repeat([]byte{0xff}, 100))
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, c)
	// Many streams opened and reset at once do not hold the others up for good.
	_, f = open()
	block := head(plain...)
	for i := range uint32(500) {
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block, EndStream: true, EndHeaders: true}) != nil ||
			f.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
			break
		}
	}
	resp, err := r.client2().Get("http://one/head")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
}

// echoService is a gRPC service without generated code.
var echoService = grpc.ServiceDesc{ServiceName: "test.Echo", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Once", Handler: func(_ any, ctx context.Context, decode func(any) error,
		_ grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		md, _ := metadata.FromIncomingContext(ctx)
		if in.Value == "fail" {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("why", "because"))
			return nil, rpcstatus.Error(codes.FailedPrecondition, "not now")
		}
		_ = grpc.SetHeader(ctx, metadata.Pairs("saw", strings.Join(md["x-mine"], ",")))
		return wrapperspb.String(in.Value + in.Value), nil
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Both", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		for {
			in := new(wrapperspb.StringValue)
			if err := s.RecvMsg(in); err == io.EOF {
				s.SetTrailer(metadata.Pairs("count", "all"))
				return nil
			} else if err != nil {
				return err
			}
			if err := s.SendMsg(in); err != nil {
				return err
			}
		}
	}}},
}

func TestGRPC(t *testing.T) {
	r := newRig(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	s.RegisterService(&echoService, struct{}{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { r.stop(); s.Stop(); serving.Wait() })
	r.circuit("app", "grpc", l.Addr().String())
	var conns atomic.Int32
	c, err := grpc.NewClient("passthrough:///app", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("app"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conns.Add(1)
			return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
		}))
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-mine", "yes"), patience)
	defer cancel()
	out := new(wrapperspb.StringValue)
	var header, trailer metadata.MD
	require.NoError(t, c.Invoke(ctx, "/test.Echo/Once", wrapperspb.String("ab"), out, grpc.Header(&header)))
	require.Equal(t, "abab", out.Value)
	require.Equal(t, []string{"yes"}, header["saw"])
	err = c.Invoke(ctx, "/test.Echo/Once", wrapperspb.String("fail"), out, grpc.Trailer(&trailer))
	require.Equal(t, codes.FailedPrecondition, rpcstatus.Code(err), "%v", err)
	require.ErrorContains(t, err, "not now")
	require.Equal(t, []string{"because"}, trailer["why"])
	stream, err := c.NewStream(ctx, &echoService.Streams[0], "/test.Echo/Both")
	require.NoError(t, err)
	for i := range 200 { // each waits for its echo: both directions are open at once
		text := strings.Repeat("m", i*100)
		require.NoError(t, stream.SendMsg(wrapperspb.String(text)))
		require.NoError(t, stream.RecvMsg(out))
		require.Equal(t, text, out.Value)
	}
	require.NoError(t, stream.CloseSend())
	require.Equal(t, io.EOF, stream.RecvMsg(out))
	require.Equal(t, []string{"all"}, stream.Trailer()["count"])
	err = c.Invoke(ctx, "/test.Echo/Missing", wrapperspb.String("x"), out)
	require.Equal(t, codes.Unimplemented, rpcstatus.Code(err), "%v", err)
	// Deadlines of the client reach the app and end the call. One that passes early ends its beginning.
	short, cancel2 := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel2()
	if stream, err = c.NewStream(short, &echoService.Streams[0], "/test.Echo/Both"); err == nil {
		err = stream.RecvMsg(out)
	}
	require.Equal(t, codes.DeadlineExceeded, rpcstatus.Code(err), "%v", err)
	require.EqualValues(t, 1, conns.Load())
}
