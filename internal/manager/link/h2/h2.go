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

// NewClient begins HTTP/2 as its client. name stands for the peer in errors. The connection carries requests until it
// breaks or is closed; nothing is ever dialed again.
func NewClient(ctx context.Context, name string, conn net.Conn) (*http.ClientConn, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true) // the TLS is around it already
	taken := false
	t := &http.Transport{
		Protocols: protocols,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if taken {
				return nil, errors.New("this connection is not dialed again")
			}
			taken = true
			return conn, nil
		},
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingEvery, PingTimeout: pingWait},
		DisableCompression:     true, // bytes pass as they are
		MaxResponseHeaderBytes: maxHeader,
	}
	client, err := t.NewClientConn(ctx, "http", "peer:80")
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
