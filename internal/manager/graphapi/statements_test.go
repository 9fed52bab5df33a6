package graphapi_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"

	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

// counted marks the context of requests, whose statements count.
type counted struct{}

// counter counts the statements of requests.
type counter struct {
	mu  sync.Mutex
	sql []string
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if ctx.Value(counted{}) != nil && !strings.HasPrefix(q.SQL, "-- ping") {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sql = append(c.sql, q.SQL)
	}
	return ctx
}

func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take returns the statements since the last call.
func (c *counter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.sql
	c.sql = nil
	return out
}

// copies makes rows like those that are there, with other values in some columns; %[1]s stands for the number of the copy.
func (f *filled) copies(from, to int, table, where string, change map[string]string) {
	f.t.Helper()
	var set []string
	for column, value := range change {
		set = append(set, fmt.Sprintf("'%s', %s", column, value))
	}
	f.exec(fmt.Sprintf(`INSERT INTO %[1]s SELECT (jsonb_populate_record(x, jsonb_build_object(%[2]s))).* FROM %[1]s x, generate_series(%[3]d,
		%[4]d) i
		WHERE %[5]s`, table, strings.Join(set, ", "), from, to, where))
}

// grow makes many of everything, with the numbers of an interval.
func (f *filled) grow(from, to int) {
	id := func(kind string) string { return fmt.Sprintf("md5('%s' || i)::uuid", kind) }
	session, admin := string(f.session), string(f.admin.UserID)
	f.copies(from, to, "sessions", "x.id = '"+session+"'", map[string]string{"id": id("s"), "name": "'many' || i"})
	f.copies(from, to, "kernels", "x.session_id = '"+session+"'", map[string]string{"id": id("k"), "session_id": id("s")})
	f.exec(`INSERT INTO session_dependencies (session_id, depends_on) SELECT md5('s' || i)::uuid, $1 FROM generate_series($2::int, $3::int)
		i`, session, from, to)
	f.exec(`INSERT INTO session_dependencies (session_id, depends_on)
		SELECT md5('s' || i)::uuid, md5('s' || (i - 1))::uuid FROM generate_series($1::int + 1, $2::int) i`, from, to)
	f.copies(from, to, "users", "x.id = '"+admin+"'", map[string]string{"id": id("u"), "username": "'many' || i",
		"email":           "'many' || i || '@x'",
		"main_access_key": "NULL"})
	f.copies(from, to, "keypairs", "x.access_key = '"+string(f.admin.AccessKey)+"'", map[string]string{"access_key": "'MANY' || i"})
	f.copies(from, to, "projects", "x.name = 'default'", map[string]string{"id": id("p"), "name": "'many' || i"})
	f.exec(`INSERT INTO project_members (project_id, user_id) SELECT md5('p' || i)::uuid, $1 FROM generate_series($2::int, $3::int) i`, admin,
		from, to)
	f.exec(`INSERT INTO project_members (project_id, user_id) SELECT p.id, md5('u' || i)::uuid FROM projects p, generate_series($1::int,
		$2::int) i`, from, to)
	f.copies(from, to, "folders", "x.id = '"+f.folder+"'", map[string]string{"id": id("f"), "name": "'many' || i"})
	f.copies(from, to, "agents", "x.id = 'a1'", map[string]string{"id": "'many' || i"})
	f.copies(from, to, "images", "x.id = '"+f.image+"'", map[string]string{"id": id("i"), "reference": "x.reference || i",
		"tag": "x.tag || i"})
	f.copies(from, to, "domains", "x.name = 'default'", map[string]string{"name": "'many' || i"})
	f.copies(from, to, "resource_groups", "x.name = 'default'", map[string]string{"name": "'many' || i"})
	f.copies(from, to, "resource_presets", "x.name = 'tiny'", map[string]string{"id": id("r"), "name": "'many' || i"})
	for _, table := range []string{"keypair_resource_policies", "user_resource_policies", "project_resource_policies"} {
		f.copies(from, to, table, "x.name = 'default'", map[string]string{"name": "'many' || i"})
	}
}

// TestStatementsDoNotGrowWithRows counts what every documented query asks the database: as much with many rows as with few, and little for
// each field of the root. Fields of the root are answered side by side and share what they happen to ask for at one time, so each may ask
// once more than before; a statement for each row would be 35 more.
func TestStatementsDoNotGrowWithRows(t *testing.T) {
	t.Parallel()
	c := &counter{}
	f := fill(t, func(d *nouns.Deps) { d.Store = storetest.OpenWith(t, store.Config{DSN: storetest.DSN(t), Tracer: c}) })
	type asked struct {
		operation
		vars  map[string]any
		roots int
	}
	var all []asked
	for _, file := range documented {
		for _, op := range operationsOf(t, file) {
			doc, err := parser.ParseQuery(&ast.Source{Input: op.text})
			require.NoError(t, err)
			if one := doc.Operations[0]; one.Operation == ast.Query {
				vars := f.variables(one, f.admin)
				for _, name := range []string{"limit", "first"} {
					if _, has := vars[name]; has {
						vars[name] = 100
					}
				}
				all = append(all, asked{op, vars, len(one.SelectionSet)})
			}
		}
	}
	all = append(all, asked{operation: operation{"everything of sessions", `{compute_session_list(limit:100,offset:0){items{id status_history
		idle_checks containers{id image_object{name}} dependencies{id containers{id}}} total_count}}`}, roots: 1},
		asked{operation: operation{"everything of agents", `{agent_list(limit:100,offset:0){items{id compute_containers{id}} total_count}}`},
			roots: 1})
	count := func(a asked) []string {
		f.answer(a.text, a.vars, f.admin) // once to warm what is remembered for a moment
		c.take()
		f.answer(a.text, a.vars, f.admin)
		return c.take()
	}
	f.grow(1, 5)
	few := make([][]string, len(all))
	for i, a := range all {
		few[i] = count(a)
	}
	f.grow(6, 40)
	for i, a := range all {
		many := count(a)
		// On a busy machine the moment may be over between the two. What comes with rows comes every time.
		for again := 0; again < 5 && len(many) > min(12+4*a.roots, len(few[i])+a.roots); again++ {
			many = count(a)
		}
		t.Logf("%2d statements with few rows, %2d with many: %s", len(few[i]), len(many), a.name)
		require.LessOrEqual(t, len(many), 12+4*a.roots, "%s: %q", a.name, many)
		require.LessOrEqual(t, len(many), len(few[i])+a.roots, "%s grows from %q to %q", a.name, few[i], many)
	}
}
