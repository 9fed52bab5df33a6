// Package managertest makes a manager's use cases on a database of its own, for tests of the nouns: an empty cluster with its first
// administrator, agents that report what the test says, and sessions brought into any state without a scheduler or an engine.
package managertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
)

const (
	// GiB is a binary gigabyte.
	GiB = int64(1) << 30
	// Image is what agents of these tests have; "python" is its alias.
	Image = "berth/python:1.0"
)

// Digest is a content id of its own for every number.
func Digest(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// PythonImage is Image as an agent and an administrator know it.
func PythonImage() cluster.NodeImage {
	return cluster.NodeImage{Reference: Image, Digest: Digest(1), Architecture: "x86_64", SizeBytes: 1, Labels: map[string]string{
		"ai.backend.resource.min.cpu": "1", "ai.backend.resource.min.mem": "64m",
		"ai.backend.service-ports": "jupyter:http:8070,web:tcp:[9001,9002]", "ai.backend.runtime-type": "python"}}
}

// World is an empty cluster whose use cases run.
type World struct {
	*nouns.Set
	T     testing.TB
	Store *store.Store
	Deps  nouns.Deps
	// Admin is the first administrator.
	Admin authz.Actor
	Creds tenancy.Credentials
	epoch map[cluster.AgentID]int64
}

// PasswordCost makes passwords of tests cheap: a hash takes less than 0.1 ms instead of 100 ms under the race detector.
var PasswordCost = seal.Cost{Memory: 64, Time: 1}

// Key is the master key of every World.
func Key(t testing.TB) *seal.Key {
	t.Helper()
	k, err := seal.New([]byte("0123456789abcdef0123456789abcdef"), rand.Reader)
	require.NoError(t, err)
	return k
}

// Deps are what the use cases on a database need at least.
func Deps(t testing.TB, s *store.Store) nouns.Deps {
	return nouns.Deps{Store: s, Seal: Key(t), Vault: &Vault{}, PasswordCost: PasswordCost, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

// Vault keeps secrets in memory; it is app.Vault.
type Vault struct {
	mu   sync.Mutex
	kept map[string][]byte
}

// Get returns the value of a key, nil when there is none.
func (v *Vault) Get(_ context.Context, key string) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kept[key], nil
}

// Update replaces a value.
func (v *Vault) Update(_ context.Context, key string, fn func([]byte) ([]byte, error)) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fresh, err := fn(v.kept[key])
	if err != nil || fresh == nil {
		return v.kept[key], err
	}
	if v.kept == nil {
		v.kept = map[string][]byte{}
	}
	v.kept[key] = fresh
	return fresh, nil
}

// New makes a world on a fresh database.
func New(t testing.TB, change ...func(*nouns.Deps)) *World {
	t.Helper()
	d := Deps(t, storetest.New(t))
	for _, c := range change {
		c(&d)
	}
	return On(t, d)
}

// On makes a world of dependencies.
func On(t testing.TB, d nouns.Deps) *World {
	t.Helper()
	creds, _, err := manager.Bootstrap(t.Context(), tenancy.Deps{Store: d.Store, Seal: d.Seal, IDs: d.IDs, Random: d.Random,
		PasswordCost: d.PasswordCost, Log: d.Log})
	require.NoError(t, err)
	set, err := nouns.New(d)
	require.NoError(t, err)
	a, _, err := set.Tenancy.Authenticate(t.Context(), creds.AccessKey)
	require.NoError(t, err)
	Serve(t, set)
	return &World{Set: set, T: t, Store: d.Store, Deps: d, Admin: a, Creds: creds, epoch: map[cluster.AgentID]int64{}}
}

// Serve runs what use cases need running until the test ends.
func Serve(t testing.TB, set *nouns.Set) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{set.Operations.Run, set.Sessions.Run, set.Apps.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	t.Cleanup(func() { stop(); running.Wait() })
}

// Term makes this world the leader.
func (w *World) Term() reconcile.Term {
	w.T.Helper()
	var token int64
	require.NoError(w.T, w.Store.Tx(w.T.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		token, err = tx.TakeLeadership(ctx, "test")
		return err
	}))
	return reconcile.NewTerm(w.Store, token, "test")
}

// Agent registers an agent that has Image, which is in the catalogue.
func (w *World) Agent(id cluster.AgentID, cpu, mem int64) {
	w.T.Helper()
	epoch, err := w.Reports.Register(w.T.Context(), cluster.NodeHello{Agent: id, Version: "test"})
	require.NoError(w.T, err)
	w.epoch[id] = epoch
	require.NoError(w.T, w.Reports.UpdateFacts(w.T.Context(), id, epoch, cluster.NodeFacts{
		Revision: 1, Architecture: "x86_64", EngineOK: true, Engine: "fake",
		Capacity:  cluster.Slots{cluster.SlotCPU: cluster.Whole(cpu), cluster.SlotMem: cluster.Whole(mem)},
		SlotKinds: map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotCount, cluster.SlotMem: cluster.SlotBytes},
		Images:    []cluster.NodeImage{PythonImage()},
	}))
	require.NoError(w.T, w.Images.ImportOwn(w.T.Context(), []cluster.NodeImage{PythonImage()}))
}

// Reconnect registers an agent again, as a new process of it does.
func (w *World) Reconnect(id cluster.AgentID) {
	w.T.Helper()
	epoch, err := w.Reports.Register(w.T.Context(), cluster.NodeHello{Agent: id})
	require.NoError(w.T, err)
	w.epoch[id] = epoch
}

// Epoch is that of an agent's registration.
func (w *World) Epoch(id cluster.AgentID) int64 { return w.epoch[id] }

// Create makes a session of the administrator.
func (w *World) Create(name string, change ...func(*request.Session)) session.Created {
	w.T.Helper()
	r := request.Session{Name: name, Image: "python"}
	for _, c := range change {
		c(&r)
	}
	out, err := w.Sessions.Create(w.T.Context(), w.Admin, r)
	require.NoError(w.T, err)
	return out
}

// Session reads a session.
func (w *World) Session(id cluster.SessionID) *session.Session {
	w.T.Helper()
	v, err := w.Sessions.Find(w.T.Context(), w.Admin, string(id), "")
	require.NoError(w.T, err)
	return v
}

// Place does what a scheduling pass does, onto the given agents in turn.
func (w *World) Place(id cluster.SessionID, agents ...cluster.AgentID) {
	w.T.Helper()
	require.NoError(w.T, w.Store.Tx(w.T.Context(), func(ctx context.Context, tx *store.Tx) error {
		l, err := tx.LockOne(ctx, id)
		if err != nil {
			return err
		}
		for i, k := range l.Kernels {
			move := store.KernelMove{To: cluster.Scheduled, Agent: agents[i%len(agents)], Allocation: `{"cpu":{"0":1000}}`}
			if err := k.Move(ctx, move); err != nil {
				return err
			}
		}
		return l.Settle(ctx, "", "")
	}))
}

// Report sends one observation of a session's main kernel with its present generation.
func (w *World) Report(
	id cluster.SessionID, agent cluster.AgentID, phase cluster.Phase, change ...func(*cluster.KernelObservation),
) []cluster.Tombstone {
	w.T.Helper()
	k := w.Session(id).MainKernel()
	o := cluster.KernelObservation{Kernel: k.ID, Session: id, Generation: k.Generation, Phase: phase, ContainerID: "c-" + string(k.ID)}
	for _, c := range change {
		c(&o)
	}
	acked, err := w.Reports.Observe(w.T.Context(), agent, w.epoch[agent], false, nil, []cluster.KernelObservation{o})
	require.NoError(w.T, err)
	return acked
}

// Ended is how a kernel that ended by itself is observed.
func Ended(code int, log string) func(*cluster.KernelObservation) {
	return func(o *cluster.KernelObservation) { o.ExitCode, o.LogTail = &code, log }
}

// Running makes a session RUNNING on an agent.
func (w *World) Running(name string, agent cluster.AgentID, change ...func(*request.Session)) cluster.SessionID {
	w.T.Helper()
	id := w.Create(name, change...).ID
	w.Place(id, agent)
	w.Report(id, agent, cluster.PhaseRunning)
	require.Equal(w.T, cluster.Running, w.Session(id).Status)
	return id
}

// Batch makes the request one for a batch session.
func Batch(command string) func(*request.Session) {
	return func(r *request.Session) { r.Type, r.StartupCommand = cluster.Batch, command }
}

// EventNames returns the wire events in the history of the session and of its kernels.
func (w *World) EventNames(id cluster.SessionID) (session, kernel []string) {
	w.T.Helper()
	_, moves, err := w.Sessions.History(w.T.Context(), w.Admin, string(id), "")
	require.NoError(w.T, err)
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

// Clean requires that nothing is left over, as the doctor would tell.
func (w *World) Clean() {
	w.T.Helper()
	found, err := w.Operations.Doctor(w.T.Context(), w.Admin)
	require.NoError(w.T, err)
	require.Empty(w.T, found)
}

// Exec runs a statement.
func (w *World) Exec(sql string, args ...any) {
	w.T.Helper()
	_, err := w.Store.Pool().Exec(w.T.Context(), sql, args...)
	require.NoError(w.T, err)
}

// Stranger adds an active user of a domain of its own, without rights over anything that exists.
func (w *World) Stranger(name string) authz.Actor {
	w.T.Helper()
	id := fmt.Sprintf("00000000-0000-4000-8000-%012x", len(name)+int(name[0])<<8)
	key := "AKIA" + fmt.Sprintf("%-16.16s", name+"AAAAAAAAAAAAAAAA")
	w.Exec(`INSERT INTO domains (name) VALUES ($1) ON CONFLICT DO NOTHING`, name)
	w.Exec(`INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ($1, $2, $2 || '@x', $2, 'default')`, id, name)
	sealed, err := Key(w.T).Seal("secret", "keypair "+key)
	require.NoError(w.T, err)
	w.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, $2, $3, 'default')`, key, sealed, id)
	a, _, err := w.Tenancy.Authenticate(w.T.Context(), cluster.AccessKey(key))
	require.NoError(w.T, err)
	return a
}

// Soon waits for a condition that another goroutine brings about, on a busy machine for long.
func Soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 2*time.Millisecond, what)
}
