package testkit_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
	"berth.dev/berth/internal/testkit/load"
	"berth.dev/berth/internal/wire/run"
)

// clients are the load of this test on managers; each of them knows all.
type clients struct {
	*load.Load
	mu      sync.Mutex
	created []string // names of sessions; those whose creation was not answered, too
}

// kinds are the requests of clients. Besides they connect, when a connection has broken.
var kinds = []string{"create", "info", "list", "execute", "line"}

// under begins a load of everything that clients do: they create batch sessions and wait for their ends, read, execute code, and send
// bytes to an app over a connection that they open again when it breaks.
func under(t *testing.T, steady []string, apis ...*api.Client) *clients {
	t.Helper()
	l := &clients{Load: load.Begin(t, 20*time.Millisecond)}
	for i, c := range apis {
		l.Client(func(n int) { l.create(c, fmt.Sprintf("load-%d-%d", i, n)) })
		l.Client(func(int) { l.read(c) })
		for _, name := range steady {
			l.Client(func(int) { l.execute(c, name) })
			l.Client(func(int) { l.connect(c, name) })
		}
	}
	return l
}

func (l *clients) create(c *api.Client, name string) {
	l.mu.Lock()
	l.created = append(l.created, name)
	l.mu.Unlock()
	ok := l.Do("create", func(ctx context.Context) error {
		_, err := c.CreateSession(ctx, api.CreateSession{Name: name, Image: testkit.Image, Type: "batch", StartupCommand: "exit 0",
			EnqueueOnly: true, Config: api.SessionConfig{Resources: map[string]string{"cpu": "1", "mem": "128m"}}})
		return err
	})
	for final := false; ok && !final && l.Pause(); {
		ok = l.Do("info", func(ctx context.Context) error {
			s, err := c.SessionInfo(ctx, name)
			final = cluster.Status(s.Status).Final()
			if api.IsNotFound(err) { // of the name of a session that has ended nothing is told
				final, err = true, nil
			}
			return err
		})
	}
}

func (l *clients) read(c *api.Client) {
	l.Do("list", func(ctx context.Context) error {
		_, err := c.Sessions(ctx, api.SessionFilter{Limit: 20})
		return err
	})
}

func (l *clients) execute(c *api.Client, name string) {
	l.Do("execute", func(ctx context.Context) error {
		r, err := c.Poll(ctx, name, "", api.Execute{Mode: api.ModeQuery, Code: "print(6*7)"})
		if err == nil && (len(r.Console) != 1 || r.Console[0] != api.ConsoleItem{"stdout", "42\n"}) {
			err = fmt.Errorf("it printed %v", r.Console)
		}
		return err
	})
}

// connect holds a connection to an app until it breaks or has carried some lines; every line is a request of its own. A connection by way
// of the manager that lives on does not break, so new ones must come by themselves.
func (l *clients) connect(c *api.Client, name string) {
	var conn net.Conn
	ok := l.Do("connect", func(ctx context.Context) (err error) {
		conn, err = c.DialApp(ctx, name, "port-9000", 0)
		return err
	})
	if !ok {
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(l.Ended(), func() { _ = conn.Close() })
	defer stop()
	const lines = 25
	for opened, n := time.Now(), 0; ok && n < lines && l.Pause(); n++ {
		ok = l.On("line", opened, func(context.Context) error {
			_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
			if _, err := io.WriteString(conn, "a line\n"); err != nil {
				return err
			}
			line := make([]byte, len("a line\n"))
			_, err := io.ReadFull(conn, line)
			return err
		})
	}
}

// since waits until every kind of request has succeeded that began after an instant.
func (l *clients) since(c *testkit.Cluster, when time.Time, kinds ...string) {
	for _, kind := range kinds {
		c.Until("a request that begins now succeeds again: "+kind, func() bool { _, there := l.First(when)[kind]; return there })
	}
}

// TestManagersFailOverUnderLoad: the manager that leads and holds the agents is killed under load, comes back, and then the other one is
// killed. No request fails but those that were under way, and every session that was asked for runs once.
func TestManagersFailOverUnderLoad(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Managers: 2, NoAgents: true, Cores: 64, Quiet: true})
	c.Exec(`UPDATE keypairs SET rate_limit = 0`)
	first, second := c.Process("first"), c.Process("second")
	// The managers of this process only prepare: the first one to come after them leads.
	c.Managers[1].Stop()
	first.Start()
	c.Managers[0].Stop()
	c.Managers[0].Start()
	number := func(query string, args ...any) (n int) {
		require.NoError(t, c.Store.Pool().QueryRow(t.Context(), query, args...).Scan(&n))
		return n
	}
	steady := []string{"steady-0", "steady-1"}
	for range steady {
		c.AddAgent(first, second) // the second one does not listen yet
	}
	c.Until("the agents are known", func() bool {
		return number(`SELECT count(*) FROM agents WHERE status = 'ALIVE' AND devices <> '[]' AND engine_ok`) == len(steady)
	})
	for i, name := range steady {
		id := c.Create(request.Session{Name: name, Agents: []string{string(c.Agents[i].ID())}})
		_, err := c.Agents[i].Engine.Listen(c.Running(id).MainKernel().ID, 9000, run.AppProtocol("tcp"), fake.Echo)
		require.NoError(t, err)
	}
	second.Start()
	c.Managers[0].Stop()
	held := func(p *testkit.Process) int {
		return number(`SELECT count(*) FROM agent_connections WHERE manager = $1 AND connected`, p.ID())
	}
	require.Equal(t, len(steady), held(first), "both agents are with the manager that will be killed")

	l := under(t, steady, c.ClientOf(first, second), c.ClientOf(second, first))
	var last load.Kill
	start := time.Now()
	l.since(c, start, append(kinds, "connect")...)
	l.Judge("before", last, start)
	for _, round := range []struct{ victim, heir *testkit.Process }{{first, second}, {second, first}} {
		last.Before = time.Now()
		round.victim.Kill()
		last.After = time.Now()
		l.since(c, last.After, append(kinds, "connect")...)
		c.Until("all agents are with the other manager", func() bool { return held(round.heir) == len(steady) })
		placed := number(`SELECT count(*) FROM kernels WHERE scheduled_at IS NOT NULL`)
		c.Until("the other manager leads", func() bool {
			return number(`SELECT count(*) FROM kernels WHERE scheduled_at IS NOT NULL`) > placed
		})
		t.Logf("%s is killed: both agents are with %s and it places sessions after %s at most", round.victim.ID(), round.heir.ID(),
			time.Since(last.After).Round(time.Millisecond))
		l.Judge(round.victim.ID()+" is killed", last, last.After)
		round.victim.Start()
		back := time.Now()
		l.since(c, back, kinds...)
		l.Judge(round.victim.ID()+" is back", last, back)
	}
	l.Stop()

	c.Managers[0].Start()
	c.UntilAll("batch sessions have ended", number(`SELECT count(*) FROM sessions WHERE type = 'batch'`), func() int {
		return number(`SELECT count(*) FROM sessions WHERE type = 'batch' AND ended_at IS NOT NULL`)
	})
	c.Until("all batch sessions have ended", func() bool {
		return number(`SELECT count(*) FROM sessions WHERE type = 'batch' AND ended_at IS NULL`) == 0
	})
	require.Zero(t, number(`SELECT count(*) FROM sessions WHERE type = 'batch' AND result <> 'SUCCESS'`))
	require.LessOrEqual(t, number(`SELECT count(*) FROM sessions WHERE type = 'batch'`), len(l.created))
	require.Zero(t, number(`SELECT count(*) FROM (SELECT name FROM sessions GROUP BY name HAVING count(*) > 1) twice`),
		"nothing is there twice")
	var ids []string
	require.NoError(t, c.Store.Pool().QueryRow(t.Context(), `SELECT array_agg(id::text) FROM kernels`).Scan(&ids))
	for _, id := range ids {
		starts := 0
		for _, a := range c.Agents {
			starts += a.Starts(cluster.KernelID(id))
		}
		require.Equal(t, 1, starts, "containers of kernel %s", id)
	}
	for _, name := range steady {
		id := cluster.SessionID("")
		require.NoError(t, c.Store.Pool().QueryRow(t.Context(), `SELECT id FROM sessions WHERE name = $1`, name).Scan(&id))
		require.Equal(t, cluster.Running, c.Session(id).Status)
		c.Destroy(id, false)
	}
	c.Clean()
}
