package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

const (
	pgUser     = "berth"
	pgDatabase = "berth"
	pgSocket   = ".s.PGSQL.5432"
)

// pgSettings keep an idle server small and quiet; they are given on the command line so that
// an upgrade of berth changes them. Durability stays on.
var pgSettings = []string{
	"listen_addresses=",
	"max_connections=80",
	"superuser_reserved_connections=3",
	"shared_buffers=24MB",
	"work_mem=4MB",
	"maintenance_work_mem=32MB",
	"temp_buffers=1MB",
	"wal_buffers=1MB",
	"wal_level=minimal",
	"max_wal_senders=0",
	"min_wal_size=32MB",
	"max_wal_size=256MB",
	"max_worker_processes=2",
	"max_parallel_workers=0",
	"max_parallel_workers_per_gather=0",
	"max_parallel_maintenance_workers=0",
	"autovacuum_max_workers=1",
	"autovacuum_naptime=10s", // tables grow from nothing to many thousands of rows in less than the default, a minute
	"max_prepared_transactions=0",
	"max_logical_replication_workers=0",
	"jit=off",
	"huge_pages=off",
	"update_process_title=off",
	"bgwriter_delay=1s",
	"logging_collector=off",
	"log_destination=stderr",
	"log_line_prefix=",
	"log_min_messages=log",
	"log_min_error_statement=panic",
	"log_checkpoints=off",
	"log_timezone=UTC",
	"timezone=UTC",
	"password_encryption=scram-sha-256",
}

// PostgresConfig says where a PostgreSQL lives.
type PostgresConfig struct {
	// StateDir is the directory of the cluster; the data go to StateDir/postgres.
	StateDir string
	// BinDir holds postgres and initdb; empty means: look for one.
	BinDir string
	// UnsafeNoSync turns fsync off, for tests whose data nobody will miss.
	UnsafeNoSync bool
}

// Postgres is a PostgreSQL server that lives and dies with this process. It listens on a unix
// socket only and lets in this process's own user only, by the kernel's word (peer).
type Postgres struct {
	cfg     PostgresConfig
	log     *slog.Logger
	account account
	bin     pgBinaries
	sockets string
	sup     *supervisor
	service *chassis.Service
}

// NewPostgres makes the server without starting it.
func NewPostgres(cfg PostgresConfig, log *slog.Logger) *Postgres {
	p := &Postgres{cfg: cfg, log: log}
	p.sockets = SocketDir(cfg.StateDir, "pg", pgSocket)
	p.sup = &supervisor{}
	p.service = chassis.NewService("postgres", chassis.Hooks{
		StartTimeout: 2 * time.Minute, // crash recovery may replay much
		StopTimeout:  20 * time.Second,
		Start:        p.start,
		Run:          func(ctx context.Context) error { return p.sup.supervise(ctx) },
		Stop: func(context.Context) error {
			return errors.Join(p.sup.stop(), RemoveSocketDir(p.cfg.StateDir, p.sockets))
		},
	})
	return p
}

// Service is the server as a part of the process.
func (p *Postgres) Service() *chassis.Service { return p.service }

// DSN is the connection URL of Berth's database.
func (p *Postgres) DSN() string { return p.dsn(pgDatabase) }

// DSNOf is the connection URL of another database of the same server, for tests.
func (p *Postgres) DSNOf(database string) string { return p.dsn(database) }

// Pid is the postmaster's process id, 0 while it does not run.
func (p *Postgres) Pid() int { return p.sup.pid() }

// Version is the server's version, such as "15.18"; valid once it runs.
func (p *Postgres) Version() string { return p.bin.version }

func (p *Postgres) dsn(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(pgUser), Path: "/" + database,
		RawQuery: url.Values{"host": {p.sockets}, "sslmode": {"disable"}}.Encode()}
	return u.String()
}

func (p *Postgres) dataDir() string { return filepath.Join(p.cfg.StateDir, "postgres", "data") }

func (p *Postgres) start(ctx context.Context) error {
	if err := prepareStateDir(p.cfg.StateDir); err != nil {
		return err
	}
	var err error
	data := p.dataDir()
	owner, owned := ownerOf(data)
	if owned {
		p.account = owner // keep the user the data already belong to
	} else if p.account, err = accountFor("postgres"); err != nil {
		return err
	}
	if err := p.account.checkReachable(filepath.Join(p.cfg.StateDir, "postgres")); err != nil {
		return err
	}
	if err := p.account.privateDir(filepath.Dir(data)); err != nil {
		return fmt.Errorf("prepare database directory: %w", err)
	}
	major, err := dataMajor(data)
	if err != nil {
		return err
	}
	if p.bin, err = findPostgres(ctx, p.cfg, major); err != nil {
		return err
	}
	if major == 0 {
		if err := p.initdb(ctx); err != nil {
			return fmt.Errorf("create database cluster: %w", err)
		}
	}
	if err := p.writeAccess(); err != nil {
		return fmt.Errorf("write access rules: %w", err)
	}
	p.sup.spec = p.child()
	if err := p.sup.launch(ctx); err != nil {
		return err
	}
	if err := p.ensureDatabase(ctx); err != nil {
		return errors.Join(fmt.Errorf("create database %s: %w", pgDatabase, err), p.sup.stop())
	}
	return nil
}

// dataMajor reads the major version of existing data; 0 means that there are none.
func dataMajor(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read database version: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read database version: %w", err)
	}
	return major, nil
}

// initdb builds the cluster aside and moves it into place, so that data/ is whole or absent.
func (p *Postgres) initdb(ctx context.Context) error {
	data := p.dataDir()
	fresh := data + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := p.account.privateDir(fresh); err != nil {
		return err
	}
	p.log.Info("creating database cluster", "dir", data, "postgres", p.bin.version)
	err := runOnce(ctx, p.account.cred, filepath.Dir(data), filepath.Join(p.bin.dir, "initdb"),
		"--pgdata="+fresh, "--username="+pgUser, "--encoding=UTF8", "--locale=C",
		"--auth=reject", "--no-instructions", "--no-sync")
	if err != nil {
		return err
	}
	if !p.cfg.UnsafeNoSync {
		syscall.Sync() // one for all files is far quicker than initdb's one for each
	}
	return os.Rename(fresh, data)
}

// writeAccess lets in the operating-system user of this process and nobody else. It is
// written at every start, because berth may be started by another user than before.
func (p *Postgres) writeAccess() error {
	hba, ident := "local all all trust\n", ""
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		hba = "local all all peer map=berth\n"
		ident = fmt.Sprintf("berth %q %s\n", u.Username, pgUser)
	}
	// A user id without a name cannot be checked by the server; the directory's mode protects then.
	for name, text := range map[string]string{"pg_hba.conf": hba, "pg_ident.conf": ident} {
		path := filepath.Join(p.dataDir(), name)
		if old, err := os.ReadFile(path); err == nil && string(old) == text {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
		if p.account.cred != nil {
			if err := os.Chown(path, p.account.uid, p.account.gid); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Postgres) child() child {
	args := []string{"-D", p.dataDir(), "-c", "unix_socket_directories=" + p.sockets, "-c", "unix_socket_permissions=0700"}
	for _, s := range pgSettings {
		args = append(args, "-c", s)
	}
	if p.cfg.UnsafeNoSync {
		args = append(args, "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
	}
	return child{
		name: "postgres", path: filepath.Join(p.bin.dir, "postgres"), args: args, dir: filepath.Dir(p.dataDir()),
		cred:        p.account.cred,
		deathSignal: syscall.SIGINT, // fast shutdown: checkpoint, then exit
		stopSignal:  syscall.SIGINT,
		stopGrace:   12 * time.Second,
		before:      p.clearLeftovers,
		probe:       p.probe,
		level: func(line string) slog.Level {
			switch {
			case strings.HasPrefix(line, "FATAL:") && strings.Contains(line, "starting up"):
				return slog.LevelDebug // our own probe came early
			case strings.HasPrefix(line, "FATAL:"), strings.HasPrefix(line, "PANIC:"):
				return slog.LevelWarn
			}
			return slog.LevelDebug
		},
		log: p.log,
	}
}

func (p *Postgres) probe(ctx context.Context) error {
	// Asking the file first spares the server a failed connection while it starts.
	if _, err := os.Stat(filepath.Join(p.sockets, pgSocket)); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, p.dsn("postgres"))
	if err != nil {
		return err
	}
	return errors.Join(conn.Ping(ctx), conn.Close(ctx))
}

// clearLeftovers waits for a server that an earlier, killed berth left shutting down, and
// removes lock files and sockets of one that is gone.
func (p *Postgres) clearLeftovers(ctx context.Context) error {
	if err := p.account.prepareSocketDir(p.sockets); err != nil {
		return fmt.Errorf("prepare socket directory: %w", err)
	}
	pidFile := filepath.Join(p.dataDir(), "postmaster.pid")
	signalled := false
	for began := time.Now(); ; {
		pid, alive := postmasterAlive(pidFile, p.dataDir())
		if !alive {
			break
		}
		switch waited := time.Since(began); {
		case waited > 20*time.Second:
			return fault.Conflictf("another PostgreSQL (pid %d) uses %s and does not stop", pid, p.dataDir()).
				WithNext("stop it with: kill -INT %d", pid)
		case waited > 5*time.Second && !signalled:
			p.log.Warn("a PostgreSQL of an earlier run still lives, asking it to stop", "pid", pid)
			signalled = true
			if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("stop old postgres %d: %w", pid, err)
			}
		}
		if err := chassis.Wait(ctx, chassis.RealClock(), 10*time.Millisecond); err != nil {
			return err
		}
	}
	for _, path := range []string{pidFile, filepath.Join(p.sockets, pgSocket), filepath.Join(p.sockets, pgSocket+".lock")} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove leftover: %w", err)
		}
	}
	return nil
}

// postmasterAlive reads a pid file and tells whether that process is a postmaster of data: a
// postmaster's working directory is its data directory, a stranger with a reused pid has another.
func postmasterAlive(pidFile, data string) (pid int, alive bool) {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err = strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 0 {
		return 0, false
	}
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return pid, false
	}
	resolved, err := filepath.EvalSymlinks(data)
	return pid, err == nil && cwd == resolved
}

func (p *Postgres) ensureDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.dsn("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var n int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_database WHERE datname = $1", pgDatabase).Scan(&n); err != nil {
		return err
	}
	if n > 0 {
		return nil
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{pgDatabase}.Sanitize())
	return err
}
