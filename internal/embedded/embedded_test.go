package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
)

// stateDirVariable turns the test binary into a berth that somebody will kill.
const stateDirVariable = "EMBEDDED_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(stateDirVariable); dir != "" {
		victim(dir)
		return
	}
	os.Exit(m.Run())
}

func config(dir string) embedded.Config {
	c := embedded.DefaultConfig()
	c.StateDir = dir
	c.UnsafeNoSync = true
	return c
}

// stateDir returns a directory that the database's user can reach, unlike t.TempDir.
func stateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-embedded-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func needPostgres(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("postgres"); err == nil {
		return
	}
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres"); len(found) > 0 {
		return
	}
	t.Skip("no PostgreSQL is installed")
}

func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// scribe keeps log output that may arrive after a test's end.
type scribe struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *scribe) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

// exercise writes to and reads from all three services through the clients that roles use.
func exercise(ctx context.Context, t *testing.T, e *embedded.Endpoints) {
	t.Helper()
	conn, err := pgx.Connect(ctx, e.PostgresDSN)
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS visits (n int)")
	require.NoError(t, err)
	_, err = conn.Exec(ctx, "INSERT INTO visits VALUES (1)")
	require.NoError(t, err)

	_, err = e.Etcd.Put(ctx, "/k", "v")
	require.NoError(t, err)
	got, err := e.Etcd.Get(ctx, "/k")
	require.NoError(t, err)
	require.Equal(t, "v", string(got.Kvs[0].Value))

	client, err := valkey.NewClient(e.Redis)
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.Do(ctx, client.B().Set().Key("a").Value("b").Px(50*time.Millisecond).Build()).Error())
	require.Eventually(t, func() bool {
		return valkey.IsValkeyNil(client.Do(ctx, client.B().Get().Key("a").Build()).Error())
	}, 30*time.Second, 5*time.Millisecond, "the key does not expire")
}

func visits(ctx context.Context, t *testing.T, dsn string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer conn.Close(ctx)
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM visits").Scan(&n))
	return n
}

func TestStackServesAndKeepsWhatItShould(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	for _, kind := range []embedded.RedisKind{embedded.RedisAuto, embedded.RedisInProcess} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			dir, ctx := stateDir(t), t.Context()
			cfg := config(dir)
			cfg.Redis = kind
			for round := 1; round <= 2; round++ {
				e, stop, err := embedded.Start(ctx, cfg, logger(t))
				require.NoError(t, err)
				exercise(ctx, t, e)
				require.Equal(t, round, visits(ctx, t, e.PostgresDSN))
				require.NoError(t, stop(ctx))
			}
		})
	}
}

func TestLongStateDirectoriesWork(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	dir := filepath.Join(stateDir(t), strings.Repeat("d", 60), strings.Repeat("e", 60))
	require.NoError(t, os.MkdirAll(dir, 0o711))
	e, stop, err := embedded.Start(t.Context(), config(dir), logger(t))
	require.NoError(t, err)
	exercise(t.Context(), t, e)
	sockets := embedded.SocketDir(dir, "pg", ".s.PGSQL.5432")
	require.DirExists(t, sockets)
	require.NoError(t, stop(t.Context()))
	require.NoDirExists(t, sockets)
}

func TestUnreachableStateDirectoryIsNamed(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	if os.Geteuid() != 0 {
		t.Skip("only root starts children as another user")
	}
	closed := filepath.Join(stateDir(t), "closed")
	require.NoError(t, os.Mkdir(closed, 0o700))
	_, _, err := embedded.Start(t.Context(), config(filepath.Join(closed, "state")), logger(t))
	require.ErrorContains(t, err, closed)
	require.ErrorContains(t, err, "cannot enter")
}

func TestKilledChildrenComeBack(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	ctx := t.Context()
	cfg := config(stateDir(t))
	cfg.UnsafeNoSync = false // what was acknowledged must survive the kill
	s, err := embedded.New(cfg, slog.New(slog.NewTextHandler(&scribe{}, nil)))
	require.NoError(t, err)
	g, err := chassis.NewGroup(slog.New(slog.DiscardHandler), s.Services()...)
	require.NoError(t, err)
	require.NoError(t, g.Start(ctx))
	e := s.Endpoints()
	exercise(ctx, t, &e)
	for name, pid := range map[string]func() int{"postgres": s.Postgres.Pid, "redis": s.Redis.Pid} {
		old := pid()
		if old == 0 {
			continue // Redis runs in process here
		}
		require.NoError(t, syscall.Kill(old, syscall.SIGKILL))
		require.Eventually(t, func() bool { n := pid(); return n != 0 && n != old }, time.Minute, 10*time.Millisecond, name)
	}
	require.Eventually(t, func() bool {
		conn, err := pgx.Connect(ctx, e.PostgresDSN)
		if err != nil {
			return false
		}
		return conn.Close(ctx) == nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, 1, visits(ctx, t, e.PostgresDSN))
	require.NoError(t, g.Stop(ctx))
}

// victim is a process that starts the services, says so, and waits to be killed.
func victim(dir string) {
	c := config(dir)
	c.UnsafeNoSync = false
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := embedded.New(c, log)
	if err != nil {
		panic(err)
	}
	g, err := chassis.NewGroup(log, s.Services()...)
	if err != nil {
		panic(err)
	}
	if err := g.Start(context.Background()); err != nil {
		panic(err)
	}
	fmt.Println(s.Postgres.Pid(), s.Redis.Pid())
	select {}
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	dir, ctx := stateDir(t), t.Context()
	var pids []int
	for range 3 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), stateDirVariable+"="+dir)
		cmd.Stderr = testWriter{t}
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		require.NoError(t, out.(*os.File).SetReadDeadline(time.Now().Add(3*time.Minute)))
		var pg, redis int
		_, err = fmt.Fscan(out, &pg, &redis)
		require.NoError(t, err)
		pids = append(pids, pg)
		if redis != 0 {
			pids = append(pids, redis)
		}
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
	}
	// At once after the last kill: the old server may still be shutting down.
	e, stop, err := embedded.Start(ctx, config(dir), logger(t))
	require.NoError(t, err)
	exercise(ctx, t, e)
	require.NoError(t, stop(ctx))
	for _, pid := range pids {
		require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) },
			time.Minute, 10*time.Millisecond, "child %d outlives its parent", pid)
	}
}
