package httpapi_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// logbook takes what several goroutines log.
type logbook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// with waits until a text has been logged, which may be after the reply, and returns the whole log.
func (l *logbook) with(t *testing.T, text string) string {
	t.Helper()
	require.Eventually(
		t, func() bool { return strings.Contains(l.String(), text) }, patience, time.Millisecond, "not logged: %s", text,
	)
	return l.String()
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// dialContext fits a dialer of one place into a transport.
func dialContext(dial func(context.Context) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
}
