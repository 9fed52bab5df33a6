package runner

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/app"
	"berth.dev/berth/internal/wire/run"
)

// The bytes of an app's log that a caller gets when it names none, and at most.
const (
	usualTail = 64 << 10
	maxTail   = 2 << 20
)

// newApps makes the set of declared apps. own are those that the runner serves.
func (r *Runner) newApps(own []Intrinsic) (*app.Set, error) {
	dir := filepath.Join(r.cfg.Dir, "apps")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	uid := r.cfg.User.UID
	if r.user == nil {
		uid = os.Geteuid() // commands run as the runner itself
	}
	c := app.Config{
		Apps: r.cfg.Apps, DefinitionDir: app.DefinitionDir, LogDir: dir, NetDir: "/proc/self/net", Dir: r.cfg.WorkDir, Home: r.cfg.User.Home,
		Env: r.env, User: r.user, UID: uid, RuntimePath: r.tool, Table: r.table, Log: r.log,
		Only: r.cfg.HostPorts,
	}
	if given := r.cfg.Runtime.Path; given != "" && given != "/bin/true" {
		c.RuntimePath = given
	}
	for _, a := range own {
		c.Own = append(c.Own, run.AppPort{Name: a.Name(), Protocol: a.Protocol(), Ports: []int{a.Port()}})
	}
	return app.New(c), nil
}

func (r *Runner) serveApps(q *http.Request) (run.AppList, error) {
	return r.apps.List(q.Context()), nil
}

func (r *Runner) serveAppStart(q *http.Request) (run.AppStartResult, error) {
	var req run.AppStartRequest
	if err := readJSON(q, &req); err != nil {
		return run.AppStartResult{}, err
	}
	return r.apps.Start(q.Context(), q.PathValue("name"), req)
}

func (r *Runner) serveAppStop(q *http.Request) (run.App, error) {
	return r.apps.Stop(q.Context(), q.PathValue("name"))
}

func (r *Runner) serveAppLog(w http.ResponseWriter, q *http.Request) {
	n := int64(usualTail)
	if text := q.URL.Query().Get("tail"); text != "" {
		var err error
		if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < 1 {
			run.WriteFailure(w, fault.Invalidf("tail %q is no number of bytes", text))
			return
		}
	}
	b, err := r.apps.Log(q.PathValue("name"), min(n, maxTail))
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // a caller that left needs no answer
}
