// Package testkit runs a whole cluster in one process: a database of its own, managers and agents that package platform builds as it
// does for `berth up`, engines in memory, and faults between them.
//
// Only tests and benchmarks import it.
package testkit

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/devicetest"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/platform"
	"berth.dev/berth/internal/testkit/address"
)

// Image is the image that every engine has; its alias is "python".
const Image = "berth/python:latest"

// Patience bounds every wait; a test that is well never comes near it.
const Patience = 60 * time.Second

// Options describe a cluster. The zero value is one manager and one agent.
type Options struct {
	// Managers and Agents default to 1. More than one manager elect their leader through etcd.
	Managers, Agents int
	// NoAgents starts none; add them with AddAgent.
	NoAgents bool
	// Strangers makes agents beside the first ones of machines that are not the manager's own: their images are not imported.
	Strangers bool
	// Cores per agent default to 8, Memory in bytes to 64 GiB.
	Cores  int
	Memory int64
	// Drivers makes the drivers of an agent's devices beside cores and memory, for the agent of that number.
	Drivers func(agent int) []device.Driver
	// Engine changes the options of every agent's engine.
	Engine func(*fake.Options)
	// Manager and Agent change configurations before they are used.
	Manager func(*manager.Config)
	Agent   func(*agent.Config)
	// PasswordCost is what hashing a password takes; the zero value is as little as possible.
	PasswordCost seal.Cost
	// Faults stand between agents and managers; nil means none.
	Faults *Faults
	// Quiet throws logs away even with -v.
	Quiet bool
}

// Cluster is a running cluster.
type Cluster struct {
	tb    testing.TB
	o     Options
	dir   platform.StateDir
	dsn   string
	etcd  *embedded.Etcd
	admin tenancy.Credentials
	held  holds
	// images takes the images of all engines into the catalogue, as those of the own engine of `berth up` are.
	images *image.Service

	// Store is the test's own connection to the database, for looking and for moving time.
	Store    *store.Store
	Managers []*Manager
	Agents   []*Agent
}

// New starts a cluster and waits until every agent is known with its devices. It stops with the test.
func New(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	o.Managers, o.Cores = max(o.Managers, 1), cmp.Or(o.Cores, 8)
	o.Memory = cmp.Or(o.Memory, 64<<30)
	if !o.NoAgents {
		o.Agents = max(o.Agents, 1)
	}
	c := &Cluster{tb: tb, o: o, dsn: storetest.DSN(tb)}
	// Every container of every agent has its files here: on a disk they would cost more than all else.
	dir, err := storetest.InMemory("berth-kit-")
	c.check(err)
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove the cluster's files: %v", err)
		}
	})
	c.dir = platform.StateDir(dir)
	c.Store = storetest.Open(tb, c.dsn)
	c.images, err = image.New(image.Deps{Store: c.Store, IDs: tenancy.RandomIDs(rand.Reader), Log: c.log("images")})
	c.check(err)
	if o.Managers > 1 {
		c.startEtcd()
	}
	for i := range o.Managers {
		m := &Manager{c: c, id: fmt.Sprintf("m%d", i), api: address.Hold(tb), agents: address.Hold(tb)}
		c.Managers = append(c.Managers, m)
		tb.Cleanup(m.Stop)
		m.Start()
	}
	for range o.Agents {
		c.AddAgent()
	}
	c.Until("every agent is known", func() bool {
		n := 0
		err := c.Store.Pool().QueryRow(tb.Context(), `SELECT count(*) FROM agents WHERE status = 'ALIVE' AND devices <> '[]'
			AND (engine_ok OR engine_error NOT LIKE '%has not answered yet%')`).Scan(&n)
		return err == nil && n >= o.Agents
	})
	return c
}

func (c *Cluster) log(name string) *slog.Logger {
	if c.o.Quiet || !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(c.tb.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})).With("role", name)
}

func (c *Cluster) startEtcd() {
	c.tb.Helper()
	dir := c.dir.Path("etcd")
	c.check(os.MkdirAll(filepath.Join(dir, "run"), 0o700))
	c.etcd = embedded.NewEtcd(dir, slog.New(slog.DiscardHandler))
	c.check(c.etcd.Service().Start(c.tb.Context()))
	c.tb.Cleanup(func() { _ = c.etcd.Service().Stop(context.Background()) })
}

func (c *Cluster) check(err error) {
	c.tb.Helper()
	if err != nil {
		c.tb.Fatal(err)
	}
}

// Until waits for a condition.
func (c *Cluster) Until(what string, ok func() bool) {
	c.tb.Helper()
	deadline := time.Now().Add(Patience)
	// Most conditions ask the database: they are asked less often the longer it takes.
	for pause := 2 * time.Millisecond; !ok(); pause = min(pause*3/2, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			c.Dump()
			c.tb.Fatalf("waited %s in vain until %s", Patience, what)
		}
		time.Sleep(pause)
	}
}

// UntilAll waits until a count has come to n. However many they are and however busy the machine is: it fails only when the count has
// not risen for as long as its patience.
func (c *Cluster) UntilAll(what string, n int, count func() int) {
	c.tb.Helper()
	for seen := count(); seen < n; {
		before := seen
		c.Until(fmt.Sprintf("more than %d of %d %s", before, n, what), func() bool { seen = count(); return seen > before })
	}
}

// Exec changes the database behind everybody's back.
func (c *Cluster) Exec(query string, args ...any) {
	c.tb.Helper()
	_, err := c.Store.Pool().Exec(c.tb.Context(), query, args...)
	c.check(err)
}

// Dump writes what the database knows of live sessions, and the newest events of all, for a failed test.
func (c *Cluster) Dump() {
	c.dump("live", `SELECT s.name || ' ' || s.status || ' ' || s.status_info || ' | ' ||
		coalesce(k.id::text, '-') || ' ' || coalesce(k.status, '-') || ' gen ' || coalesce(k.generation, 0) || ' ' ||
		coalesce(k.desired, '') || ' on ' || coalesce(k.agent_id, '-') || ' ' || coalesce(k.status_info, '')
		FROM sessions s LEFT JOIN kernels k ON k.session_id = s.id WHERE s.ended_at IS NULL OR k.ended_at IS NULL ORDER BY s.created_at LIMIT 30`)
	c.dump("event", `SELECT to_char(e.at, 'MI:SS.MS ') || s.name || ' ' || coalesce(e.kernel_id::text, '-') || ' ' || e.event || ' ' ||
		e.from_status || '>' || e.to_status || ' ' || e.reason || ' ' || e.detail
		FROM (SELECT * FROM session_events ORDER BY seq DESC LIMIT 60) e JOIN sessions s ON s.id = e.session_id ORDER BY e.seq`)
}

func (c *Cluster) dump(what, query string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rows, err := c.Store.Pool().Query(ctx, query)
	if err != nil {
		c.tb.Logf("dump: %v", err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			line = err.Error()
		}
		c.tb.Log(what + " " + line)
	}
}

// Pass makes the database believe that d has gone by: leases, graces and deadlines are that
// much nearer to their end, and sessions that much older.
func (c *Cluster) Pass(d time.Duration) {
	c.tb.Helper()
	for _, sql := range []string{
		`UPDATE agents SET last_seen = last_seen - $1::interval, lost_at = lost_at - $1::interval`,
		`UPDATE kernels SET deadline = deadline - $1::interval, status_changed = status_changed - $1::interval, ` +
			`lost_since = lost_since - $1::interval WHERE ended_at IS NULL`,
		`UPDATE sessions SET created_at = created_at - $1::interval, started_at = started_at - $1::interval, ` +
			`starts_at = starts_at - $1::interval WHERE ended_at IS NULL`,
		`UPDATE agents SET trial = jsonb_set(trial, '{probe_at}', to_jsonb((trial->>'probe_at')::timestamptz - $1::interval))
			WHERE trial ? 'probe_at'`,
	} {
		_, err := c.Store.Pool().Exec(c.tb.Context(), sql, d)
		c.check(err)
	}
	c.Store.Wake(store.TopicSchedule)
}

// Overdue makes every present deadline of a kernel pass, while leases go on.
func (c *Cluster) Overdue() {
	c.tb.Helper()
	_, err := c.Store.Pool().Exec(c.tb.Context(),
		`UPDATE kernels SET deadline = now() - interval '1 second' WHERE ended_at IS NULL AND deadline IS NOT NULL`)
	c.check(err)
}

// Manager is one manager of the cluster. Its addresses stay the same over restarts.
type Manager struct {
	c           *Cluster
	id          string
	api, agents string

	*platform.Manager
	group *chassis.Group
}

// managerConfig is the configuration of every manager but its addresses.
func (c *Cluster) managerConfig(id string) manager.Config {
	cfg := manager.DefaultConfig()
	cfg.ID = id
	c.dir.PlaceManager(&cfg)
	cfg.Postgres.DSN = chassis.NewSecret(c.dsn)
	cfg.Agents.Heartbeat, cfg.Agents.Lease = time.Second, 30*time.Second // a machine that is busy stalls for seconds
	cfg.Reconcile.Sweep, cfg.Reconcile.LeaderTTL = 50*time.Millisecond, 1
	if c.o.Manager != nil {
		c.o.Manager(&cfg)
	}
	return cfg
}

// Start starts a stopped manager.
func (m *Manager) Start() {
	c := m.c
	c.tb.Helper()
	cfg := c.managerConfig(m.id)
	cfg.Listen, cfg.Agents.Listen = m.api, m.agents
	deps := manager.Deps{Log: c.log(m.id), PasswordCost: cmp.Or(c.o.PasswordCost, managertest.PasswordCost)}
	if c.etcd != nil {
		deps.Etcd = c.etcd.Client()
	}
	if f := c.o.Faults; f != nil {
		deps.WrapAgents, deps.WrapSink = f.conn, f.sink
	}
	var err error
	var redis *valkey.ClientOption
	if cfg.Redis.Address != "" { // there is none else
		redis = &valkey.ClientOption{InitAddress: []string{cfg.Redis.Address}, AlwaysRESP2: true, DisableCache: true, ForceSingleClient: true}
	}
	m.Manager, err = platform.NewManager(c.tb.Context(), cfg, redis, deps)
	c.check(err)
	if cred, created := m.Admin(); created || c.admin.AccessKey == "" {
		c.admin = cred
	}
	m.group, err = platform.Start(context.Background(), c.log(m.id), m.Services()...)
	c.check(err)
	m.api, m.agents = m.APIAddr(), m.AgentAddr()
}

// Etcd returns the keys and values under a prefix; only clusters with several managers have etcd.
func (c *Cluster) Etcd(prefix string) map[string]string {
	c.tb.Helper()
	r, err := c.etcd.Client().Get(c.tb.Context(), prefix, clientv3.WithPrefix())
	c.check(err)
	out := map[string]string{}
	for _, kv := range r.Kvs {
		out[string(kv.Key)] = string(kv.Value)
	}
	return out
}

// EtcdClient is a client of the managers' etcd, which a cluster of several managers has.
func (c *Cluster) EtcdClient() *clientv3.Client { return c.etcd.Client() }

// Stop ends a manager in good order.
func (m *Manager) Stop() {
	if m.group == nil {
		return
	}
	if err := m.group.Stop(context.Background()); err != nil {
		m.c.tb.Logf("stop %s: %v", m.id, err)
	}
	m.group = nil
}

// Running reports whether the manager runs.
func (m *Manager) Running() bool { return m.group != nil }

// Agent is one agent with its host: the engine lives on while the agent is stopped.
type Agent struct {
	c       *Cluster
	cfg     agent.Config
	drivers []device.Driver
	// Engine is the host's container engine.
	Engine *fake.Engine

	*agent.Agent
	group *chassis.Group
}

// AddAgent starts one more agent on a host of its own. managers are those of its configuration; without them it is one of this process.
func (c *Cluster) AddAgent(managers ...*Process) *Agent {
	c.tb.Helper()
	i := len(c.Agents)
	opt := fake.Options{After: c.held.after}
	if c.o.Engine != nil {
		c.o.Engine(&opt)
	}
	a := &Agent{c: c, cfg: agent.DefaultConfig(), Engine: fake.NewEngine(opt)}
	c.tb.Cleanup(a.Engine.Close)
	a.Engine.AddImage(runtime.Image{References: []string{Image}, Architecture: "x86_64", Labels: map[string]string{}},
		map[string][]byte{"/etc/passwd": []byte("root:x:0:0::/root:/bin/sh\n"), "/etc/group": []byte("root:x:0:\n")})
	m := c.Managers[i%len(c.Managers)]
	for n := 1; !m.Running() && n < len(c.Managers); n++ {
		m = c.Managers[(i+n)%len(c.Managers)]
	}
	a.cfg.ID = fmt.Sprintf("i-%02d", i)
	c.dir.PlaceAgent(&a.cfg, a.cfg.ID, m.agents)
	for _, p := range managers {
		a.cfg.Managers = append(a.cfg.Managers, p.agents)
	}
	a.cfg.MinFree, a.cfg.SampleInterval = 0, 5*time.Second
	if c.o.Agent != nil {
		c.o.Agent(&a.cfg)
	}
	a.drivers = devicetest.Host(c.o.Cores, c.o.Memory)
	if c.o.Drivers != nil {
		a.drivers = append(a.drivers, c.o.Drivers(i)...)
	}
	c.Agents = append(c.Agents, a)
	c.tb.Cleanup(a.Stop)
	a.Start()
	return a
}

// devices are those that the agent's host has now.
func (a *Agent) devices() (out []device.Device) {
	a.c.tb.Helper()
	for _, d := range a.drivers {
		found, err := d.Discover(a.c.tb.Context())
		a.c.check(err)
		out = append(out, found...)
	}
	return out
}

// ID is the agent's name in the cluster.
func (a *Agent) ID() cluster.AgentID { return cluster.AgentID(a.cfg.ID) }

// Start starts a stopped agent over the state that it left.
func (a *Agent) Start() {
	c := a.c
	c.tb.Helper()
	var err error
	imports := c.images.ImportOwn
	if c.o.Strangers && a != c.Agents[0] {
		imports = nil
	}
	if m := c.running(); m != nil {
		a.cfg.JoinToken, err = m.Admit(c.tb.Context(), platform.RoleAgent, a.cfg.ID, a.cfg.ResourceGroup, a.cfg.StateDir)
		c.check(err)
	}
	a.Agent, err = agent.New(a.cfg, agent.Deps{
		Runtime: a.Engine.Runtime(a.cfg.Scope(), a.ID()), RunnerPath: "/nonexistent/runner", Log: c.log(a.cfg.ID), Drivers: a.drivers,
		Times: keeper.Times{Sweep: 100 * time.Millisecond}, Images: imports,
	})
	c.check(err)
	a.group, err = platform.Start(context.Background(), c.log(a.cfg.ID), a.Services()...)
	c.check(err)
}

// Configure names managers in the agent's configuration, from its next start on.
func (a *Agent) Configure(managers ...*Manager) {
	a.cfg.Managers = nil
	for _, m := range managers {
		a.cfg.Managers = append(a.cfg.Managers, m.agents)
	}
}

// Stop ends the agent; its containers go on.
func (a *Agent) Stop() {
	if a.group == nil {
		return
	}
	if err := a.group.Stop(context.Background()); err != nil {
		a.c.tb.Logf("stop %s: %v", a.cfg.ID, err)
	}
	a.group = nil
}

// EndAll ends the kernels of a stopped agent, as an operator of its host does.
func (a *Agent) EndAll() int {
	a.c.tb.Helper()
	n, err := agent.EndAll(a.c.tb.Context(), a.cfg, a.Engine.Runtime(a.cfg.Scope(), a.ID()))
	a.c.check(err)
	return n
}

// Running reports whether the agent runs.
func (a *Agent) Running() bool { return a.group != nil }

// Starts is how often the container of a kernel was started on this host.
func (a *Agent) Starts(kernel cluster.KernelID) int {
	return a.Engine.Starts(a.cfg.Scope(), a.ID(), kernel)
}

// Runs is how often the batch command of a kernel was executed on this host.
func (a *Agent) Runs(kernel cluster.KernelID) int {
	return a.Engine.Runs(a.cfg.Scope(), a.ID(), kernel)
}

// SetSchedulable decides whether the agent gets new kernels.
func (a *Agent) SetSchedulable(schedulable bool) {
	a.c.tb.Helper()
	_, err := a.c.Store.SetSchedulable(a.c.tb.Context(), schedulable, []string{a.cfg.ID})
	a.c.check(err)
	a.c.Store.Wake(store.TopicSchedule)
}

// Containers counts the running containers of this host, also while the agent is away.
func (a *Agent) Containers() int {
	a.c.tb.Helper()
	list, err := a.Engine.Runtime(a.cfg.Scope(), a.ID()).List(a.c.tb.Context())
	a.c.check(err)
	n := 0
	for _, o := range list {
		if o.Phase == runtime.PhaseRunning {
			n++
		}
	}
	return n
}

// running is a manager that runs, nil when none does.
func (c *Cluster) running() *Manager {
	for _, m := range c.Managers {
		if m.Running() {
			return m
		}
	}
	return nil
}

// Service is the use cases of the first manager that runs.
func (c *Cluster) Nouns() *nouns.Set {
	for _, m := range c.Managers {
		if m.Running() {
			return m.Manager.Nouns()
		}
	}
	c.tb.Fatal("no manager runs")
	return nil
}

// Admin is the administrator, authenticated.
func (c *Cluster) Admin() authz.Actor {
	c.tb.Helper()
	a, _, err := c.Nouns().Tenancy.Authenticate(c.tb.Context(), c.admin.AccessKey)
	c.check(err)
	return a
}

// Client speaks to the first running manager as the administrator, over HTTP.
func (c *Cluster) Client() *api.Client {
	c.tb.Helper()
	for _, m := range c.Managers {
		if m.Running() {
			return m.Client()
		}
	}
	c.tb.Fatal("no manager runs")
	return nil
}

// Client speaks to this manager as the administrator, over HTTP.
func (m *Manager) Client() *api.Client {
	m.c.tb.Helper()
	return m.c.client("http://" + m.APIAddr())
}

// ClientOf speaks to the first of some processes that answers, as the administrator.
func (c *Cluster) ClientOf(managers ...*Process) *api.Client {
	c.tb.Helper()
	var urls []string
	for _, p := range managers {
		urls = append(urls, p.URL())
	}
	return c.client(urls...)
}

func (c *Cluster) client(urls ...string) *api.Client {
	c.tb.Helper()
	client, err := api.New(api.Config{Endpoint: urls[0], Others: urls[1:], AccessKey: string(c.admin.AccessKey),
		SecretKey: api.Secret(c.admin.SecretKey.Reveal())})
	c.check(err)
	c.tb.Cleanup(client.Close)
	return client
}

// Create makes a session; what r leaves out is one core, 64 MiB and the common image.
func (c *Cluster) Create(r request.Session) cluster.SessionID {
	c.tb.Helper()
	if r.Image == "" {
		r.Image = Image
	}
	if r.Type == "" {
		r.Type = cluster.Interactive
	}
	if r.Resources == nil {
		r.Resources = map[string]string{"cpu": "1", "mem": "128m"}
	}
	s, err := c.Nouns().Sessions.Create(c.tb.Context(), c.Admin(), r)
	c.check(err)
	return s.ID
}

// Batch makes a batch session that runs a command of the fake runner's language.
func (c *Cluster) Batch(name, command string) cluster.SessionID {
	return c.Create(request.Session{Name: name, Type: cluster.Batch, StartupCommand: command})
}

// Destroy asks for the end of a session.
func (c *Cluster) Destroy(id cluster.SessionID, forced bool) {
	c.tb.Helper()
	c.check(c.TryDestroy(id, forced))
}

// TryDestroy is Destroy that may be refused.
func (c *Cluster) TryDestroy(id cluster.SessionID, forced bool) error {
	c.tb.Helper()
	_, err := c.Nouns().Sessions.Destroy(c.tb.Context(), c.Admin(), string(id), session.DestroyOptions{Forced: forced})
	return err
}

// Ended waits until a session is final and returns it.
func (c *Cluster) Ended(id cluster.SessionID) *session.Session { return c.in(id, cluster.Status.Final) }

// Running waits until a session is RUNNING.
func (c *Cluster) Running(id cluster.SessionID) *session.Session {
	return c.in(id, func(s cluster.Status) bool { return s == cluster.Running })
}

// In waits until a session has a status.
func (c *Cluster) In(id cluster.SessionID, status cluster.Status) *session.Session {
	return c.in(id, func(s cluster.Status) bool { return s == status })
}

func (c *Cluster) in(id cluster.SessionID, ok func(cluster.Status) bool) *session.Session {
	c.tb.Helper()
	c.Until("session "+string(id)+" gets there", func() bool {
		var status cluster.Status
		err := c.Store.Pool().QueryRow(c.tb.Context(), `SELECT status FROM sessions WHERE id = $1`, string(id)).Scan(&status)
		if err == nil && !ok(status) && status.Final() {
			c.Dump()
			c.tb.Fatalf("session %s is %s for good", id, status)
		}
		return err == nil && ok(status)
	})
	return c.Session(id)
}

// Session reads a session.
func (c *Cluster) Session(id cluster.SessionID) *session.Session {
	c.tb.Helper()
	s, err := c.Nouns().Sessions.Find(c.tb.Context(), c.Admin(), string(id), "")
	c.check(err)
	return s
}

// Clean waits until nothing is left anywhere that should not be: no finding of any doctor, and no
// container but those of live kernels.
func (c *Cluster) Clean() {
	c.tb.Helper()
	var why string
	deadline := time.Now().Add(Patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if why = c.dirt(); why == "" {
			return
		}
		if time.Now().After(deadline) {
			c.Dump()
			c.tb.Fatalf("not clean after %s: %s", Patience, why)
		}
		<-tick.C
	}
}

func (c *Cluster) dirt() string {
	ctx := c.tb.Context()
	found, err := c.Nouns().Operations.Findings(ctx)
	if err != nil {
		return err.Error()
	}
	for _, f := range found {
		return f.Kind + " " + f.Object + ": " + f.Detail
	}
	for _, a := range c.Agents {
		if !a.Running() {
			continue
		}
		found, err := a.Findings(ctx)
		if err != nil {
			return err.Error()
		}
		for _, f := range found {
			return a.cfg.ID + ": " + f.Kind + " " + f.Object + ": " + f.Problem
		}
		live := 0
		err = c.Store.Pool().QueryRow(ctx, `SELECT count(*) FROM kernels WHERE agent_id = $1 AND ended_at IS NULL`, a.cfg.ID).Scan(&live)
		if err != nil {
			return err.Error()
		}
		if n := a.Engine.Count(); n != live {
			return fmt.Sprintf("%s has %d containers for %d live kernels", a.cfg.ID, n, live)
		}
	}
	var removals int
	if err := c.Store.Pool().QueryRow(ctx, `SELECT count(*) FROM kernel_removals`).Scan(&removals); err != nil {
		return err.Error()
	}
	if removals > 0 {
		return fmt.Sprintf("%d removals are pending", removals)
	}
	return ""
}

// Allocations checks that no device is given away twice, from the rows of live kernels.
func (c *Cluster) Allocations() {
	c.tb.Helper()
	rows, err := c.Store.Pool().Query(c.tb.Context(), `SELECT agent_id, allocation, requested_slots FROM kernels
		WHERE ended_at IS NULL AND status <> 'PENDING'`)
	c.check(err)
	defer rows.Close()
	used := map[string]alloc.Allocation{}
	for rows.Next() {
		var agent string
		var allocation alloc.Allocation
		var asked cluster.Slots
		c.check(rows.Scan(&agent, &allocation, &asked))
		if got := allocation.Totals(); !got.Covers(asked) || !asked.Covers(got) {
			c.tb.Errorf("a kernel on %s asked for %v and holds %v", agent, asked, got)
		}
		used[agent] = used[agent].Add(allocation)
	}
	c.check(rows.Err())
	for _, a := range c.Agents {
		for _, d := range a.devices() {
			if got := used[a.cfg.ID][d.Slot][d.ID]; got > d.Capacity {
				c.tb.Errorf("%s %s of %s is given away %s times over", d.Slot, d.ID, a.cfg.ID, got)
			}
		}
	}
}
