package proc_test

import (
	"bytes"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/testkit/await"
)

// These tests share one Table: it waits for every child of the test process. Its processes are confined, to no groups.
var table = sync.OnceValue(func() *proc.Table {
	t := proc.NewTable()
	t.Confine(nil, nil)
	return t
})

func shell(line string, files ...*os.File) proc.Spec {
	return proc.Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", line}, Env: os.Environ(), Dir: "/", Files: files}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]proc.Status{"exit 0": {}, "exit 7": {Code: 7}, "kill -KILL $$": {Code: 137, Signal: syscall.SIGKILL}} {
		p, err := table().Start(shell(line))
		require.NoError(t, err)
		got := p.Status()
		require.Equal(t, want.Code, got.Code, line)
		require.Equal(t, want.Signal, got.Signal, line)
		require.Positive(t, got.MaxRSS)
		p.Signal(syscall.SIGKILL) // reaped: its number may be another's by now, nothing is sent
	}
	_, err := table().Start(proc.Spec{Path: "/no/such/file", Argv: []string{"x"}})
	require.Equal(t, 127, proc.ExitCodeOf(err))
	_, err = table().Start(proc.Spec{Path: "/etc", Argv: []string{"x"}})
	require.Equal(t, 126, proc.ExitCodeOf(err))
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			p, err := table().Start(proc.Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", "exit $1", "sh", string(rune('0' + i%10))},
				Env: os.Environ()})
			if err != nil || p.Status().Code != i%10 {
				t.Error("status", i, err)
			}
		})
	}
	wg.Wait()
}

func TestEndEscalates(t *testing.T) {
	t.Parallel()
	p, err := table().Start(shell("sleep 600"))
	require.NoError(t, err)
	require.Equal(t, syscall.SIGTERM, p.End(time.Minute).Signal)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p, err = table().Start(shell("trap '' TERM; echo ready; while :; do sleep 0.01; done", nil, w))
	require.NoError(t, err)
	w.Close()
	_, err = r.Read(make([]byte, 6))
	require.NoError(t, err)
	require.Equal(t, syscall.SIGKILL, p.End(20*time.Millisecond).Signal)
	r.Close()
}

func TestDrainSettles(t *testing.T) {
	t.Parallel()
	for range 50 {
		var before, after bytes.Buffer
		var mu sync.Mutex
		to := func(b *bytes.Buffer) func([]byte) {
			return func(p []byte) {
				mu.Lock()
				b.Write(p)
				mu.Unlock()
			}
		}
		d, w, err := proc.Pipe(to(&before))
		require.NoError(t, err)
		_, err = w.Write([]byte("first"))
		require.NoError(t, err)
		d.Settle(to(&after)) // the writing end stays open, as with a child left behind
		mu.Lock()
		require.Equal(t, "first", before.String())
		mu.Unlock()
		_, err = w.Write([]byte("second"))
		require.NoError(t, err)
		w.Close()
		await.Value(t, d.Done())
		require.Equal(t, "second", after.String())
		d.Settle(to(&before)) // after the end it returns at once
	}
}

// TestDrainSettlesUnderAFlood: a child that was left behind may write without a pause.
func TestDrainSettlesUnderAFlood(t *testing.T) {
	t.Parallel()
	var d *proc.Drain
	var w *os.File
	var rest atomic.Int64 // what comes after the first byte
	began := make(chan struct{})
	sink := func(b []byte) {
		if rest.Add(int64(len(b))) == 1 {
			close(began)
			return
		}
		if _, err := w.Write(b[:min(len(b), 4<<10)]); err != nil { // the pipe is never empty
			t.Error(err)
		}
	}
	d, w, err := proc.Pipe(sink)
	require.NoError(t, err)
	_, err = w.Write([]byte("x"))
	require.NoError(t, err)
	await.Value(t, began)
	_, err = w.Write(make([]byte, 4<<10))
	require.NoError(t, err)
	await.Return(t, func() { d.Settle(func([]byte) {}) })
	require.NoError(t, w.Close())
	await.Value(t, d.Done())
}

func TestAsUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	user := &proc.Credential{UID: 4242, GID: 4243, Groups: []int{4244}}
	dir, err := os.MkdirTemp("", "asuser") // unlike t.TempDir's, its parent is open to others
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	open, secret := dir+"/open", dir+"/secret"
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Mkdir(open, 0o777))
	require.NoError(t, os.Chmod(open, 0o777))
	require.NoError(t, os.WriteFile(secret, []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(dir+"/group", []byte("x"), 0o040))
	require.NoError(t, os.Chown(dir+"/group", 0, 4244))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := proc.AsUser(user, func() error {
				if _, err := os.ReadFile(dir + "/group"); err != nil {
					return err
				}
				_, err := os.ReadFile(secret)
				return err
			})
			if !os.IsPermission(err) {
				t.Errorf("as the user: %v", err)
			}
			if _, err := os.ReadFile(secret); err != nil {
				t.Errorf("as root: %v", err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, proc.AsUser(user, func() error { return os.WriteFile(open+"/mine", nil, 0o600) }))
	fi, err := os.Stat(open + "/mine")
	require.NoError(t, err)
	require.EqualValues(t, 4242, fi.Sys().(*syscall.Stat_t).Uid)
	require.EqualValues(t, 4243, fi.Sys().(*syscall.Stat_t).Gid)
}
