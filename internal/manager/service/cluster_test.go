package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/service"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

const (
	gib       = int64(1) << 30
	testImage = "berth/python:1.0"
)

// world is a bootstrapped cluster with a running service and the administrator.
type world struct {
	dsn   string
	t     testing.TB
	store *store.Store
	svc   *service.Service
	nodes *service.Nodes
	admin service.Actor
	creds service.Credentials
	epoch map[cluster.AgentID]int64
}

func newWorld(t testing.TB, change ...func(*service.Deps)) *world {
	t.Helper()
	dsn := storetest.DSN(t)
	s := storetest.Open(t, dsn)
	d := deps(t, s)
	for _, c := range change {
		c(&d)
	}
	c, _, err := service.Bootstrap(t.Context(), d)
	require.NoError(t, err)
	svc, err := service.New(d)
	require.NoError(t, err)
	a, _, err := svc.Authenticate(t.Context(), c.AccessKey)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = svc.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return &world{t: t, dsn: dsn, store: s, svc: svc, nodes: svc.Nodes(), admin: a, creds: c, epoch: map[cluster.AgentID]int64{}}
}

// agent registers an agent with the test image.
func (w *world) agent(id cluster.AgentID, cpu, mem int64) {
	w.t.Helper()
	epoch, err := w.nodes.Register(w.t.Context(), cluster.NodeHello{Agent: id, Version: "test"})
	require.NoError(w.t, err)
	w.epoch[id] = epoch
	require.NoError(w.t, w.nodes.UpdateFacts(w.t.Context(), id, epoch, cluster.NodeFacts{
		Revision: 1, Architecture: "x86_64", EngineOK: true, Engine: "fake",
		Capacity:  cluster.Slots{cluster.SlotCPU: cluster.Whole(cpu), cluster.SlotMem: cluster.Whole(mem)},
		SlotKinds: map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotCount, cluster.SlotMem: cluster.SlotBytes},
		Images: []cluster.NodeImage{{Reference: testImage, Digest: "sha256:1", Architecture: "x86_64", SizeBytes: 1, Labels: map[string]string{
			"ai.backend.resource.min.cpu": "1", "ai.backend.resource.min.mem": "64m", "ai.backend.service-ports": "jupyter:http:8070,web:tcp:[9001,9002]", "ai.backend.runtime-type": "python"}}},
	}))
}

func (w *world) create(name string, change ...func(*service.CreateSession)) service.CreatedSession {
	w.t.Helper()
	r := service.CreateSession{Name: name, Image: "python"}
	for _, c := range change {
		c(&r)
	}
	out, err := w.svc.CreateSession(w.t.Context(), w.admin, r)
	require.NoError(w.t, err)
	return out
}

func (w *world) session(id cluster.SessionID) *service.Session {
	w.t.Helper()
	v, err := w.svc.FindSession(w.t.Context(), w.admin, string(id), "")
	require.NoError(w.t, err)
	return v
}

// place does what a scheduling pass does, onto the given agents in turn.
func (w *world) place(id cluster.SessionID, agents ...cluster.AgentID) {
	w.t.Helper()
	require.NoError(w.t, w.store.Tx(w.t.Context(), func(ctx context.Context, tx *store.Tx) error {
		l, err := tx.LockOne(ctx, id)
		if err != nil {
			return err
		}
		for i, k := range l.Kernels {
			if err := k.Move(ctx, store.KernelMove{To: cluster.Scheduled, Agent: agents[i%len(agents)], Allocation: `{"cpu":{"0":1000}}`}); err != nil {
				return err
			}
		}
		return l.Settle(ctx, "", "")
	}))
}

// report sends one observation of a session's main kernel with its present generation.
func (w *world) report(id cluster.SessionID, agent cluster.AgentID, phase cluster.Phase, change ...func(*cluster.KernelObservation)) []cluster.Tombstone {
	w.t.Helper()
	k := w.session(id).MainKernel()
	o := cluster.KernelObservation{Kernel: k.ID, Session: id, Generation: k.Generation, Phase: phase, ContainerID: "c-" + string(k.ID)}
	for _, c := range change {
		c(&o)
	}
	acked, err := w.nodes.Observe(w.t.Context(), agent, w.epoch[agent], false, false, []cluster.KernelObservation{o})
	require.NoError(w.t, err)
	return acked
}

func ended(code int, log string) func(*cluster.KernelObservation) {
	return func(o *cluster.KernelObservation) { o.ExitCode, o.LogTail = &code, log }
}

// running makes a session RUNNING on an agent.
func (w *world) running(name string, agent cluster.AgentID, change ...func(*service.CreateSession)) cluster.SessionID {
	w.t.Helper()
	id := w.create(name, change...).ID
	w.place(id, agent)
	w.report(id, agent, cluster.PhaseRunning)
	require.Equal(w.t, cluster.Running, w.session(id).Status)
	return id
}

func batch(command string) func(*service.CreateSession) {
	return func(r *service.CreateSession) { r.Type, r.StartupCommand = cluster.Batch, command }
}

// eventNames returns the history's wire events of the session and of its kernels.
func (w *world) eventNames(id cluster.SessionID) (session, kernel []string) {
	w.t.Helper()
	_, moves, err := w.svc.SessionHistory(w.t.Context(), w.admin, string(id), "")
	require.NoError(w.t, err)
	for _, m := range moves {
		switch {
		case m.Event == "":
		case m.Kernel == "":
			session = append(session, string(m.Event))
		default:
			kernel = append(kernel, string(m.Event))
		}
	}
	return session, kernel
}

// clean requires that nothing is left over, as the doctor would tell.
func (w *world) clean() {
	w.t.Helper()
	found, err := w.svc.Doctor(w.t.Context(), w.admin)
	require.NoError(w.t, err)
	require.Empty(w.t, found)
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.store.Pool().Exec(w.t.Context(), sql, args...)
	require.NoError(w.t, err)
}

// stranger adds an active user without rights over anything that exists.
func (w *world) stranger(name string) service.Actor {
	w.t.Helper()
	ctx := w.t.Context()
	id := fmt.Sprintf("00000000-0000-4000-8000-%012x", len(name)+int(name[0])<<8)
	key := "AKIA" + fmt.Sprintf("%-16.16s", name+"AAAAAAAAAAAAAAAA")
	w.exec(`INSERT INTO domains (name) VALUES ($1) ON CONFLICT DO NOTHING`, name)
	w.exec(`INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ($1, $2, $2 || '@x', $2, 'default')`, id, name)
	sealed, err := newKey(w.t).Seal("secret", "keypair "+key)
	require.NoError(w.t, err)
	w.exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, $2, $3, 'default')`, key, sealed, id)
	a, _, err := w.svc.Authenticate(ctx, cluster.AccessKey(key))
	require.NoError(w.t, err)
	return a
}

// soon waits for a condition that another goroutine brings about.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 2*time.Millisecond, what)
}
