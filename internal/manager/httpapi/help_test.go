package httpapi_test

import (
	"bytes"
	"context"
	"net"
	"sync"
)

// lockedWriter takes what several goroutines log. Its buffer is read after the requests are over.
type lockedWriter struct {
	mu sync.Mutex
	b  *bytes.Buffer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// dialContext fits a dialer of one place into a transport.
func dialContext(dial func(context.Context) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
}
