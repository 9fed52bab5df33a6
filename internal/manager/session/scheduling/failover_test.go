package scheduling_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/testkit/await"
)

// manager is one of several that compete for the lead over one database and one etcd. It can be killed: then
// nothing that it sends arrives any more, and nobody hears why.
type manager struct {
	planner *scheduling.Planner
	service *chassis.Service
	store   *store.Store
	dead    atomic.Bool
	mu      sync.Mutex
	conns   []net.Conn
	name    string
}

var errDead = errors.New("the manager is dead")

// deadly is a connection that swallows everything once its manager is dead.
type deadly struct {
	net.Conn
	m *manager
}

func (c deadly) Write(b []byte) (int, error) {
	if c.m.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c deadly) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if !c.m.dead.Load() || err != nil {
			return n, err
		}
	}
}

func (m *manager) dial(ctx context.Context, address string) (net.Conn, error) {
	if m.dead.Load() {
		return nil, errDead
	}
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, conn)
	return deadly{conn, m}, nil
}

// kill is what kill -9 looks like from outside: etcd hears nothing more, PostgreSQL sees its connections close and
// gets no new ones.
func (m *manager) kill(t *testing.T, admin *store.Store) {
	t.Helper()
	m.dead.Store(true)
	go m.store.Close() // ends when the connections have
	_, err := admin.Pool().Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, m.name)
	require.NoError(t, err)
}

type arena struct {
	*bundle
	t    *testing.T
	dsn  string
	etcd *embedded.Etcd
}

func newArena(t *testing.T) *arena {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "etcd")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "run"), 0o700))
	etcd := embedded.NewEtcd(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, etcd.Service().Start(t.Context()))
	t.Cleanup(func() { _ = etcd.Service().Stop(context.Background()) })
	dsn := storetest.DSN(t)
	s := storetest.Open(t, dsn)
	return &arena{bundle: bootstrapped(t, s), t: t, dsn: dsn, etcd: etcd}
}

func (a *arena) manager(name string) *manager {
	a.t.Helper()
	m := &manager{name: name}
	members, err := a.etcd.Client().MemberList(a.t.Context())
	require.NoError(a.t, err)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: members.Members[0].ClientURLs, DialTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
				return m.dial(ctx, strings.TrimPrefix(strings.TrimPrefix(target, "unix://"), "unix:"))
			})},
	})
	require.NoError(a.t, err)
	a.t.Cleanup(func() { _ = client.Close() })
	sep := "?"
	if strings.Contains(a.dsn, "?") {
		sep = "&"
	}
	m.store, err = store.Open(a.t.Context(), store.Config{DSN: a.dsn + sep + "application_name=" + name, SkipMigrations: true},
		slog.New(slog.DiscardHandler))
	require.NoError(a.t, err)
	m.planner = scheduling.NewPlanner(m.store, nil)
	log := slog.New(slog.NewTextHandler(a.t.Output(), nil)).With("manager", name)
	m.service = leading(a.t, scheduling.DefaultConfig(), scheduling.Deps{Store: m.store, Log: log, Planner: m.planner}, client, name)
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); _ = m.store.Run(ctx) }()
	require.NoError(a.t, m.service.Start(a.t.Context()))
	a.t.Cleanup(func() {
		bounded, done := context.WithTimeout(context.Background(), 20*time.Second)
		defer done()
		_ = m.service.Stop(bounded)
		stop()
		<-ran
		m.store.Close()
	})
	return m
}

// untilAll waits until a count has come to n. However many they are and however busy the machine is: it fails only when the count has
// not risen for a long time.
func (a *arena) untilAll(what string, n int, count func() int) {
	a.t.Helper()
	for seen := count(); seen < n; {
		before := seen
		require.Eventually(a.t, func() bool { seen = count(); return seen > before }, patience, time.Millisecond,
			"more than %d of %d %s", before, n, what)
	}
}

func (m *manager) leads() bool {
	st, err := m.planner.Status(context.Background())
	return err == nil && len(st) > 0 && st[0].Leader
}

// TestAKilledLeaderIsReplaced kills the leader in the middle of 1,000 placements: the other manager goes on, and every
// session is placed exactly once.
func TestAKilledLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	const sessions = 1000
	a := newArena(t)
	a.exec(`UPDATE keypair_resource_policies SET max_concurrent_sessions = 0`)
	for i := range 20 {
		a.agent(fmt.Sprintf("a%02d", i), 64, 1<<40)
	}
	both := map[bool]*manager{}
	one := a.manager("one")
	require.Eventually(t, one.leads, patience, 5*time.Millisecond)
	two := a.manager("two")
	both[true], both[false] = one, two

	added := make(chan struct{})
	go func() {
		defer close(added)
		for range sessions {
			a.session("", 1)
		}
	}()
	count := func(sql string) (n int) {
		require.NoError(t, a.store.Pool().QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	scheduled := func() int { return count(`SELECT count(*) FROM sessions WHERE status = 'SCHEDULED'`) }
	a.untilAll("sessions are placed", sessions/5+1, scheduled)
	one.kill(t, a.store)
	died := time.Now()
	require.Eventually(t, two.leads, patience, 5*time.Millisecond)
	t.Logf("the other manager led after %s", time.Since(died).Round(time.Millisecond))
	a.untilAll("sessions are added", sessions, func() int { return count(`SELECT count(*) FROM sessions`) })
	await.Value(t, added)
	a.untilAll("sessions are placed", sessions, scheduled)
	require.Equal(t, sessions, scheduled())

	require.Zero(t, count(`SELECT count(*) FROM (SELECT kernel_id FROM session_events WHERE to_status = 'SCHEDULED' AND kernel_id IS NOT `+
		`NULL GROUP BY 1 HAVING count(*) <> 1) d`), "kernels placed twice")
	require.Zero(t, count(`SELECT count(*) FROM kernels WHERE generation <> 1 OR agent_id IS NULL`))
	require.Zero(t, count(`SELECT count(*) FROM (SELECT agent_id, c.key FROM kernels, jsonb_each(allocation->'cpu') c GROUP BY 1, `+
		`2 HAVING sum((c.value)::bigint) > 1000) d`), "cores given twice")
	require.GreaterOrEqual(t, count(`SELECT (value->>'token')::int FROM cluster_settings WHERE key = 'leader'`), 2)
}

// TestALeaderWithoutEtcdStops: a leader that cannot reach etcd may have lost the lead and must not go on.
func TestALeaderWithoutEtcdStops(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	one := a.manager("one")
	require.Eventually(t, one.leads, patience, 5*time.Millisecond)
	one.dead.Store(true) // its database still answers
	require.Eventually(t, func() bool { return !one.leads() }, patience, 5*time.Millisecond)
}

// TestEveryManagerExplains: the one that does not lead answers as the leader does.
func TestEveryManagerExplains(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	a.agent("a1", 2, 1<<30)
	one := a.manager("one")
	require.Eventually(t, one.leads, patience, 5*time.Millisecond)
	two := a.manager("two")
	first := a.session("", 2)
	a.becomes(first, "SCHEDULED", "")
	waits, huge := a.session("", 1), a.session("", 64)
	a.becomes(waits, "PENDING", "capacity")
	a.becomes(huge, "PENDING", "too-big")
	for name, m := range map[string]*manager{"leader": one, "other": two} {
		require.Eventually(t, func() bool { // a copy is about a second old
			e, err := m.planner.Explain(t.Context(), waits)
			return err == nil && e.Reason == "capacity" && e.Position == 1 && e.Queue == 2 && e.Text != ""
		}, patience, 20*time.Millisecond, name)
		e, err := m.planner.Explain(t.Context(), huge)
		require.NoError(t, err, name)
		require.Equal(t, "too-big", e.Reason, name)
		e, err = m.planner.Explain(t.Context(), first)
		require.NoError(t, err, name)
		require.Empty(t, e.Reason, name)
		_, err = m.planner.Explain(t.Context(), "00000000-0000-4000-8000-00000000dead")
		require.ErrorContains(t, err, "No such session", name)
		st, err := m.planner.Status(t.Context())
		require.NoError(t, err, name)
		require.Equal(t, 2, st[0].Pending, name)
		require.Equal(t, 1, st[0].Running, name)
		require.Equal(t, map[string]int{"capacity": 1, "too-big": 1}, st[0].Reasons, name)

		ask := session.PlanRequest{Group: "default", Type: cluster.Interactive, AccessKey: a.cred.AccessKey,
			Kernels: []session.PlanKernel{{Slots: cluster.Slots{cluster.SlotCPU: cluster.Whole(1)}, Architecture: "x86_64"}}}
		e, err = m.planner.DryRun(t.Context(), ask)
		require.NoError(t, err, name)
		require.NotEmpty(t, e.Reason, name)
		require.Empty(t, e.Placements, name)
	}
	a.agent("a2", 2, 1<<30)
	a.store.Wake(store.TopicSchedule)
	a.becomes(waits, "SCHEDULED", "")
	for name, m := range map[string]*manager{"leader": one, "other": two} {
		ask := session.PlanRequest{Group: "default", Type: cluster.Interactive, AccessKey: a.cred.AccessKey,
			Kernels: []session.PlanKernel{{Slots: cluster.Slots{cluster.SlotCPU: cluster.Whole(1)}, Architecture: "x86_64"}}}
		require.Eventually(t, func() bool { // a copy is about a second old
			e, err := m.planner.DryRun(t.Context(), ask)
			return err == nil && len(e.Placements) == 1 && e.Placements[0].Agent == "a2"
		}, patience, 20*time.Millisecond, name)
	}
}
