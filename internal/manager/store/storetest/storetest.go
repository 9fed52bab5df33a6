// Package storetest gives every test its own migrated database on a real PostgreSQL.
//
// One server is started per test process (from PATH or /usr/lib/postgresql/*/bin, as a plain user when the test runs as
// root), or the one of BERTH_TEST_DSN is used, which must allow CREATE DATABASE: scripts/testdb runs one for a whole run of tests. The
// schema is migrated once into a template; each test clones it. The server's time zone is an odd one on purpose.
package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/manager/store"
)

const serverTimeZone = "Pacific/Chatham" // +12:45 or +13:45

// patience is how long a server of tests may take for what is no test's subject: many of them start at once, on a busy machine.
const patience = 3 * time.Minute

var (
	server   = sync.OnceValues(startServer)
	template = sync.OnceValues(makeTemplate)
	cloning  sync.Mutex
	counter  atomic.Int64
)

// New returns a store on a database of the test's own, running its exchange of hints.
func New(t testing.TB) *store.Store {
	t.Helper()
	return Open(t, DSN(t))
}

// Open is New on a database that the test made with DSN: a second manager of the same cluster.
func Open(t testing.TB, dsn string) *store.Store {
	t.Helper()
	return OpenWith(t, store.Config{DSN: dsn})
}

// OpenWith is Open with another configuration.
func OpenWith(t testing.TB, c store.Config) *store.Store {
	t.Helper()
	c.SkipMigrations = true
	s, err := store.Open(t.Context(), c, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatalf("open the test's database: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		s.Close()
	})
	return s
}

// Beside returns another store on the database of s: a second manager of the same cluster.
func Beside(t testing.TB, s *store.Store) *store.Store {
	t.Helper()
	dsn, err := server()
	if err != nil {
		t.Fatal(err)
	}
	return Open(t, with(dsn, s.Pool().Config().ConnConfig.Database))
}

// Waiting is how many transactions of the database of s wait for what others hold. A commit with NOTIFY waits for those of every database
// of the server (wait_event object): it is not counted.
func Waiting(t testing.TB, s *store.Store) (n int) {
	t.Helper()
	if err := s.Pool().QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event <> 'object'`).Scan(&n); err != nil {
		t.Fatalf("count what waits: %v", err)
	}
	return n
}

// DSN makes a database of the test's own and returns its address; it is dropped after the test.
func DSN(t testing.TB) string {
	t.Helper()
	from, err := template()
	if err != nil {
		t.Fatalf("prepare PostgreSQL for tests: %v", err)
	}
	name := fmt.Sprintf("t%d_%d", os.Getpid(), counter.Add(1))
	cloning.Lock()
	err = admin(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+from+" STRATEGY FILE_COPY")
		return err
	})
	cloning.Unlock()
	if err != nil {
		t.Fatalf("clone the test's database: %v", err)
	}
	t.Cleanup(func() {
		err := admin(func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
			return err
		})
		if err != nil {
			t.Logf("drop the test's database: %v", err)
		}
	})
	dsn, err := server()
	if err != nil {
		t.Fatal(err)
	}
	return with(dsn, name)
}

// with returns the address of another database of the same server.
func with(dsn, database string) string {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return dsn
	}
	// On a busy machine a connection may take longer than a manager waits for one.
	out := fmt.Sprintf("host='%s' port=%d user='%s' dbname=%s connect_timeout=60", c.Host, c.Port, c.User, database)
	if c.Password != "" {
		out += fmt.Sprintf(" password='%s'", c.Password)
	}
	if c.TLSConfig == nil {
		out += " sslmode=disable"
	}
	return out
}

func admin(fn func(ctx context.Context, c *pgx.Conn) error) error {
	dsn, err := server()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return fn(ctx, c)
}

func makeTemplate() (string, error) {
	dsn, err := server()
	if err != nil {
		return "", err
	}
	name := "berth_template_" + store.SchemaVersion()
	err = admin(func(ctx context.Context, c *pgx.Conn) error {
		sum := sha256.Sum256([]byte(name))
		lock := int64(sum[0])<<8 | int64(sum[1])
		if _, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", lock); err != nil {
			return err
		}
		defer c.Exec(ctx, "SELECT pg_advisory_unlock($1)", lock) //nolint:errcheck // the session ends next
		var there bool
		if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)", name).Scan(&there); err != nil {
			return err
		}
		if !there {
			if _, err := c.Exec(ctx, "CREATE DATABASE "+name); err != nil {
				return err
			}
		}
		s, err := store.Open(ctx, store.Config{DSN: with(dsn, name), MaxConns: 2}, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		s.Close()
		return nil
	})
	return name, err
}

// startServer returns the address of the maintenance database of a running server.
func startServer() (string, error) {
	if dsn := os.Getenv("BERTH_TEST_DSN"); dsn != "" {
		return dsn, nil
	}
	dir, err := ServerDir()
	if err != nil {
		return "", err
	}
	return StartServer(dir)
}

// memory is a file system in memory where the host has one.
const memory = "/dev/shm"

// ServerDir makes an empty directory for a server that is gone when the tests are. A database for each test makes and removes so many files
// that a file system on a disk takes longer than the server does.
func ServerDir() (string, error) { return InMemory("berth-pg-") }

// InMemory makes an empty directory for many small files that are gone when the tests are, in memory where there is enough of it. It is
// none of a test's own directories: those are on a disk, and a plain user does not reach them.
func InMemory(prefix string) (string, error) {
	const enough = 4 << 30
	var at unix.Statfs_t
	parent := ""
	if err := unix.Statfs(memory, &at); err == nil && at.Type == unix.TMPFS_MAGIC && at.Bavail*uint64(at.Bsize) >= enough {
		parent = memory
	}
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return "", fmt.Errorf("make a directory for tests: %w", err)
	}
	return dir, nil
}

// StartServer starts a server in an empty directory and returns the address of its maintenance database. It stops when this process
// ends, in whatever way, and removes the directory. More settings of the server, as name=value, add to what tests need.
func StartServer(dir string, settings ...string) (dsn string, err error) {
	bin, err := findBinaries()
	if err != nil {
		return "", err
	}
	cred, err := plainUser(dir)
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	if err := initialise(bin, dir, data, cred); err != nil {
		return "", err
	}
	args := []string{"-D", data, "-k", dir}
	for _, set := range append([]string{"listen_addresses=", "fsync=off", "synchronous_commit=off", "full_page_writes=off",
		"shared_buffers=64MB", "max_connections=400", "jit=off", "timezone=" + serverTimeZone, "log_timezone=UTC", "max_wal_size=256MB",
		"unix_socket_permissions=0777"}, settings...) {
		args = append(args, "-c", set)
	}
	// The shell outlives us for a moment: it stops the server and removes its files when this process
	// ends in whatever way, because the kernel then sends it SIGTERM.
	script := `d=$1; shift; "$@" >"$d/log" 2>&1 & p=$!; trap 'kill -QUIT $p' TERM INT; wait $p; wait $p; cd /; rm -rf "$d"`
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh", dir, filepath.Join(bin, "postgres")}, args...)...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		// The parent's death is the death of the thread that forked: keep this one for good.
		runtime.LockOSThread()
		started <- cmd.Start()
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		return "", err
	}
	dsn = fmt.Sprintf("host='%s' user=berth dbname=postgres sslmode=disable", dir)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, dsn)
		if err == nil {
			return dsn, c.Close(ctx)
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			return "", fmt.Errorf("PostgreSQL did not start: %w: %s", err, log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// initialise makes an empty database cluster.
func initialise(bin, dir, data string, cred *syscall.Credential) error {
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "berth", "-A", "trust", "-E", "UTF8", "--locale=C", "-N",
		"--no-instructions")
	initdb.SysProcAttr, initdb.Dir = &syscall.SysProcAttr{Credential: cred}, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func findBinaries() (string, error) {
	if p, err := exec.LookPath("postgres"); err == nil {
		if _, err := os.Stat(filepath.Join(filepath.Dir(p), "initdb")); err == nil {
			return filepath.Dir(p), nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	best, version := "", 0
	for _, p := range found {
		if v, err := strconv.Atoi(strings.Split(p, "/")[4]); err == nil && v > version {
			best, version = filepath.Dir(p), v
		}
	}
	if best == "" {
		return "", errors.New("PostgreSQL is not installed: install the package postgresql or set BERTH_TEST_DSN")
	}
	return best, nil
}

// plainUser gives dir away when the test runs as root, as which PostgreSQL refuses to run.
func plainUser(dir string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 != nil || err2 != nil {
			continue
		}
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("running as root and there is no user to run PostgreSQL as")
}
