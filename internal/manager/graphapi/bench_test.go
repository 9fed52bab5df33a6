package graphapi_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

// BenchmarkLists measures lists of 100 rows among 100,000 sessions and 10,000 users, as the official clients write them: run it alone with
// go test ./internal/manager/graphapi -run '^$' -bench Lists -benchtime 50x. It reports the best and the median of the requests, and how
// many statements each takes.
func BenchmarkLists(b *testing.B) {
	const sessions, users = 100_000, 10_000
	c := &counter{}
	f := fill(b, func(d *nouns.Deps) { d.Store = storetest.OpenWith(b, store.Config{DSN: storetest.DSN(b), Tracer: c}) })
	session := "x.id = '" + string(f.session) + "'"
	f.copies(1, users, "users", "x.id = '"+string(f.admin.UserID)+"'", map[string]string{"id": "md5('u' || i)::uuid",
		"username": "'many' || i", "email": "'many' || i || '@x'", "main_access_key": "NULL", "role": "'user'"})
	f.copies(1, 100, "user_resource_policies", "x.name = 'default'", map[string]string{"name": "'many' || i"})
	f.copies(1, 100, "projects", "x.name = 'default'", map[string]string{"id": "md5('p' || i)::uuid", "name": "'many' || i"})
	f.exec(`UPDATE users SET resource_policy = 'many' || (1 + abs(hashtext(email)) % 100) WHERE email LIKE 'many%'`)
	f.exec(`INSERT INTO project_members (project_id, user_id)
		SELECT md5('p' || (1 + (i + j) % 100))::uuid, md5('u' || i)::uuid FROM generate_series(1, $1::int) i, generate_series(1, 3) j`, users)
	ended := map[string]string{"status": "CASE WHEN i % 50 = 0 THEN 'RUNNING' ELSE 'TERMINATED' END",
		"ended_at": "CASE WHEN i % 50 <> 0 THEN x.created_at END", "created_at": "x.created_at - i * interval '1 s'"}
	with := func(more map[string]string) map[string]string {
		for k, v := range ended {
			more[k] = v
		}
		return more
	}
	f.copies(1, sessions, "sessions", session, with(map[string]string{"id": "md5('s' || i)::uuid", "name": "'many' || i",
		"user_id": "md5('u' || (1 + i % 10000))::uuid"}))
	f.copies(1, sessions, "kernels", "x.session_id = '"+string(f.session)+"'", with(map[string]string{"id": "md5('k' || i)::uuid",
		"session_id": "md5('s' || i)::uuid"}))
	f.exec("VACUUM ANALYZE")
	webui, client := map[string]string{}, map[string]string{}
	for _, op := range operationsOf(b, "webui.graphql") {
		webui[op.name] = op.text
	}
	for _, op := range operationsOf(b, "client.graphql") {
		client[op.name] = op.text
	}
	page := map[string]any{"limit": 100, "offset": 0, "first": 100}
	with100 := func(more map[string]any) map[string]any {
		for k, v := range page {
			more[k] = v
		}
		return more
	}
	for _, one := range []struct {
		name, text string
		vars       map[string]any
	}{
		{"sessions with containers, running", client["session_list"], with100(map[string]any{"status": "RUNNING"})},
		{"sessions with containers, all", client["session_list"], page},
		{"session page of the Web UI", webui["AdminComputeSessionListPageQuery"],
			with100(map[string]any{"filter": `status != "TERMINATED" & status != "CANCELLED"`, "order": "-created_at"})},
		{"users with policies and projects", client["user_list"], page},
		{"user page of the Web UI", webui["AdminUserManagementQuery"],
			with100(map[string]any{"orderBy": []any{map[string]any{"field": "EMAIL"}}})},
		{"users by filter", client["user_list"], with100(map[string]any{"filter": `email ilike "%many77%"`})},
	} {
		b.Run(one.name, func(b *testing.B) {
			for range 3 {
				require.Empty(b, f.answer(one.text, one.vars, f.admin).Errors)
			}
			var times []time.Duration
			c.take()
			for b.Loop() {
				began := time.Now()
				body, code := f.post(one.text, one.vars)
				times = append(times, time.Since(began))
				require.Equal(b, 200, code, body)
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[0].Microseconds())/1000, "best-ms")
			b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "median-ms")
			b.ReportMetric(float64(len(c.take()))/float64(len(times)), "statements")
		})
	}
}
