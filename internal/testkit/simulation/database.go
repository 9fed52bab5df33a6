package simulation

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
)

// imageName is the image of all sessions.
const imageName = "berth/python:latest"

// imageDigest is its content, as engines report it.
const imageDigest = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"

// The limits of the owners of sessions, which the simulation checks. Nobody is limited to less than one session of a plan asks for.
const (
	owners = 3
	// maxSessions is how many sessions of the administrator may hold slots at a time, fewSessions of the second owner.
	maxSessions = 7
	fewSessions = 2
	// fewCores is how many cores the sessions of the third owner may hold, manyCores those of all.
	fewCores  = 3
	manyCores = 7
)

// owner is a user who owns sessions.
type owner struct {
	actor authz.Actor
	limit limit
}

// limit bounds what an owner's sessions hold at a time; 0 is no limit.
type limit struct{ sessions, cores int }

// Database is a real PostgreSQL whose clock is the simulated one. It serves one run after another.
//
// It lives outside of the bubble of simulated time: what the manager does with it runs in a goroutine of its own, while the simulated time
// stands still. So every transaction takes no simulated time, unless a fault says otherwise.
type Database struct {
	store *store.Store
	deps  nouns.Deps
	// owners of sessions; the administrator is the first.
	owners [owners]owner
	wakes  *store.Wakes

	// turn lets one caller at a time hand work to the goroutine that serves them.
	turn sync.Mutex
	work chan func()
	done chan struct{}
	now  time.Time
	// empty is what empties the tables between runs.
	empty string
}

// now() of every query and of every column default is that of the simulation.
const simulatedClock = `
CREATE SCHEMA sim;
CREATE UNLOGGED TABLE sim.clock (t timestamptz NOT NULL);
INSERT INTO sim.clock VALUES (pg_catalog.now());
CREATE FUNCTION sim.now() RETURNS timestamptz LANGUAGE plpgsql STABLE PARALLEL SAFE AS 'BEGIN RETURN (SELECT t FROM sim.clock); END';
DO $$
DECLARE c record;
BEGIN
	FOR c IN SELECT d.adrelid::regclass AS tab, a.attname AS col FROM pg_attrdef d
		JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
		WHERE pg_get_expr(d.adbin, d.adrelid) IN ('now()', 'pg_catalog.now()')
	LOOP
		EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT sim.now()', c.tab, c.col);
	END LOOP;
END $$;`

// emptyTables are the tables that a new cluster has no rows in, and those that only tell of changes. Runs begin with them empty.
const emptyTables = `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public'
	AND c.relkind = 'r' AND (c.relname IN ('scheduling_changes', 'object_changes') OR
		(xpath('/row/n/text()', query_to_xml('SELECT count(*) AS n FROM ' || c.oid::regclass, false, true, '')))[1]::text = '0')`

// NewDatabase makes a database for runs that follow each other; it is dropped after the test.
func NewDatabase(t testing.TB) *Database {
	t.Helper()
	dsn := storetest.DSN(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	prepare, err := store.Open(t.Context(), store.Config{DSN: dsn, SkipMigrations: true, MaxConns: 1}, slog.New(slog.DiscardHandler))
	check(err)
	_, err = prepare.Pool().Exec(t.Context(), simulatedClock)
	prepare.Close()
	check(err)
	d := &Database{work: make(chan func()), done: make(chan struct{})}
	// Without Store.Run no hint comes from elsewhere.
	d.store, err = store.Open(t.Context(), store.Config{DSN: dsn + ` search_path='sim,public,pg_catalog'`, SkipMigrations: true, MaxConns: 4},
		slog.New(slog.DiscardHandler))
	check(err)
	t.Cleanup(d.store.Close)
	d.deps = nouns.Deps{Store: d.store, Seal: managertest.Key(t), Vault: &managertest.Vault{}, Log: slog.New(slog.DiscardHandler),
		ClusterID: "simulation", PasswordCost: managertest.PasswordCost}
	creds, _, err := manager.Bootstrap(t.Context(), tenancy.Deps{Store: d.store, Seal: d.deps.Seal, Log: d.deps.Log, Random: rand.Reader,
		PasswordCost: d.deps.PasswordCost})
	check(err)
	set, err := nouns.New(d.deps)
	check(err)
	images, err := image.New(image.Deps{Store: d.store, IDs: tenancy.RandomIDs(rand.Reader), Log: d.deps.Log})
	check(err)
	check(images.ImportOwn(t.Context(), []cluster.NodeImage{nodeImage()}))
	_, err = d.store.Pool().Exec(t.Context(), fmt.Sprintf(population, maxSessions, fewSessions, 1000*fewCores, 1000*manyCores))
	check(err)
	limits := []limit{{sessions: maxSessions}, {sessions: fewSessions}, {cores: fewCores}}
	for i, key := range []cluster.AccessKey{creds.AccessKey, "AKIAADA", "AKIABOB"} {
		if i > 0 {
			sealed, err := d.deps.Seal.Seal("secret", "keypair "+string(key))
			check(err)
			_, err = d.store.Pool().Exec(t.Context(), `INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy)
				SELECT $1, $2, id, CASE username WHEN 'ada' THEN 'few-sessions' ELSE 'few-cores' END FROM users WHERE username = $3`,
				string(key), sealed, map[int]string{1: "ada", 2: "bob"}[i])
			check(err)
		}
		actor, _, err := set.Tenancy.Authenticate(t.Context(), key)
		check(err)
		d.owners[i] = owner{actor, limits[i]}
	}
	rows, err := d.store.Pool().Query(t.Context(), emptyTables)
	check(err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	check(err)
	// Without triggers: the order does not matter then, and nobody counts what is deleted.
	d.empty = "BEGIN; SET LOCAL session_replication_role = replica;"
	for _, name := range names {
		d.empty += "DELETE FROM " + pgx.Identifier{name}.Sanitize() + ";"
	}
	d.empty += "COMMIT"
	d.wakes = d.store.Wakes(nil)
	t.Cleanup(d.wakes.Close)
	go d.serve()
	t.Cleanup(func() { close(d.work) })
	return d
}

// population sets the administrator's limits and makes two more users with limits of their own, in the same project.
const population = `
UPDATE keypair_resource_policies SET max_concurrent_sessions = %[1]d, max_containers_per_session = 4;
INSERT INTO keypair_resource_policies (name, max_concurrent_sessions, max_containers_per_session, total_resource_slots) VALUES
	('few-sessions', %[2]d, 4, '{}'), ('few-cores', 30, 4, '{"cpu": %[3]d}');
UPDATE projects SET total_resource_slots = '{"cpu": %[4]d}';
INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES
	('00000000-0000-4000-8000-000000000001', 'ada', 'ada@x', 'default', 'default'),
	('00000000-0000-4000-8000-000000000002', 'bob', 'bob@x', 'default', 'default');
INSERT INTO project_members (project_id, user_id) SELECT p.id, u.id FROM projects p, users u WHERE u.username IN ('ada', 'bob')
`

func nodeImage() cluster.NodeImage {
	return cluster.NodeImage{Reference: imageName, Digest: imageDigest, Architecture: "x86_64", SizeBytes: 1, Labels: map[string]string{}}
}

// serve runs what callers hand in, outside of any bubble of simulated time.
func (d *Database) serve() {
	for fn := range d.work {
		fn()
		d.done <- struct{}{}
	}
}

// do runs fn at an instant of the simulated time, while no other work runs. fn must not use a context, timer or channel of the simulation.
func (d *Database) do(now time.Time, fn func(ctx context.Context) error) (err error) {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.work <- func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if !now.Equal(d.now) {
			if _, err = d.store.Pool().Exec(ctx, `UPDATE sim.clock SET t = $1`, now); err != nil {
				err = fmt.Errorf("set the simulated clock: %w", err)
				return
			}
			d.now = now
		}
		err = fn(ctx)
	}
	<-d.done
	return err
}

// reset empties the database for the next run.
func (d *Database) reset(now time.Time) error {
	return d.do(now, func(ctx context.Context) error {
		_, err := d.store.Pool().Exec(ctx, d.empty)
		d.wakes.Take()
		return err
	})
}
