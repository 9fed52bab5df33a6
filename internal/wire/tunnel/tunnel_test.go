package tunnel_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("TUNNEL_TEST_CALLEE"); path != "" {
		serveUntilKilled(path, os.Getenv("TUNNEL_TEST_APP"))
	}
	goleak.VerifyTestMain(m)
}

// serveUntilKilled is a callee in a process of its own.
func serveUntilKilled(path, app string) {
	l, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := net.Dial("tcp", app); err == nil {
			_, _, _ = tunnel.Accept(w, r, c)
		}
	})))
}

const patience = time.Minute

// app is what listens inside a kernel: it greets, echoes, and says goodbye after the end of what it was sent.
func app(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { speak(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l
}

func speak(c net.Conn) {
	defer c.Close()
	_, _ = io.WriteString(c, "hello\n")
	_, _ = io.Copy(c, c)
	_, _ = io.WriteString(c, "bye\n")
}

// callee serves tunnels to target on l.
func callee(t *testing.T, l net.Listener, target func() (net.Conn, error)) *http.Server {
	t.Helper()
	var wg sync.WaitGroup
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wg.Add(1)
		defer wg.Done()
		if !tunnel.Asked(r) || r.URL.Path != "/kernels/k/ports/1" {
			run.WriteFailure(w, fault.NotFoundf("no such route"))
			return
		}
		c, err := target()
		if err != nil {
			run.WriteFailure(w, err)
			return
		}
		_, _, _ = tunnel.Accept(w, r, c)
	})}
	wg.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { _ = srv.Close(); wg.Wait() })
	return srv
}

func dialApp(l net.Listener) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) }
}

func listenUnix(t *testing.T) net.Listener {
	t.Helper()
	dir, err := os.MkdirTemp("", "tunnel")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	return l
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial(l.Addr().Network(), l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	conn, err := tunnel.Open(within(t), c, "/kernels/k/ports/1", http.Header{"Authorization": {"Bearer x"}, "Connection": {"close"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// talk checks greeting, echo, and that either direction ends for itself.
func talk(t *testing.T, c net.Conn, size int) {
	t.Helper()
	sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = c.Write(sent)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	})
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.True(t, bytes.Equal(got, append([]byte("hello\n"), append(sent, "bye\n"...)...)), "got %d bytes of %d", len(got), len(sent)+10)
}

func TestHandedOver(t *testing.T) {
	t.Parallel()
	a, l := app(t), listenUnix(t)
	srv := callee(t, l, dialApp(a))
	c := dial(t, l)
	conn := open(t, c)
	require.IsType(t, &net.TCPConn{}, conn)
	require.Equal(t, a.Addr().String(), conn.RemoteAddr().String())
	_, err := c.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed, "the way there is closed")
	require.NoError(t, srv.Close()) // nobody is in between
	talk(t, conn, 1<<20)
}

// TestKilledCallee: who was handed a connection keeps it when the callee's process dies at once, and a new process serves
// new ones.
func TestKilledCallee(t *testing.T) {
	t.Parallel()
	a := app(t)
	dir, err := os.MkdirTemp("", "tunnel")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	start := func() (kill func()) {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "TUNNEL_TEST_CALLEE="+path, "TUNNEL_TEST_APP="+a.Addr().String())
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		kill = sync.OnceFunc(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		t.Cleanup(kill)
		_, err = io.ReadFull(out, make([]byte, len("ready\n")))
		require.NoError(t, err)
		return kill
	}
	connect := func() net.Conn {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		return open(t, c)
	}
	kill := start()
	kept := connect()
	kill()
	require.NoError(t, os.Remove(path))
	start()
	talk(t, connect(), 1<<16)
	talk(t, kept, 1<<20)
}

// TestTwoSteps is the way from an app proxy over an agent to a runner, all of one host.
func TestTwoSteps(t *testing.T) {
	t.Parallel()
	a, runner, agent := app(t), listenUnix(t), listenUnix(t)
	callee(t, runner, dialApp(a))
	callee(t, agent, func() (net.Conn, error) {
		c, err := net.Dial("unix", runner.Addr().String())
		if err != nil {
			return nil, err
		}
		return tunnel.Open(context.Background(), c, "/kernels/k/ports/1", nil)
	})
	conn := open(t, dial(t, agent))
	require.Equal(t, a.Addr().String(), conn.RemoteAddr().String())
	talk(t, conn, 1<<16)
}

// TestSocketPair is an app that the callee serves itself.
func TestSocketPair(t *testing.T) {
	t.Parallel()
	l, inner := listenUnix(t), listenUnix(t)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	wg.Go(func() {
		if c, err := inner.Accept(); err == nil {
			speak(c)
		}
	})
	callee(t, l, func() (net.Conn, error) { return net.Dial("unix", inner.Addr().String()) })
	conn := open(t, dial(t, l))
	require.IsType(t, &net.UnixConn{}, conn)
	require.NotNil(t, conn.RemoteAddr())
	talk(t, conn, 1<<16)
	require.NoError(t, inner.Close())
}

func TestCarried(t *testing.T) {
	t.Parallel()
	a := app(t)
	plain := func(t *testing.T) (net.Listener, func() net.Conn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return l, func() net.Conn { return dial(t, l) }
	}
	for name, c := range map[string]struct {
		listen func(*testing.T) (net.Listener, func() net.Conn)
		target func() (net.Conn, error)
	}{
		"tcp": {plain, dialApp(a)},
		"tls": {func(t *testing.T) (net.Listener, func() net.Conn) {
			l, d := plain(t)
			return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate(t)}}), func() net.Conn {
				return tls.Client(d(), &tls.Config{InsecureSkipVerify: true})
			}
		}, dialApp(a)},
		"tls over unix": {func(t *testing.T) (net.Listener, func() net.Conn) {
			l := listenUnix(t)
			return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate(t)}}), func() net.Conn {
				return tls.Client(dial(t, l), &tls.Config{InsecureSkipVerify: true})
			}
		}, dialApp(a)},
		"target without a descriptor": {func(t *testing.T) (net.Listener, func() net.Conn) {
			l := listenUnix(t)
			return l, func() net.Conn { return dial(t, l) }
		}, func() (net.Conn, error) {
			c, err := net.Dial("tcp", a.Addr().String())
			return bare{c}, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, d := c.listen(t)
			callee(t, l, c.target)
			for range 3 {
				talk(t, open(t, d()), 1<<20)
			}
		})
	}
}

// bare hides what a connection is.
type bare struct{ net.Conn }

func (b bare) CloseWrite() error { return b.Conn.(*net.TCPConn).CloseWrite() }

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestEagerCaller sends the application's bytes without waiting for the reply.
func TestEagerCaller(t *testing.T) {
	t.Parallel()
	a := app(t)
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			l := listenUnix(t)
			if network == "tcp" {
				var err error
				l, err = net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
			}
			callee(t, l, dialApp(a))
			c := dial(t, l)
			require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
			_, err := io.WriteString(c, "POST /kernels/k/ports/1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: berth-conn/1\r\n"+
				"Berth-Hand-Over: fd\r\nContent-Length: 0\r\n\r\nearly\n")
			require.NoError(t, err)
			require.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			_, rest, ok := strings.Cut(string(got), "\r\n\r\n")
			require.True(t, ok, "%q", got)
			require.Equal(t, "Shello\nearly\nbye\n", rest)
		})
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	l := listenUnix(t)
	callee(t, l, func() (net.Conn, error) {
		return nil, fault.Conflictf("kernel k does not run").WithReason("kernel-not-running").WithNext("start it")
	})
	_, err := tunnel.Open(within(t), dial(t, l), "/kernels/k/ports/1", nil)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.Equal(t, "kernel-not-running", fault.ReasonOf(err))
	require.Equal(t, "start it", fault.NextOf(err))
	for _, path := range []string{"", "x", "/a b", "/a\r\nX: y", "/\x00"} {
		_, err := tunnel.Open(within(t), dial(t, l), path, nil)
		require.True(t, fault.Is(err, fault.Internal), "%q: %v", path, err)
	}
}

func TestOpeningIsBounded(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"unix", "tcp"} {
		l := listenUnix(t)
		if network == "tcp" {
			var err error
			l, err = net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
		}
		for _, begins := range []string{"", "HTTP/1.1 101 Switch", "HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\n{"} {
			ctx, cancel := context.WithCancel(t.Context())
			c := dial(t, l)
			s, err := l.Accept()
			require.NoError(t, err)
			_, err = io.WriteString(s, begins)
			require.NoError(t, err)
			var wg sync.WaitGroup
			wg.Go(func() { // gives up once the request is there
				_, _ = s.Read(make([]byte, 1))
				cancel()
			})
			_, err = tunnel.Open(ctx, c, "/kernels/k/ports/1", nil)
			wg.Wait()
			require.Error(t, err)
			require.True(t, fault.Is(err, fault.Timeout), "%v", err)
			require.ErrorIs(t, err, context.Canceled)
			_ = s.Close()
		}
		_ = l.Close()
	}
}

// TestContextEndsAfterOpening checks that what is open does not know the deadline of the opening.
func TestContextEndsAfterOpening(t *testing.T) {
	t.Parallel()
	a := app(t)
	for _, network := range []string{"unix", "tcp"} {
		l := listenUnix(t)
		target := dialApp(a)
		if network == "tcp" {
			var err error
			l, err = net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
		}
		callee(t, l, target)
		ctx, cancel := context.WithCancel(t.Context())
		conn, err := tunnel.Open(ctx, dial(t, l), "/kernels/k/ports/1", nil)
		require.NoError(t, err)
		cancel()
		talk(t, conn, 1<<16)
		_ = conn.Close()
	}
}

// TestClosingTheTargetEndsIt is how an agent ends what it carries for a kernel that is gone.
func TestClosingTheTargetEndsIt(t *testing.T) {
	t.Parallel()
	a := app(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	targets := make(chan net.Conn, 1)
	callee(t, l, func() (net.Conn, error) {
		c, err := net.Dial("tcp", a.Addr().String())
		targets <- c
		return c, err
	})
	conn := open(t, dial(t, l))
	_, err = io.ReadFull(conn, make([]byte, 6))
	require.NoError(t, err)
	require.NoError(t, (<-targets).Close())
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
}

// TestJoinSplices checks that the kernel moves the bytes: splicing needs pipes.
func TestJoinSplices(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			pair := func(l net.Listener) (net.Conn, net.Conn) {
				c := dial(t, l)
				s, err := l.Accept()
				require.NoError(t, err)
				require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
				return c, s
			}
			near, a := pair(l)
			other := l
			if network == "unix" {
				other = listenUnix(t)
				defer other.Close()
			}
			far, b := pair(other)
			var wg sync.WaitGroup
			wg.Go(func() {
				in, out := tunnel.Join(a, b)
				require.Equal(t, int64(5), in)
				require.Equal(t, int64(6), out)
				_, _ = a.Close(), b.Close()
			})
			for i := range 3 {
				step := []string{"ab", "cd", "e"}[i]
				_, err = io.WriteString(near, step)
				require.NoError(t, err)
				_, err = io.ReadFull(far, make([]byte, len(step)))
				require.NoError(t, err)
				_, err = io.WriteString(far, "xy")
				require.NoError(t, err)
				_, err = io.ReadFull(near, make([]byte, 2))
				require.NoError(t, err)
			}
			require.GreaterOrEqual(t, pipes(t), 4, "bytes were copied through this process")
			_, _ = near.Close(), far.Close()
			wg.Wait()
		})
	}
}

func pipes(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range list {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if strings.HasPrefix(to, "pipe:") && e.Name() != "0" && e.Name() != "1" && e.Name() != "2" {
			n++
		}
	}
	return n
}

func BenchmarkOpenHandedOver(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	})
	path := filepath.Join(b.TempDir(), "s")
	u, err := net.Listen("unix", path)
	require.NoError(b, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			_, _, _ = tunnel.Accept(w, r, c)
		}
	})}
	wg.Go(func() { _ = srv.Serve(u) })
	b.ReportAllocs()
	for b.Loop() {
		c, err := net.Dial("unix", path)
		if err == nil {
			c, err = tunnel.Open(b.Context(), c, "/kernels/k/ports/1", nil)
		}
		if err != nil {
			b.Fatal(fmt.Errorf("open: %w", err))
		}
		_ = c.Close()
	}
	_, _ = srv.Close(), l.Close()
}
