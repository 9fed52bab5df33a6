package bench_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// runReverse serves what runProxy does with the standard library's reverse proxy, and with nothing else: it admits everybody,
// limits nothing and counts nothing, so that what is compared is the carrying of bytes alone, in the library's favour.
func runReverse(t *testing.T, said map[string]string) {
	raise(t)
	addr := map[string]string{"files": os.Getenv("BERTH_ROLE_FILES"), "echo": os.Getenv("BERTH_ROLE_ECHO")}
	reverse := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			label, _, _ := strings.Cut(p.In.Host, ".")
			p.Out.URL.Scheme, p.Out.URL.Host = "http", addr[label]
			p.Out.Host = p.In.Host
			p.SetXForwarded()
		},
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, WriteBufferSize: 32 << 10, ReadBufferSize: 32 << 10},
		FlushInterval: -1, // as our engine does: an app's answer is not held back
		BufferPool:    new(copyBuffers),
		ErrorLog:      log.New(io.Discard, "", 0), // wrk breaks its connections off at the end of a round
	}
	s := &http.Server{Handler: reverse}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { _ = s.Close(); serving.Wait() })
	said["http"], said["pid"] = l.Addr().String(), strconv.Itoa(os.Getpid())
}

// copyBuffers lends the reverse proxy its buffers.
type copyBuffers struct{ p sync.Pool }

func (b *copyBuffers) Get() []byte {
	if one, ok := b.p.Get().(*[]byte); ok {
		return *one
	}
	return make([]byte, 32<<10)
}

func (b *copyBuffers) Put(one []byte) { b.p.Put(&one) }

// BenchmarkProxyEngine compares the app proxy's own HTTP/1 engine with httputil.ReverseProxy, round by round before the same
// upstreams: small files, larger ones, and echoes over WebSockets. The decision record 0016 quotes it.
func BenchmarkProxyEngine(b *testing.B) {
	p := newProxies(b, 0)
	standard := newRole(b, "reverse", "FILES="+p.files, "ECHO="+p.echo.said["echo"])
	address := standard.said["http"]
	pid, err := strconv.Atoi(standard.said["pid"])
	require.NoError(b, err)
	n := setting("BERTH_BENCH_ROUNDS", 5)
	seconds := setting("BERTH_BENCH_SECONDS", 3)
	compare := func(what string, ours, other func() load) {
		var mine, theirs []load
		for i := range n + 1 {
			l1, l2 := ours(), other()
			if i > 0 { // the first round warms both
				mine, theirs = append(mine, l1), append(theirs, l2)
			}
		}
		o, q := middle(mine), middle(theirs)
		fmt.Printf("proxy engine %s: %.1f us CPU, httputil.ReverseProxy %.1f us, ratio %.2f (less is better); %.0f/s, ReverseProxy %.0f/s; "+
			"p50 %.2f ms p99 %.2f ms, ReverseProxy %.2f ms %.2f ms\n", what,
			us(o.cpu), us(q.cpu), us(o.cpu)/us(q.cpu), o.rate, q.rate, ms(o.p50), ms(o.p99), ms(q.p50), ms(q.p99))
	}
	for _, path := range []string{"1k", "256k"} {
		compare("request of "+path, func() load { return p.wrk(p.ours, path, p.pid, 32, seconds) },
			func() load { return p.wrk(address, path, pid, 32, seconds) })
	}
	d := time.Duration(seconds) * time.Second
	compare("websocket echo", func() load { return p.echoes(p.ours, p.pid, 32, d) },
		func() load { return p.echoes(address, pid, 32, d) })
	mine, theirs := p.held(p.ours, p.pid), p.held(address, pid)
	fmt.Printf("proxy engine memory: %.1f KiB an open websocket, httputil.ReverseProxy %.1f KiB, ratio %.2f (less is better)\n",
		mine, theirs, mine/theirs)
}

// held is what an open WebSocket that has echoed once costs a proxy in memory, in KiB.
func (p *proxies) held(address string, pid int) float64 {
	p.b.Helper()
	const open = 2000
	raise(p.b)
	before := resident(pid)
	for range open {
		echo, closed := webSocket(p.b, address, "echo.bench")
		defer closed()
		require.NoError(p.b, echo())
	}
	return float64(resident(pid)-before) / open / 1024
}
