// Package h2 speaks HTTP/2 on connections whose TLS handshake is over and whose ALPN name is one of Berth's own. Serve is the
// server's side, NewClient the client's; which side dialed does not matter. The links of the manager use it.
package h2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	// pingEvery and pingWait notice a connection that is dead.
	pingEvery, pingWait = 15 * time.Second, 15 * time.Second
	maxHeader           = 64 << 10
)

// transport makes all clients; none of them is its own. It dials nothing but takes the connection that NewClient hands it.
var transport = newTransport()

func newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true) // the TLS is around it already
	return &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if h, ok := ctx.Value(handed{}).(*handed); ok && h.conn != nil {
				conn := h.conn
				h.conn = nil
				return conn, nil
			}
			return nil, errors.New("this connection is not dialed again")
		},
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingEvery, PingTimeout: pingWait},
		DisableCompression:     true, // bytes pass as they are
		MaxResponseHeaderBytes: maxHeader,
	}
}

// handed is a connection on its way to the transport, in a context.
type handed struct{ conn net.Conn }

// NewClient begins HTTP/2 as its client. name stands for the peer in errors. The connection carries requests until it
// breaks or is closed; nothing is ever dialed again.
func NewClient(ctx context.Context, name string, conn net.Conn) (*http.ClientConn, error) {
	client, err := transport.NewClientConn(context.WithValue(ctx, handed{}, &handed{conn}), "http", "peer:80")
	if err != nil {
		return nil, fmt.Errorf("speak HTTP/2 with %s: %w", name, err)
	}
	return client, nil
}

// Serve serves one connection until it or ctx ends, and waits for the handlers it began. It closes conn.
func Serve(ctx context.Context, conn net.Conn, server *http2.Server, maxHeader int, handler http.Handler, log *slog.Logger) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var work sync.WaitGroup
	var mu sync.Mutex // orders work.Add against Wait
	ended := false
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if ended {
			mu.Unlock()
			return
		}
		work.Add(1)
		mu.Unlock()
		defer work.Done()
		handler.ServeHTTP(w, r)
	})
	server.ServeConn(conn, &http2.ServeConnOpts{Context: ctx, Handler: counted, BaseConfig: &http.Server{
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}})
	cancel()
	mu.Lock()
	ended = true
	mu.Unlock()
	work.Wait()
}
