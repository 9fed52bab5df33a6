// Command webdemo is an app for tests and demonstrations: it shows what reaches an app behind the app proxy, and misbehaves
// on request. It is no part of the platform. The image berth/web-demo holds it, stories and measurements drive it.
//
// Every port has its flag; a port that is not named is not served, so one service definition may start each app alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	host := flag.String("host", "127.0.0.1", "address to listen on")
	web := flag.Int("http", 0, "port of the pages: HTTP/1.1 and HTTP/2 without TLS")
	echo := flag.Int("tcp", 0, "port of the TCP echo")
	rpc := flag.Int("grpc", 0, "port of gRPC without TLS (grpc.testing.TestService)")
	after := flag.Duration("after", 0, "wait this long before listening")
	never := flag.Bool("never", false, "never listen: an app that does not become ready")
	failing := flag.Int("fail", 0, "end at once with this exit code, after a line on standard error")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if *failing != 0 {
		fmt.Fprintln(os.Stderr, "webdemo: told to fail")
		os.Exit(*failing)
	}
	if err := run(ctx, *host, *web, *echo, *rpc, *after, *never); err != nil {
		fmt.Fprintln(os.Stderr, "webdemo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, host string, web, echo, rpc int, after time.Duration, never bool) error {
	if never {
		<-ctx.Done()
		return nil
	}
	select {
	case <-time.After(after):
	case <-ctx.Done():
		return nil
	}
	servers := []struct {
		name  string
		port  int
		serve func(net.Listener) error
	}{{"http", web, serveHTTP}, {"tcp", echo, serveEcho}, {"grpc", rpc, serveGRPC}}
	ended := make(chan error, len(servers))
	serving := 0
	for _, s := range servers {
		if s.port == 0 {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(s.port)))
		if err != nil {
			return fmt.Errorf("listen for %s: %w", s.name, err)
		}
		fmt.Printf("webdemo: %s at %s\n", s.name, l.Addr())
		serving++
		go func() { ended <- s.serve(l) }()
	}
	if serving == 0 {
		return errors.New("no port: name --http, --tcp or --grpc")
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// serveHTTP serves the pages. Only heads are bounded in time: bodies may be as slow as a test wants them.
func serveHTTP(l net.Listener) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: pages(), ReadHeaderTimeout: time.Minute, Protocols: &protocols}
	return server.Serve(l)
}

// serveEcho sends every byte back and passes on the half-close.
func serveEcho(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			tcp := c.(*net.TCPConn)
			_, _ = tcp.ReadFrom(tcp) // splice: the echo should cost less than what is measured through it
			_ = tcp.CloseWrite()
		}()
	}
}
