// Package store is the manager's only way to PostgreSQL: the pool, migrations, transactions
// with retry, guarded moves, wake-up hints and the generated queries (dbgen).
//
// It holds no policy about who may do what (authz) and none about what to do next
// (the nouns and their loops). It does own the moves: every change of a session's or kernel's
// status goes through moves.go and ledger.go.
package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store/dbgen"
)

//go:generate sqlc generate

//go:embed migrations/*.sql
var migrations embed.FS

// Config says where PostgreSQL is.
type Config struct {
	// DSN is a connection URL or keyword text.
	DSN string
	// MaxConns bounds the pool; 0 means 16.
	MaxConns int32
	// StatementPatience bounds one statement; 0 means 30 s.
	StatementPatience time.Duration
	// SkipMigrations leaves the schema as it is (tests that clone a migrated template).
	SkipMigrations bool
	// Patience is how long into an outage reads wait for its end; 0 means five seconds.
	Patience time.Duration
	// Tracer, if set, hears of every statement (tests count them).
	Tracer pgx.QueryTracer
}

// Validate reports what is wrong with the configuration.
func (c Config) Validate() error {
	if c.DSN == "" {
		return fault.Invalidf("the address of PostgreSQL is empty").WithNext("set postgres.dsn")
	}
	if _, err := pgxpool.ParseConfig(c.DSN); err != nil {
		return fault.Invalidf("the address of PostgreSQL cannot be read").WithCause(err)
	}
	return nil
}

// Store is a pool of connections with the schema in place. Its queries run outside of any
// transaction; use Tx for everything that must happen together.
type Store struct {
	*dbgen.Queries
	pool  *pgxpool.Pool
	log   *slog.Logger
	wakes *wakes
	// outage tells how long PostgreSQL has been away, patience bounds one statement.
	outage   outage
	patience time.Duration
	// actorsTurn is that of ActorsTurn.
	actorsTurn atomic.Uint64
}

// Open connects, brings the schema up to date and returns the store. Close it after use.
func Open(ctx context.Context, c Config, log *slog.Logger) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return nil, fault.Invalidf("the address of PostgreSQL cannot be read").WithCause(err)
	}
	pc.MaxConns = 16
	if c.MaxConns > 0 {
		pc.MaxConns = c.MaxConns
	}
	pc.ConnConfig.Tracer = c.Tracer
	// A burst opens many connections, and each holds some 3 MiB of PostgreSQL's memory; those that are used again are the ones used last.
	pc.MaxConnIdleTime, pc.HealthCheckPeriod = 15*time.Second, 5*time.Second
	noticeDeadServers(pc.ConnConfig)
	params := pc.ConnConfig.RuntimeParams
	for k, v := range map[string]string{
		"application_name":                    "berth-manager",
		"TimeZone":                            "UTC",
		"lock_timeout":                        "15s",
		"idle_in_transaction_session_timeout": "60s",
		"jit":                                 "off", // our queries are short; compiling them costs more than running them
	} {
		if _, set := params[k]; !set {
			params[k] = v
		}
	}
	s := &Store{log: log, wakes: newWakes(), outage: outage{patience: cmp.Or(c.Patience, outagePatience)},
		patience: cmp.Or(c.StatementPatience, statementPatience)}
	s.listenForActors(pc)
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", wrap(err))
	}
	s.pool = pool
	s.Queries = dbgen.New(s.DB())
	if !c.SkipMigrations {
		if err := s.migrate(ctx); err != nil {
			pool.Close()
			return nil, err
		}
	}
	return s, nil
}

// Close returns all connections. Run must have ended.
func (s *Store) Close() { s.pool.Close() }

// DB gives direct access for queries that are composed at run time (lists with filters).
func (s *Store) DB() dbgen.DBTX {
	return noted{&translated{db: s.pool, outage: &s.outage, patience: s.patience}, s}
}

// Log is where what concerns nobody's request is told.
func (s *Store) Log() *slog.Logger { return s.log }

// Pool is the pool itself, whose errors are PostgreSQL's; tests use it.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Ping reports whether PostgreSQL answers.
func (s *Store) Ping(ctx context.Context) error { return wrap(s.pool.Ping(ctx)) }

func (s *Store) migrate(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	// Several managers may start together: one migrates, the others wait for it.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 120))
	if err != nil {
		return fmt.Errorf("make migration lock: %w", err)
	}
	db := stdlib.OpenDBFromPool(s.pool)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if err := refuseNewer(ctx, p); err != nil {
		return err
	}
	pending, err := p.HasPending(ctx)
	if err != nil {
		return fmt.Errorf("look for migrations: %w", wrap(err))
	}
	if !pending {
		return nil
	}
	done, err := p.Up(ctx)
	if err != nil {
		return fmt.Errorf("migrate the database: %w", wrap(err))
	}
	for _, m := range done {
		s.log.Info("database migrated", "migration", m.Source.Path, "took", m.Duration.Round(time.Millisecond))
	}
	return nil
}

// refuseNewer refuses a database that a newer binary has migrated: this one would misread it.
func refuseNewer(ctx context.Context, p *goose.Provider) error {
	there, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("read the version of the database's schema: %w", wrap(err))
	}
	sources := p.ListSources()
	if newest := sources[len(sources)-1].Version; there > newest {
		return fault.Conflictf("the database has schema version %d, and this binary knows versions up to %d: a newer berth has used it",
			there, newest).WithReason("schema-newer").
			WithNext("start the newer version of berth again, or restore the database from a backup made before the upgrade")
	}
	return nil
}

// Missing reports whether a query found no row.
func Missing(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// Duplicate reports whether a row was refused because a unique constraint (of that name, if given) holds already.
func Duplicate(err error, constraint string) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23505" && (constraint == "" || pe.ConstraintName == constraint)
}

// Dangling reports whether a row was refused because it names something that is not there.
func Dangling(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23503"
}

// SchemaVersion is a short text that differs whenever the migrations differ.
func SchemaVersion() string {
	h := sha256.New()
	_ = fs.WalkDir(migrations, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b, _ := migrations.ReadFile(path)
			h.Write([]byte(path))
			h.Write(b)
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)[:6])
}
