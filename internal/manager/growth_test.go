package manager_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store/list"
)

const (
	// endedSessions is how many sessions have ended in this test; each has a kernel and three events.
	endedSessions = 5_000
	// mayRead is how many rows of one table one call may read: a page with what belongs to it, and not a part that grows with the table.
	mayRead = 500
)

// TestListsDoNotReadWhatHasEnded calls what lists and finds sessions, kernels and folders, as an administrator, as the user to whom
// nearly all of them belong, and as one who has few. PostgreSQL's own counters tell how many rows each call reads.
func TestListsDoNotReadWhatHasEnded(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 1<<30, 1<<50)
	ctx := t.Context()
	many, few := w.Stranger("many"), w.Stranger("few")
	old := grow(w, many, endedSessions)
	grow(w, few, 3)
	live := w.Running("live", "a1")
	// Tables of tests are so small that it is cheaper to read all of them; what then reads all has no index.
	w.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_seqscan = off', current_database()); END $$`)
	renewConnections(w)
	key := session.Filter{AccessKey: few.AccessKey}
	ended := []string{string(cluster.Terminated), string(cluster.Cancelled)}
	filters := map[string]session.Filter{
		"all": {}, "live": {Statuses: []string{string(cluster.Pending), string(cluster.Running)}}, "ended": {Statuses: ended},
		"ended of a key": {Statuses: ended, AccessKey: few.AccessKey}, "of a key": key, "of a domain": {Domain: "few"},
		"ended of a project":  {Statuses: ended, Project: project(w)},
		"past the end":        {Query: list.Query{Offset: 2 * endedSessions}, Statuses: ended[1:]},
		"not ended, in words": {Query: list.Query{Filter: `status != "TERMINATED" & status != "CANCELLED"`}},
		"not ended of a type": {Query: list.Query{Filter: `status != "TERMINATED" & status != "CANCELLED" & type == "inference"`, Limit: 1}},
		"ended, in words":     {Query: list.Query{Filter: `status == "TERMINATED" | status == "CANCELLED"`}},
		"ended of a type":     {Query: list.Query{Filter: `(status in ["TERMINATED", "CANCELLED"]) & type == "interactive"`}},
		"by name":             {Query: list.Query{Filter: `name == "many-77"`}},
		"by prefix":           {Query: list.Query{Filter: `name like "many-77%"`}},
		"by a part":           {Query: list.Query{Filter: `name ilike "%Y-77%"`}},
		"by a contained":      {Query: list.Query{Filter: `name contains "-777"`}},
		"by two parts":        {Query: list.Query{Filter: `name like "m_ny-%777"`}},
		"ended by a part":     {Query: list.Query{Filter: `name ilike "%Y-77%"`}, Statuses: ended},
		"by id":               {Query: list.Query{Filter: fmt.Sprintf("id == %q", live)}},
		"oldest first":        {Query: list.Query{Order: "+created_at"}},
		"another page":        {Query: list.Query{Offset: 200, Limit: 100}},
		"of no project":       {Project: "none"},
	}
	for who, a := range map[string]authz.Actor{"admin": w.Admin, "many": many, "few": few} {
		for name, f := range filters {
			var total int
			r := always(w, func() {
				p, err := w.Sessions.List(ctx, a, f)
				require.NoError(t, err)
				total = p.Total
			})
			require.Equal(t, count(w, a, f), total, "%s as %s", name, who)
			require.Empty(t, r, "sessions %s as %s", name, who)
		}
		require.Empty(t, always(w, func() {
			for _, f := range []session.KernelFilter{{Session: live}, {Session: old}, {Kernel: "none"}, {Agent: "a1"}} {
				_, err := w.Sessions.ListKernels(ctx, a, f)
				require.NoError(t, err)
			}
			_, _, _ = w.Sessions.History(ctx, a, string(old), "")
			_, _ = w.Sessions.Find(ctx, a, string(live), "")
			_, _ = w.Sessions.Find(ctx, a, "live", "")
			_, err := w.Sessions.Match(ctx, a, "li")
			require.NoError(t, err)
			_, err = w.Folders.Search(ctx, few, folder.SearchQuery{})
			require.NoError(t, err)
			_, err = w.Folders.List(ctx, few, folder.ListQuery{})
			require.NoError(t, err)
			_, err = w.Store.DependencyCandidates(ctx, []string{"many-77", "few-1", string(old), "none"}, string(a.UserID))
			require.NoError(t, err)
			for _, filter := range []string{`name ilike "%Y-77%"`, `name contains "-777"`, `name == "many-77"`} {
				_, err = w.Folders.Search(ctx, a, folder.SearchQuery{Query: list.Query{Filter: filter}})
				require.NoError(t, err)
			}
		}), "as %s", who)
	}
	// Who has few events does not have those of others read. The first stream begins the following of all.
	_, err := w.Sessions.Events(ctx, few, session.EventFilter{Sessions: true, FromNow: true})
	require.NoError(t, err)
	require.Empty(t, always(w, func() {
		events, err := w.Sessions.Events(ctx, few, session.EventFilter{Sessions: true, Kernels: true, NoFollow: true})
		require.NoError(t, err)
		for range events {
			t.Error("these have no names")
		}
	}), "the events of a user")
}

// BenchmarkLists times lists beside many ended sessions, as the administrator who sees all of them; compare sizes in one run. Loading a
// million takes minutes; BERTH_BENCH_ENDED lists other sizes.
func BenchmarkLists(b *testing.B) {
	sizes := "1000 100000 1000000"
	if text := os.Getenv("BERTH_BENCH_ENDED"); text != "" {
		sizes = text
	}
	for size := range strings.FieldsSeq(sizes) {
		n, err := strconv.Atoi(size)
		require.NoError(b, err)
		w := managertest.New(b)
		w.Agent("a1", 1<<30, 1<<50)
		grow(w, w.Stranger("many"), n)
		for i := range 20 {
			w.Running(fmt.Sprintf("live-%d", i), "a1")
		}
		filtered := func(text string) session.Filter { return session.Filter{Query: list.Query{Filter: text}} }
		for name, f := range map[string]session.Filter{
			"live":   {Statuses: []string{string(cluster.Pending), string(cluster.Running)}},
			"ended":  {Statuses: []string{string(cluster.Terminated)}},
			"failed": {Statuses: []string{string(cluster.Error)}}, "all": {},
			"name": filtered(`name == "many-77"`), "prefix": filtered(`name like "many-77777%"`), "part": filtered(`name ilike "%ny-777%"`),
			"none": filtered(`name ilike "%nothing%"`),
		} {
			b.Run(fmt.Sprintf("sessions-%s/ended=%d", name, n), func(b *testing.B) {
				fastest(b, func() (total int) {
					p, err := w.Sessions.List(b.Context(), w.Admin, f)
					require.NoError(b, err)
					return p.Total
				})
			})
		}
		for name, text := range map[string]string{"all": "", "part": `name ilike "%ny-777%"`} {
			b.Run(fmt.Sprintf("folders-%s/folders=%d", name, n), func(b *testing.B) {
				fastest(b, func() (total int) {
					p, err := w.Folders.Search(b.Context(), w.Admin, folder.SearchQuery{Query: list.Query{Filter: text}})
					require.NoError(b, err)
					return p.Total
				})
			})
		}
	}
}

// fastest times a list, and reports besides the mean how long the fastest call took, which depends less on what else the machine does.
func fastest(b *testing.B, call func() (total int)) {
	b.Helper()
	var total int
	least := time.Duration(math.MaxInt64)
	for b.Loop() {
		began := time.Now()
		total = call()
		least = min(least, time.Since(began))
	}
	b.ReportMetric(float64(total), "found")
	b.ReportMetric(float64(least)/float64(time.Millisecond), "fastest-ms")
}

// TestPatternsFindWhatMatches: the index of trigrams leaves out nothing that matches, whatever letters names and patterns have.
func TestPatternsFindWhatMatches(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	owner := w.Stranger("owner")
	grow(w, owner, 400)
	random := rand.New(rand.NewPCG(1, 2))
	word := func(letters string, most int) (out string) {
		for range 1 + random.IntN(most) {
			all := []rune(letters)
			out += string(all[random.IntN(len(all))])
		}
		return out
	}
	// The Kelvin sign and the capital i with a dot are letters whose small ones may be ASCII.
	var names []string
	for range 400 {
		names = append(names, word("abAB1-ßÄkKi\u212a\u0130 ", 8))
	}
	w.Exec(`UPDATE folders SET status = 'delete-pending', name = n.name FROM unnest($1::text[]) WITH ORDINALITY AS n(name, i)
		WHERE folders.name = 'owner-' || n.i`, names)
	w.Exec(`UPDATE sessions SET name = n.name FROM unnest($1::text[]) WITH ORDINALITY AS n(name, i)
		WHERE sessions.name = 'owner-' || n.i`, names)
	found := 0
	for range 100 {
		pattern := word(`abAB1-ßkKi%%__`, 6)
		for op, sql := range map[string]string{"like": "name LIKE $1", "ilike": "name ILIKE $1", "contains": "strpos(name, $1) > 0"} {
			var want int
			require.NoError(t, w.Store.Pool().QueryRow(t.Context(), "SELECT count(*) FROM folders WHERE "+sql, pattern).Scan(&want))
			q := list.Query{Filter: fmt.Sprintf("name %s %q", op, pattern)}
			folders, err := w.Folders.Search(t.Context(), w.Admin, folder.SearchQuery{Query: q})
			require.NoError(t, err)
			require.Equal(t, want, folders.Total, q.Filter)
			sessions, err := w.Sessions.List(t.Context(), w.Admin, session.Filter{Query: q})
			require.NoError(t, err)
			require.Equal(t, want, sessions.Total, q.Filter)
			found += want
		}
	}
	require.NotZero(t, found)
}

// TestCountsOfEndedSessions: the number of ended sessions is the number of their rows, whatever happens to them.
func TestCountsOfEndedSessions(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 1<<30, 1<<50)
	owner := w.Stranger("owner")
	check := func(want int) {
		t.Helper()
		for _, f := range []session.Filter{{}, {Statuses: []string{"TERMINATED"}}, {Statuses: []string{"ERROR", "CANCELLED"}}, {Type: "batch"}} {
			p, err := w.Sessions.List(t.Context(), w.Admin, f)
			require.NoError(t, err)
			require.Equal(t, count(w, w.Admin, f), p.Total, f)
		}
		p, err := w.Sessions.List(t.Context(), w.Admin, session.Filter{Statuses: []string{"TERMINATED", "ERROR", "CANCELLED"}})
		require.NoError(t, err)
		require.Equal(t, want, p.Total)
	}
	grow(w, owner, 10)
	check(10)
	w.Exec("UPDATE sessions SET status = 'ERROR' WHERE name = 'owner-1'")
	check(10)
	w.Exec("UPDATE sessions SET status = 'PENDING', ended_at = NULL WHERE name = 'owner-2'")
	check(9)
	w.Exec("DELETE FROM sessions WHERE name IN ('owner-1', 'owner-3')")
	check(7)
	require.NoError(t, w.Store.JoinEndedCounts(t.Context(), 1))
	check(7)
	var rows int
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), "SELECT count(*) FROM ended_session_counts").Scan(&rows))
	require.Equal(t, 1, rows)
	w.Exec("DELETE FROM sessions WHERE ended_at IS NOT NULL")
	require.NoError(t, w.Store.JoinEndedCounts(t.Context(), 1))
	check(0)
}

// grow adds ended sessions of a user with their kernels and events; it returns the id of the first.
func grow(w *managertest.World, owner authz.Actor, n int) (first cluster.SessionID) {
	w.Exec(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots,
		created_at, ended_at)
		SELECT gen_random_uuid(), $4 || '-' || i, 'interactive', $4, $5, $1::uuid, $2, 'default', 'python', 'TERMINATED', '{}',
		       now() - i * interval '1 s', now()
		FROM generate_series(1, $3::int) i`, string(owner.UserID), string(owner.AccessKey), n, owner.Domain, string(project(w)))
	w.Exec(`INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, ended_at)
		SELECT gen_random_uuid(), id, 'python', 'x86_64', 'TERMINATED', '{}', now() FROM sessions WHERE user_id = $1::uuid`, string(owner.UserID))
	if n <= endedSessions { // no list reads them; a million sessions would take long to load
		w.Exec(`INSERT INTO session_events (session_id, event) SELECT id, '' FROM sessions, generate_series(1, 3) WHERE user_id = $1::uuid`,
			string(owner.UserID))
	}
	w.Exec(`INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, user_id, creator_id, status, created_at)
		SELECT id, name, 'p:v', $2, 'user:' || $1::text, 'general', 'rw', $1::uuid, $1::uuid, 'ready', created_at
		FROM sessions WHERE user_id = $1::uuid`,
		string(owner.UserID), owner.Domain)
	require.NoError(w.T, w.Store.JoinEndedCounts(w.T.Context(), 1))
	w.Exec("VACUUM ANALYZE sessions, kernels, session_events, folders")
	// Outside of tests few sessions end before their counts are joined. The rows that were joined stay while a transaction may still see
	// them, for example that of an ANALYZE which PostgreSQL began by itself.
	require.Eventually(w.T, func() bool {
		w.Exec("VACUUM FULL ANALYZE ended_session_counts")
		var bytes int64
		err := w.Store.Pool().QueryRow(w.T.Context(), "SELECT pg_relation_size('ended_session_counts')").Scan(&bytes)
		return err == nil && bytes <= 8192
	}, time.Minute, 10*time.Millisecond)
	err := w.Store.Pool().QueryRow(w.T.Context(), "SELECT id::text FROM sessions WHERE user_id = $1 ORDER BY created_at LIMIT 1",
		string(owner.UserID)).Scan(&first)
	require.NoError(w.T, err)
	return first
}

func project(w *managertest.World) (id cluster.ProjectID) {
	require.NoError(w.T, w.Store.Pool().QueryRow(w.T.Context(), "SELECT id::text FROM projects ORDER BY name LIMIT 1").Scan(&id))
	return id
}

// count counts the sessions of a filter the slow way.
func count(w *managertest.World, a authz.Actor, f session.Filter) (n int) {
	sql := `SELECT count(*) FROM sessions WHERE ($1::text[] IS NULL OR status = ANY($1)) AND ($2 = '' OR access_key = $2)
		AND ($3 = '' OR domain_name = $3) AND ($4 = '' OR project_id::text = $4) AND ($5 = '' OR user_id::text = $5) AND ($6 = '' OR type = $6)`
	user := string(a.UserID)
	if a.Role == authz.RoleSuperadmin {
		user = ""
	}
	switch f.Filter {
	case `name == "many-77"`:
		sql += " AND name = 'many-77'"
	case `name like "many-77%"`:
		sql += " AND name LIKE 'many-77%'"
	case `name ilike "%Y-77%"`:
		sql += " AND name ILIKE '%Y-77%'"
	case `name contains "-777"`:
		sql += " AND strpos(name, '-777') > 0"
	case `name like "m_ny-%777"`:
		sql += " AND name LIKE 'm_ny-%777'"
	case `status != "TERMINATED" & status != "CANCELLED"`:
		sql += " AND status NOT IN ('TERMINATED', 'CANCELLED')"
	case `status != "TERMINATED" & status != "CANCELLED" & type == "inference"`:
		sql += " AND status NOT IN ('TERMINATED', 'CANCELLED') AND type = 'inference'"
	case `status == "TERMINATED" | status == "CANCELLED"`:
		sql += " AND status IN ('TERMINATED', 'CANCELLED')"
	case `(status in ["TERMINATED", "CANCELLED"]) & type == "interactive"`:
		sql += " AND status IN ('TERMINATED', 'CANCELLED') AND type = 'interactive'"
	case "":
	default:
		sql += " AND ended_at IS NULL"
	}
	require.NoError(w.T, w.Store.Pool().QueryRow(w.T.Context(), sql, f.Statuses, string(f.AccessKey), f.Domain, string(f.Project), user,
		string(f.Type)).Scan(&n))
	return n
}

// reads returns the tables of which a call reads too many rows, with their numbers.
func reads(w *managertest.World, call func()) map[string]int64 {
	before := counters(w)
	call()
	out := map[string]int64{}
	for table, n := range counters(w) {
		if n -= before[table]; n > mayRead {
			out[table] = n
		}
	}
	return out
}

// always returns the tables of which a call reads too many rows every time that it is made. Those who follow changes read at times, too,
// and what a connection has read that is in use is counted later.
func always(w *managertest.World, call func()) map[string]int64 {
	r := reads(w, call)
	for again := 0; len(r) > 0 && again < 3; again++ {
		now := reads(w, call)
		maps.DeleteFunc(r, func(table string, _ int64) bool { return now[table] == 0 })
	}
	return r
}

// counters are the numbers of rows that were read of each table since its creation.
func counters(w *managertest.World) map[string]int64 {
	ctx := context.Background()
	for _, c := range w.Store.Pool().AcquireAllIdle(ctx) { // each connection keeps its own counters for a while
		_, err := c.Exec(ctx, "SELECT pg_stat_force_next_flush()")
		c.Release()
		require.NoError(w.T, err)
	}
	rows, err := w.Store.Pool().Query(ctx, `SELECT t.relname::text, t.seq_tup_read + coalesce(sum(i.idx_tup_read), 0)::bigint
		FROM pg_stat_user_tables t LEFT JOIN pg_stat_user_indexes i USING (relid) GROUP BY t.relname, t.seq_tup_read`)
	require.NoError(w.T, err)
	out := map[string]int64{}
	var table string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&table, &n}, func() error { out[table] = n; return nil })
	require.NoError(w.T, err)
	return out
}
