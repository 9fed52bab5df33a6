package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// idleRoutes answers idle checks, presets and keep-alives.
func (f *fakeManager) idleRoutes(handle func(pattern string, h func(w http.ResponseWriter, r *http.Request))) {
	body := func(r *http.Request) map[string]any {
		var m map[string]any
		raw, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(raw, &m)
		return m
	}
	checkers := map[string]map[string]any{}
	handle("GET /resource/idle-checkers", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		list := []any{}
		for name, k := range checkers {
			k["name"] = name
			k["target_session_types"] = []string{"interactive", "batch"}
			list = append(list, k)
		}
		reply(w, 200, map[string]any{"idle_checkers": list})
	})
	handle("PUT /resource/idle-checkers/{name}", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		checkers[r.PathValue("name")] = body(r)
		w.WriteHeader(204)
	})
	handle("DELETE /resource/idle-checkers/{name}", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if checkers[r.PathValue("name")] == nil {
			problem(w, 404, "object-not-found", "No such idle checker: "+r.PathValue("name"), "")
			return
		}
		delete(checkers, r.PathValue("name"))
		w.WriteHeader(204)
	})
	handle("GET /resource/idle-report", func(w http.ResponseWriter, _ *http.Request) {
		left := int64(3300)
		reply(w, 200, map[string]any{"total": 7, "sessions": []any{map[string]any{"session_name": "mylab", "user_email": "a@b.c",
			"idle_checks": map[string]api.IdleCheck{
				"network_timeout": {
					Remaining: &left, Kind: "expire_after", Phase: "active", Checker: "policy:network_timeout",
					Why: "nobody used it for 5m, the limit is 1h",
				},
				"utilization": {Kind: "expire_after", Phase: "unknown", Checker: "gpu", Why: "cuda_util is not known", DryRun: true},
			}}}})
	})
	handle("POST /session/{s}/keep-alive", func(w http.ResponseWriter, r *http.Request) {
		if body(r)["for"] != "2h" {
			problem(w, 400, "invalid-api-params", "bad", "")
			return
		}
		reply(w, 200, map[string]string{"until": "2026-03-01T14:00:00+00:00"})
	})
	handle("DELETE /session/{s}/keep-alive", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	handle("POST /resource/check-presets", func(w http.ResponseWriter, _ *http.Request) {
		yes, shm := true, "67108864"
		reply(
			w,
			200,
			map[string]any{
				"presets": []api.Preset{
					{Name: "small", Slots: map[string]string{"cpu": "1", "mem": "1073741824"}, SharedMemory: &shm, Allocatable: &yes},
					{Name: "large", Slots: map[string]string{"cpu": "64"}},
				},
			},
		)
	})
}

func TestIdleVerbs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Contains(t, b.do(t, "", "idle", "list").err, "there are no idle checkers")
	for _, bad := range [][]string{{}, {
		"--max-lifetime", "1h", "--max-inactivity", "1h",
	}, {
		"--below", "cpu_util",
	}, {
		"--below", "cpu_util=low",
	}} {
		o := b.do(t, "", append([]string{"idle", "set", "x"}, bad...)...)
		require.Equal(t, 2, o.code, o.err)
	}
	o := b.do(
		t, "", "idle", "set", "gpu", "--below", "cuda_util=5", "--below", "cpu_util=10", "--window", "2h", "--resource-group", "gpus",
		"--dry-run",
	)
	require.Equal(t, 0, o.code, o.err)
	require.Contains(t, o.err, "reports on resource group gpus")
	require.Contains(t, b.do(t, "", "idle", "set", "week", "--max-lifetime", "168h").err, "applies nowhere")
	require.Equal(t, 0, b.do(t, "", "idle", "remove", "week").code)
	require.Regexp(
		t,
		`(?m)^gpu +utilization +cpu_util < 10 % and cuda_util < 5 % over 2h +interactive, batch +5m before +resource group gpus +dry run$`,
		b.do(t, "", "idle", "list").out,
	)
	o = b.do(t, "", "idle", "remove", "week")
	require.Equal(t, 3, o.code)
	require.Contains(t, o.err, "berth idle list")

	o = b.do(t, "", "idle", "report")
	require.Contains(t, o.out, "mylab    a@b.c  policy:network_timeout  active   55m      nobody used it for 5m, the limit is 1h")
	require.Contains(t, o.out, "gpu (dry run)")
	require.Contains(t, o.err, "7 sessions run")

	require.Contains(t, b.do(t, "", "session", "keep-alive", "mylab", "--for", "2h").err, "kept alive until 2026-03-01T14:00:00")
	require.Equal(t, 0, b.do(t, "", "session", "keep-alive", "mylab", "--off").code)
	require.Equal(t, 2, b.do(t, "", "session", "keep-alive", "mylab").code)
}

func TestPresetVerbs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, ""+
		"NAME   SLOTS             SHARED MEMORY  RESOURCE GROUP  FITS NOW\n"+
		"small  cpu 1, mem 1 GiB  64 MiB                         yes\n"+
		"large  cpu 64                                           no\n", b.do(t, "", "preset", "list").out)
}

func TestSeconds(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{
		0: "0s", 5: "5s", 60: "1m", 90: "1m30s", 600: "10m", 3600: "1h", 3660: "1h1m", 36000: "10h", 604800: "168h",
	} {
		require.Equal(t, want, seconds(n))
	}
}

func TestIdleLine(t *testing.T) {
	t.Parallel()
	require.Empty(t, idleLine(api.JSONText("{}")))
	require.Empty(t, idleLine(nil))
	require.Equal(
		t,
		"ends in 1m by b: w2",
		idleLine(api.JSONText(`{"a":{"remaining":600,"remaining_time_type":"expire_after","checker":"a","why":"w1"},
		"b":{"remaining":60,"remaining_time_type":"expire_after","checker":"b","why":"w2"},"c":{"remaining":1,
			"remaining_time_type":"expire_after","dry_run":true},
		"d":{"remaining":2,"remaining_time_type":"grace_period"},"e":{"remaining":null,"remaining_time_type":"expire_after"}}`)),
	)
}
