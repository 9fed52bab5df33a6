package jupyter

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/zmtp"
	"berth.dev/berth/internal/testkit/await"
)

// sockets are the ends of a kernel that a test plays.
type sockets struct {
	*Kernel             // its key; how messages are made and read
	shell, iopub, stdin *zmtp.Conn
	cells               chan message // execute_requests
}

// greeted connects to a kernel that the test plays, and returns both sides.
func greeted(t *testing.T) (*Kernel, sockets) {
	t.Helper()
	c := NewConnection(filepath.Join(t.TempDir(), "k"))
	far := sockets{Kernel: &Kernel{key: []byte(c.Key)}, cells: make(chan message, 1)}
	var greet, serve sync.WaitGroup
	for suffix, s := range map[string]struct {
		conn **zmtp.Conn
		typ  string
	}{"-1": {&far.shell, "ROUTER"}, "-2": {&far.iopub, "PUB"}, "-3": {&far.stdin, "ROUTER"}} {
		l, err := net.Listen("unix", c.Base+suffix)
		require.NoError(t, err)
		defer l.Close()
		greet.Go(func() {
			if conn, err := l.Accept(); err == nil {
				*s.conn, _ = zmtp.Handshake(conn, s.typ, "", time.Minute)
			}
		})
	}
	serve.Go(func() {
		greet.Wait()
		far.serve(t)
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	k, err := Connect(ctx, c, func(string, string) {})
	require.NoError(t, err)
	t.Cleanup(serve.Wait)
	t.Cleanup(k.Close)
	t.Cleanup(func() { _, _, _ = far.shell.Close(), far.iopub.Close(), far.stdin.Close() })
	return k, far
}

// serve answers greetings, which may come more than once, and passes cells on.
func (s sockets) serve(t *testing.T) {
	for {
		raw, err := s.shell.Recv()
		if err != nil {
			return
		}
		m, err := s.parse(raw)
		if err != nil {
			t.Errorf("read a request: %v", err)
			return
		}
		if m.header.MsgType == "execute_request" {
			s.cells <- m
			continue
		}
		_ = s.send(s.iopub, "b", "status", m.raw, map[string]any{"execution_state": "idle"})
		_ = s.send(s.shell, "r", "kernel_info_reply", m.raw, map[string]any{})
	}
}

// tell broadcasts something that belongs to a request.
func (s sockets) tell(t *testing.T, of message, typ string, content map[string]any) {
	t.Helper()
	require.NoError(t, s.send(s.iopub, "b", typ, of.raw, content))
}

// printed takes what a cell prints.
type printed struct {
	mu   sync.Mutex
	text strings.Builder
}

func (p *printed) Text(_, text string) { p.TextNow("", text) }
func (p *printed) TextNow(_, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text.WriteString(text)
}
func (*printed) MediaNow(string, string)   {}
func (*printed) Congested() bool           { return false }
func (*printed) Relieved() <-chan struct{} { return nil }
func (*printed) Ask(bool) cell.Answer      { return cell.Answer{None: true} }

type result struct {
	code int
	err  error
}

// executing runs a cell; the request has reached the kernel when it returns.
func executing(t *testing.T, k *Kernel, far sockets, sink cell.Sink) (message, <-chan result) {
	t.Helper()
	over := make(chan result, 1)
	go func() {
		code, err := k.Execute("die()", false, sink)
		over <- result{code, err}
	}()
	return await.Value(t, far.cells), over
}

// patient makes a connection wait for the last words of its kernel however long a busy machine takes to say them.
func patient(k *Kernel) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = time.Minute
}

// noticed waits until the connection knows that the kernel is going.
func noticed(t *testing.T, k *Kernel) {
	t.Helper()
	require.Eventually(t, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.limit != nil
	}, time.Minute, time.Millisecond)
}

// TestLastOutputOfAKernelThatDied: the sockets of a kernel end one after the other, and what it printed before lies in another one than
// the first that ends.
func TestLastOutputOfAKernelThatDied(t *testing.T) {
	t.Parallel()
	k, far := greeted(t)
	patient(k)
	var out printed
	m, over := executing(t, k, far, &out)
	require.NoError(t, far.shell.Close())
	noticed(t, k)
	far.tell(t, m, "stream", map[string]any{"name": "stdout", "text": "last words\n"})
	_, _ = far.iopub.Close(), far.stdin.Close()
	require.Equal(t, result{0, ErrLost}, await.Value(t, over))
	require.Equal(t, "last words\n", out.text.String())
}

// TestAReplyBeforeTheEndCounts: a cell that was answered has not failed because its kernel ended then.
func TestAReplyBeforeTheEndCounts(t *testing.T) {
	t.Parallel()
	k, far := greeted(t)
	patient(k)
	m, over := executing(t, k, far, &printed{})
	require.NoError(t, far.stdin.Close())
	noticed(t, k)
	require.NoError(t, far.send(far.shell, "r", "execute_reply", m.raw, map[string]any{"status": "ok"}))
	far.tell(t, m, "status", map[string]any{"execution_state": "idle"})
	_, _ = far.iopub.Close(), far.shell.Close()
	require.Equal(t, result{0, nil}, await.Value(t, over))
}

// TestAKernelWhoseSocketsAreHeld: another process has the other sockets, so they do not end.
func TestAKernelWhoseSocketsAreHeld(t *testing.T) {
	t.Parallel()
	k, far := greeted(t)
	_, over := executing(t, k, far, &printed{})
	require.NoError(t, far.shell.Close())
	require.Equal(t, result{0, ErrLost}, await.Value(t, over))
}
