package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/testkit/load"
)

// twoManagers is a cluster whose second manager has joined by its token. Both serve all sessions.
type twoManagers struct {
	*apart
	files map[string]string // configurations, by role
	apis  map[string]string // ports, by role
	env   []string          // of clients that know both
	know  api.Config
}

func newTwoManagers(t *testing.T) *twoManagers {
	t.Helper()
	a := newApart(t, "i-failover", "", "")
	dir, port, hub := filepath.Dir(a.config), freePort(t), freePort(t)
	text, err := os.ReadFile(a.config)
	require.NoError(t, err)
	second := strings.NewReplacer(
		"[manager]\n", "[manager]\nid = \"manager-2\"\n",
		`listen = "127.0.0.1:`+a.api+`"`, `listen = "127.0.0.1:`+port+`"`,
		`state_dir = "`+a.dir+`"`, `state_dir = "`+dir+`/manager-2"`,
		`listen = "`+a.hub+`"`, `listen = "127.0.0.1:`+hub+`"`,
	).Replace(string(text))
	m := &twoManagers{apart: a, apis: map[string]string{"manager": a.api, "manager-2": port},
		files: map[string]string{"manager": a.config, "manager-2": filepath.Join(dir, "manager-2.toml")}}
	require.NoError(t, os.WriteFile(m.files["manager-2"], []byte(second), 0o600))
	token := filepath.Join(dir, "manager-2.token")
	a.must("admin", "join-token", "create", "--role", "manager", "--name", "manager-2", "--config", a.config, "--out", token)
	a.must("manager", "join", "--config", m.files["manager-2"], "--token-file", token)
	m.start("manager-2")

	both := "http://127.0.0.1:" + a.api + ",http://127.0.0.1:" + port
	for _, kv := range a.env() {
		if !strings.HasPrefix(kv, api.EnvEndpoint+"=") {
			m.env = append(m.env, kv)
		}
	}
	m.env = append(m.env, api.EnvEndpoint+"="+both)
	m.know, err = api.LoadConfig(api.Lookup{StateDir: a.dir, Endpoint: both})
	require.NoError(t, err)
	return m
}

// start starts one of the managers and waits until it answers.
func (m *twoManagers) start(role string) {
	m.t.Helper()
	m.processes[role] = process(m.t, filepath.Dir(m.config), role, binary, "manager", "--config", m.files[role])
	listening(m.t, m.apis[role])
	m.eventually(role+" answers", func() bool {
		return m.run("", "session", "list", "--state-dir", m.dir, "--endpoint", "http://127.0.0.1:"+m.apis[role]).code == 0
	})
}

// berth runs the command line as a user who knows both managers.
func (m *twoManagers) berth(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(append(os.Environ(), "NO_COLOR=1"), m.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("berth %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// TestManagersFailOver kills the manager that leads and holds the agent, under the load of our client, our command line and the official
// one, which all know both managers; then it comes back and the other one is killed. No request fails that began after a kill, every job
// runs once, and no container is touched.
func TestManagersFailOver(t *testing.T) {
	m := newTwoManagers(t)
	m.must("session", "create", "python", "--name", "steady", "-r", "cpu=1", "-r", "mem=256m")
	m.must("session", "exec", "steady", "--", "true")
	before := containers(t, "label=berth.agent=i-failover")
	official := newOfficial(t, m.env)

	l := load.Begin(t, 100*time.Millisecond)
	var mu sync.Mutex
	var jobs []string
	kinds := []string{"create", "info", "list", "execute", "berth", "official"}
	for i, others := range [][2]string{{m.know.Endpoint, m.know.Others[0]}, {m.know.Others[0], m.know.Endpoint}} {
		cfg := m.know
		cfg.Endpoint, cfg.Others = others[0], others[1:]
		c, err := api.New(cfg)
		require.NoError(t, err)
		t.Cleanup(c.Close)
		l.Client(func(int) {
			l.Do("list", func(ctx context.Context) error { _, err := c.Sessions(ctx, api.SessionFilter{Limit: 10}); return err })
		})
		l.Client(func(int) {
			l.Do("execute", func(ctx context.Context) error {
				r, err := c.Poll(ctx, "steady", "", api.Execute{Mode: api.ModeQuery, Code: "print(6*7)"})
				for err == nil && r.Status == api.ExecContinued {
					r, err = c.Poll(ctx, "steady", r.RunID, api.Execute{Mode: api.ModeContinue})
				}
				return err
			})
		})
		if i > 0 {
			continue
		}
		l.Client(func(n int) {
			name := fmt.Sprintf("job-%d", n)
			mu.Lock()
			jobs = append(jobs, name)
			mu.Unlock()
			id := ""
			ok := l.Do("create", func(ctx context.Context) error {
				s, err := c.CreateSession(ctx, api.CreateSession{Name: name, Image: "python", Type: "batch", EnqueueOnly: true,
					StartupCommand: "true", Config: api.SessionConfig{Resources: map[string]string{"cpu": "1", "mem": "128m"}}})
				id = s.ID
				return err
			})
			for final := false; ok && !final && l.Pause(); {
				ok = l.Do("info", func(ctx context.Context) error {
					s, err := c.SessionInfo(ctx, id)
					final = s.Status == api.StatusTerminated || s.Status == api.StatusError || s.Status == api.StatusCancelled
					return err
				})
			}
		})
	}
	l.Client(func(int) {
		l.Do("berth", func(ctx context.Context) error {
			out, err := m.berth(ctx, "session", "exec", "steady", "--", "echo", "hello")
			if err == nil && !strings.Contains(out, "hello") {
				err = fmt.Errorf("it printed %q", out)
			}
			return err
		})
	})
	l.Client(func(int) {
		l.Do("official", func(ctx context.Context) error {
			cmd, stdout, stderr := official.command(ctx, "", "ps")
			if err := cmd.Run(); err != nil || !strings.Contains(stdout.String(), "steady") {
				return fmt.Errorf("backend.ai ps: %v: %s%s", err, stdout, stderr)
			}
			return nil
		})
	})
	var last load.Kill
	since := func(when time.Time) {
		t.Helper()
		for deadline := time.Now().Add(patience); len(l.First(when)) < len(kinds); <-time.After(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				l.Judge("not everything succeeds again", last, when)
				t.FailNow()
			}
		}
	}
	start := time.Now()
	since(start)
	l.Judge("before", last, start)
	for _, victim := range []string{"manager", "manager-2"} {
		last.Before = time.Now()
		m.kill(victim)
		last.After = time.Now()
		since(last.After)
		l.Judge(victim+" is killed", last, last.After)
		m.start(victim)
		back := time.Now()
		since(back)
		l.Judge(victim+" is back", last, back)
	}
	l.Stop()

	m.eventually("every job has ended", func() bool {
		for name, s := range m.sessions() {
			if strings.HasPrefix(name, "job-") && s.Status != "TERMINATED" {
				return false
			}
		}
		return true
	})
	sessions := m.sessions()
	for _, name := range jobs {
		if s, there := sessions[name]; there {
			require.Equal(t, "SUCCESS", s.Result, "%s: %s", name, s.Info)
		}
	}
	t.Logf("%d jobs asked for, %d sessions in all", len(jobs), len(sessions))
	require.Equal(t, "RUNNING", sessions["steady"].Status)
	for _, id := range before {
		require.Contains(t, containers(t, "label=berth.agent=i-failover"), id, "its container was not touched")
	}
	m.must("session", "rm", "--yes", "steady")
	t.Cleanup(func() {
		if t.Failed() {
			left, _ := docker("ps", "--all", "--filter", "label=berth.agent=i-failover")
			t.Logf("containers:\n%s\nsessions:\n%v", left, sessions)
		}
	})
	m.eventually("all containers are gone", func() bool { return len(containers(t, "label=berth.agent=i-failover")) == 0 })
	m.clean("--config", m.config)
}
