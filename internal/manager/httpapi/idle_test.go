package httpapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// runs inserts a running session of the administrator.
func (s *site) runs(name string) string {
	s.t.Helper()
	id := uuid.NewString()
	_, err := s.store.Pool().Exec(s.t.Context(), `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key,
			resource_group, image, status, requested_slots, started_at)
		SELECT $1, $2, 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'RUNNING', '{}', now()
			FROM keypairs k, projects p WHERE k.access_key = $3`, id, name, s.admin.AccessKey)
	require.NoError(s.t, err)
	return id
}

func TestIdleCheckersAndReports(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.runs("mine")
	put := func(name, body string) answer { return s.call("PUT", "/resource/idle-checkers/"+name, body) }
	require.Equal(
		t,
		204,
		put(
			"gpu",
			`{"type":"utilization","warn_before":"10m","initial_grace_period":300,"dry_run":true,"target_session_types":["interactive"],
		"spec":{"time_window_seconds":3600,"resource_thresholds":{"cpu_util":5,"cuda_util":"2.5"}},"bindings":[{"project":"default"},
			{"resource_group":"default"},{}]}`,
		).status,
	)
	var list struct {
		Checkers []map[string]any `json:"idle_checkers"`
	}
	s.call("GET", "/resource/idle-checkers", "").into(t, &list)
	require.Len(t, list.Checkers, 1)
	k := list.Checkers[0]
	require.Equal(t, "gpu", k["name"])
	require.EqualValues(t, 600, k["warn_before"])
	require.EqualValues(t, 300, k["initial_grace_period"])
	require.Equal(
		t,
		map[string]any{
			"time_window_seconds": 3600.0, "thresholds_check_operator": "and",
			"resource_thresholds": map[string]any{"cpu_util": 5.0, "cuda_util": 2.5},
		},
		k["spec"],
	)
	require.Len(t, k["bindings"], 3)

	for _, body := range []string{
		`{}`, `{"type":"moon"}`, `{"type":"session_lifetime","spec":{"max_lifetime":3600}}`,
		`{"type":"session_lifetime","spec":{"max_lifetime_seconds":-1}}`,
		`{"type":"session_lifetime","spec":{"max_lifetime_seconds":3600},"bindings":{"domain":"default"}}`,
		`{"type":"session_lifetime","spec":{"max_lifetime_seconds":3600},"bindings":["default"]}`,
		`{"type":"session_lifetime","spec":{"max_lifetime_seconds":3600},"bindings":[{"scaling_group":"default"}]}`,
		`{"type":"session_lifetime","spec":[1]}`,
		`{"type":"utilization","spec":{"time_window_seconds":3600,"resource_thresholds":{"cpu_util":"5x"}}}`,
		`{"type":"session_lifetime","warn_before":"soon","spec":{"max_lifetime_seconds":3600}}`,
	} {
		put("bad", body).problem(t, 400, "invalid-api-params")
	}
	put(
		"bad", `{"type":"session_lifetime","spec":{"max_lifetime_seconds":3600},"bindings":[{"resource_group":"nowhere"}]}`,
	).problem(t, 404, "object-not-found")

	// Clients find the checks at the session.
	var info struct {
		IdleChecks map[string]struct {
			Remaining *float64 `json:"remaining"`
			Kind      string   `json:"remaining_time_type"`
			Checker   string   `json:"checker"`
			Phase     string   `json:"phase"`
		} `json:"idleChecks"`
	}
	s.call("GET", "/session/mine", "").into(t, &info)
	require.InDelta(t, 3600, *info.IdleChecks["network_timeout"].Remaining, 60)
	require.Equal(t, "policy:network_timeout", info.IdleChecks["network_timeout"].Checker)
	require.Equal(t, "grace_period", info.IdleChecks["utilization"].Kind)
	var report struct {
		Sessions []map[string]any `json:"sessions"`
		Total    int              `json:"total"`
	}
	s.call("GET", "/resource/idle-report", "").into(t, &report)
	require.Equal(t, 1, report.Total)
	require.Equal(t, id, report.Sessions[0]["session_id"])
	require.Nil(t, report.Sessions[0]["kept_alive_until"])

	var kept struct {
		Until string `json:"until"`
	}
	s.call("POST", "/session/mine/keep-alive", `{"for":"2h","reason":"training"}`).into(t, &kept)
	until, err := time.Parse(time.RFC3339Nano, kept.Until)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), until, time.Minute)
	s.call("GET", "/resource/idle-report", "").into(t, &report)
	require.NotNil(t, report.Sessions[0]["kept_alive_until"])
	s.call("POST", "/session/mine/keep-alive", `{}`).problem(t, 400, "invalid-api-params")
	s.call("POST", "/session/mine/keep-alive", `{"for":"9999d"}`).problem(t, 400, "invalid-api-params")
	s.call("POST", "/session/nobodys/keep-alive", `{"for":"2h"}`).problem(t, 404, "object-not-found")
	require.Equal(t, 204, s.call("DELETE", "/session/mine/keep-alive", "").status)

	require.Equal(t, 204, s.call("DELETE", "/resource/idle-checkers/gpu", "").status)
	s.call("DELETE", "/resource/idle-checkers/gpu", "").problem(t, 404, "object-not-found")

	// A warning is an event like any other.
	_, err = s.store.Pool().
		Exec(
			t.Context(),
			`INSERT INTO session_events (session_id, event, from_status, to_status, reason, detail) VALUES ($1, `+
				`'session_idle_warning', 'RUNNING', 'RUNNING', 'idle-timeout', 'it ends soon')`,
			id,
		)
	require.NoError(t, err)
	events := s.call("GET", "/events/session?sessionName=mine&follow=false", "")
	require.Contains(t, events.body, "event: session_idle_warning\n")
	require.Contains(t, events.body, `"detail":"it ends soon"`)
}

func TestPresetRepliesHaveTheWiresShape(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var reply map[string]any
	s.call("POST", "/resource/check-presets", `{"group":"default"}`).into(t, &reply)
	require.ElementsMatch(
		t,
		[]string{"keypair_limits", "keypair_using", "keypair_remaining", "group_limits", "group_using", "group_remaining",
			"scaling_group_remaining", "scaling_groups", "presets"},
		keysOf(reply),
	)
	unlimited := map[string]any{"cpu": "Infinity", "mem": "Infinity"}
	require.Equal(t, unlimited, reply["keypair_limits"])
	require.Equal(t, unlimited, reply["group_remaining"])
	require.Equal(t, map[string]any{"cpu": "0", "mem": "0"}, reply["keypair_using"])
	require.Equal(
		t,
		map[string]any{
			"default": map[string]any{"using": map[string]any{"cpu": "0", "mem": "0"}, "remaining": map[string]any{"cpu": "0", "mem": "0"}},
		},
		reply["scaling_groups"],
	)
	preset := reply["presets"].([]any)[0].(map[string]any)
	require.Equal(t, false, preset["allocatable"], "there is no agent")
	require.Nil(t, preset["shared_memory"])
	require.Equal(t, map[string]any{"cpu": "1", "mem": "2147483648"}, preset["resource_slots"])
	var all struct{ Presets []map[string]any }
	s.call("GET", "/resource/presets", "").into(t, &all)
	require.Len(t, all.Presets, 4)

	s.call("POST", "/resource/check-presets", `{"group":"nowhere"}`).problem(t, 404, "object-not-found")
	require.Equal(t, "{}", strings.TrimSpace(s.call("POST", "/resource/recalculate-usage", "{}").body))
	require.Equal(t, "{}", strings.TrimSpace(s.call("GET", "/resource/container-registries", "").body))

	// Hidden from members, shown to administrators.
	require.Equal(t, 204, s.call("PUT", "/resource/project-visibility", `{"group_resource_visibility":false}`).status)
	s.call("POST", "/resource/check-presets", `{"group":"default"}`).into(t, &reply)
	require.Equal(t, unlimited, reply["group_limits"])
	_, err := s.store.Pool().Exec(t.Context(), `UPDATE users SET role = 'user'`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // who a key belongs to is remembered for a moment
		s.call("POST", "/resource/check-presets", `{"group":"default"}`).into(t, &reply)
		limits, _ := reply["group_limits"].(map[string]any)
		return limits["cpu"] == "NaN"
	}, patience, 50*time.Millisecond)
	require.Equal(t, map[string]any{"cpu": "NaN", "mem": "NaN"}, reply["group_using"])
	require.Equal(t, unlimited, reply["keypair_remaining"])
	s.call("POST", "/resource/recalculate-usage", "{}").problem(t, 403, "generic-forbidden")
	s.call("GET", "/resource/idle-checkers", "").problem(t, 403, "generic-forbidden")
}

func keysOf(m map[string]any) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}
