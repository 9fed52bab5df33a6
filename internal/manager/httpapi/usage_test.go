package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/admin"
)

// TestUsageAnswers: what the wire says of usage, as a superadmin, as an administrator of nothing, and with bad input.
func TestUsageAnswers(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	s := a.site
	_, err := s.store.Pool().Exec(t.Context(), `INSERT INTO usage_intervals (kernel_id, session_id, session_name, session_type,
		domain_name, project_id,
			project_name, user_id, email, access_key, resource_group, agent_id, image, slots, from_at, to_at)
		SELECT gen_random_uuid(), gen_random_uuid(), 'lab', 'interactive', 'default', p.id, p.name, u.id, u.email, 'k', 'default', 'a1', 'python',
			'{"cpu": 2000, "mem": 1073741824000, "cuda.device": 1000}', '2020-01-31T22:00:00Z', '2020-02-01T01:30:00.5Z'
		FROM users u, projects p WHERE u.email = $1 AND p.name = 'default'`, s.admin.Email)
	require.NoError(t, err)
	g := recordAnswers(t, "usage")
	defer g.compare()
	g.ask(s, "POST", "/usage/prices", `{"slot":"cpu","per_hour":"0.25","valid_from":"2020-01-31T23:00:00Z"}`)
	g.ask(s, "POST", "/usage/prices", `{"slot":"cpu","per_hour":"-1","valid_from":"2020-01-31T23:00:00Z"}`)
	g.ask(s, "POST", "/usage/prices", `{"slot":"cpu","per_hour":"1","valid_from":"soon"}`)
	g.ask(a.owner, "POST", "/usage/prices", `{"slot":"cpu","per_hour":"0","valid_from":"2020-01-31T23:00:00Z"}`)
	g.ask(a.owner, "GET", "/usage/prices", "")
	g.ask(s, "GET", "/usage/report?month=202001", "")
	g.ask(s, "GET", "/usage/report?month=202002&by=user", "")
	g.ask(s, "GET", "/usage/report?since=2020-01-31T00:00:00Z&until=2020-02-02T00:00:00Z&by=resource-group", "")
	g.ask(s, "GET", "/usage/report?month=202001&by=moon", "")
	g.ask(s, "GET", "/usage/report?month=2020", "")
	g.ask(s, "GET", "/usage/report?since=2020-01-31T00:00:00Z", "")
	g.ask(a.owner, "GET", "/usage/report?month=202001", "")
	g.ask(s, "GET", "/usage/series?since=2020-01-30T00:00:00Z&until=2020-02-01T12:00:00Z&by=domain&step=day", "")
	g.ask(s, "GET", "/usage/series?since=2020-01-01T00:00:00Z&until=2020-03-01T00:00:00Z&step=month", "")
	g.ask(s, "GET", "/usage/series?since=2019-01-01T00:00:00Z&until=2021-01-01T00:00:00Z", "")
	g.ask(s, "GET", "/usage/series?month=202001&step=hour", "")
	g.ask(a.owner, "GET", "/usage/series?month=202001&step=month", "")
	g.ask(s, "GET", "/resource/usage/month?month=202001", "")
	g.ask(s, "GET", "/resource/usage/month?month=202002&group_ids=00000000-0000-4000-8000-000000000000", "")
	g.ask(s, "GET", "/resource/usage/month?month=202002&group_ids=x", "")
	g.ask(s, "GET", "/resource/usage/period?start_date=20200201&end_date=20200201", "")
	g.ask(s, "GET", "/resource/usage/period?start_date=20200201&end_date=20200101", "")
	g.ask(s, "GET", "/resource/usage/period?start_date=2020", "")
	g.ask(a.owner, "GET", "/resource/usage/month?month=202001", "")
	g.ask(a.owner, "GET", "/resource/stats/admin/month", "")
	g.ask(s, "DELETE", "/usage/prices/00000000-0000-4000-8000-000000000000", "")
	g.ask(a.owner, "DELETE", "/usage/prices/00000000-0000-4000-8000-000000000000", "")

	_, err = s.store.Pool().Exec(t.Context(), `INSERT INTO usage_intervals (kernel_id, session_id, session_name, session_type,
		domain_name, project_id,
			project_name, user_id, email, access_key, resource_group, agent_id, image, slots, from_at)
		SELECT gen_random_uuid(), gen_random_uuid(), session_name, session_type, domain_name, project_id, project_name, user_id, email,
			access_key,
			resource_group, agent_id, image, slots, now() - interval '1 hour' FROM usage_intervals`)
	require.NoError(t, err)
	for _, path := range []string{"/resource/stats/user/month", "/resource/stats/admin/month"} {
		answer := s.call("GET", path, "")
		require.Equal(t, http.StatusOK, answer.status)
		var bins []admin.UsageBin
		require.NoError(t, json.Unmarshal([]byte(answer.body), &bins))
		require.Len(t, bins, 30*96)
		last := bins[len(bins)-1]
		require.EqualValues(t, 1, *last.Sessions.Value)
		require.EqualValues(t, 900, last.Date-bins[len(bins)-2].Date)
		require.Nil(t, last.Disk.Value, "what was not measured is not zero")
	}
}

// TestUsageTellsTheStatusHistory: the usage of a kernel says when its session came to its statuses, and null where that is forgotten.
func TestUsageTellsTheStatusHistory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.runs("mine")
	s.held(id)
	_, err := s.store.Pool().Exec(t.Context(), `INSERT INTO session_events (session_id, from_status, to_status, at)
		VALUES ($1, 'CREATING', 'RUNNING', '2020-01-31T22:00:00Z')`, id)
	require.NoError(t, err)
	var of []admin.UsageProject
	s.call("GET", "/resource/usage/month?month=202001", "").into(t, &of)
	require.Len(t, of, 1)
	require.Len(t, of[0].Kernels, 1)
	require.Equal(t, map[string]any{"RUNNING": "2020-01-31T22:00:00+00:00"}, of[0].Kernels[0].StatusHistory)
	_, err = s.store.Pool().Exec(t.Context(), `DELETE FROM sessions`)
	require.NoError(t, err)
	a := s.call("GET", "/resource/usage/month?month=202001&group_ids="+of[0].ID+",11111111-1111-4111-8111-111111111111", "")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Contains(t, a.body, `"status_history":null`)
}
