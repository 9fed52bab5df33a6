package scheduler_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// The number of generated clusters that the scheduler and the oracle are compared on, and where the first one starts. Set
// BERTH_ORACLE_CLUSTERS to 100000 for the full comparison, BERTH_ORACLE_SEED to begin elsewhere: a failure names its seed.
const (
	oracleClusters = 1500
	shortClusters  = 600 // with -short
	clustersEnv    = "BERTH_ORACLE_CLUSTERS"
	seedEnv        = "BERTH_ORACLE_SEED"
)

// accelerators are the slots of accelerators; a generated cluster has one of them, or cards that fill both.
var accelerators = []cluster.SlotName{"cuda.device", "cuda.shares"}

func fromEnv(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}

// trial is one generated cluster, told to a Cluster and to an oracle alike. Times, sizes and priorities are drawn from few values,
// so that equal ones meet often: ends exactly at a reservation, limits reached exactly, sessions of one instant.
type trial struct {
	t      require.TestingT
	r      *rand.Rand
	c      *scheduler.Cluster
	o      *oracle
	gpu    cluster.SlotName
	both   bool // cards fill both slots of accelerators
	next   int
	events []event // what happened, for a failure
	focus  focus
}

// focus is what a generated cluster has much of, so that rare rules meet each other.
type focus int

const (
	everything focus = iota
	victims          // preemption between many preemptible sessions
	gangs            // sessions of several kernels, accelerators, and no declared ends
	levels           // hierarchical quotas
	focuses          // how many there are
)

func (w *trial) chance(percent int) bool { return w.r.IntN(100) < percent }

func one[V any](w *trial, values ...V) V { return values[w.r.IntN(len(values))] }

func (w *trial) minutes(values ...int) time.Duration {
	return time.Duration(one(w, values...)) * time.Minute
}

func (w *trial) policy() scheduler.Group {
	g := scheduler.Group{
		Name: "g", Order: one(w, "fifo", "fifo", "lifo", "drf", "fair-share"), Placement: one(w, "pack", "pack", "spread", "round-robin"),
		WholeDevices: w.chance(30), Inactive: w.chance(2),
	}
	g.Backfill = scheduler.Backfill{Disabled: w.chance(20), PassedOver: w.minutes(0, 0, 10), Reservations: one(w, 0, 0, 1, 2, 3)}
	if g.Order != "lifo" && w.chance(20) {
		g.OrderOptions = map[string]any{"ageing_seconds": one(w, 60.0, 600.0, 3600.0)}
	}
	if w.chance(50) {
		g.Preemption = scheduler.Preemption{
			Enabled: true, MinRuntime: w.minutes(0, 0, 5), VictimScope: one(w, "", "user", "project", "domain", "resource-group", "resource-group"),
			Order: one(w, "", "oldest", "newest", "fewest-sessions", "smallest-resources"),
		}
	}
	if w.focus == victims {
		g.Preemption.Enabled, g.Preemption.VictimScope = true, one(w, "resource-group", "resource-group", "project")
	}
	return g
}

// agent draws an agent; one that runs something keeps its devices, since they would be lost from under it.
func (w *trial) agent(id cluster.AgentID) scheduler.Agent {
	a := scheduler.Agent{ID: id, Architecture: one(w, "x86_64", "x86_64", "x86_64", "aarch64"), Alive: !w.chance(6), Schedulable: !w.chance(6)}
	a.Images = map[string]bool{"python": w.chance(50)}
	if w.chance(10) {
		a.Hung = []string{"v1"}
	}
	if i := slices.IndexFunc(w.o.agents, func(x scheduler.Agent) bool { return x.ID == id }); i >= 0 {
		a.Devices = slices.Clone(w.o.agents[i].Devices)
	} else {
		for i := range one(w, 1, 2, 3, 4, 4) {
			a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotCPU, ID: fmt.Sprint(i), NUMA: i % 2, Capacity: 1000})
		}
		memory := cluster.Whole(one[int64](w, 4, 8) << 30)
		a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotMem, ID: "root", NUMA: -1, Capacity: memory})
		for i := range one(w, 0, 0, 1, 2, 3) {
			gpu := alloc.Device{Slot: w.gpu, ID: fmt.Sprintf("g%d", i), NUMA: i % 2, Model: one(w, "A100", "H100"), Capacity: 1000}
			for _, slot := range w.faces() {
				gpu.Slot, gpu.Isolation = slot, one(w, "", "", cluster.IsolationDriver, cluster.IsolationCooperative)
				a.Devices = append(a.Devices, gpu)
			}
		}
	}
	broken := map[string]bool{} // the slots of a card break together
	for i := range a.Devices {
		d := &a.Devices[i]
		if _, known := broken[d.ID]; !known || !accelerator(d.Slot) {
			broken[d.ID] = w.chance(3)
		}
		d.Healthy = !broken[d.ID]
	}
	return a
}

// faces are the slots that a card fills: both in some clusters, and then only one of them at a time.
func (w *trial) faces() []cluster.SlotName {
	if w.both {
		return accelerators
	}
	return []cluster.SlotName{w.gpu}
}

func (w *trial) setAgent(id cluster.AgentID) {
	a := w.agent(id)
	w.o.agents = slices.DeleteFunc(w.o.agents, func(x scheduler.Agent) bool { return x.ID == id })
	w.o.agents = append(w.o.agents, a)
	slices.SortFunc(w.o.agents, func(a, b scheduler.Agent) int { return strings.Compare(string(a.ID), string(b.ID)) })
	w.c.SetAgent("g", a)
	w.log("agent %+v", a)
}

func (w *trial) log(format string, args ...any) {
	w.events = append(w.events, event{format, args})
}

// event is written only when it is shown.
type event struct {
	format string
	args   []any
}

func (w *trial) history() string {
	var out strings.Builder
	for _, e := range w.events {
		fmt.Fprintf(&out, e.format+"\n", e.args...)
	}
	return out.String()
}

func (w *trial) owner() scheduler.Owner {
	user := one(w, "ada", "bob", "cyd")
	o := scheduler.Owner{
		AccessKey: cluster.AccessKey(user),
		User:      cluster.UserID(user),
		Project:   cluster.ProjectID(one(w, "p", "q")),
		Domain:    one(w, "d", "d", "e"),
	}
	if w.focus == levels {
		o.Project, o.Domain = cluster.ProjectID(one(w, "p", "q", "s", "s", "t")), "d"
		if o.Project == "q" && w.chance(50) {
			o.Project, o.Domain = "r", "e"
		}
	}
	if w.chance(3) {
		o.User = ""
	}
	return o
}

func (w *trial) session() scheduler.Session {
	s := scheduler.Session{
		ID: cluster.SessionID(
			fmt.Sprintf("s%02d", w.next),
		), Owner: w.owner(), Priority: one(w, 0, 10, 10, 20, 50), EnqueuedAt: w.o.now.Add(-w.minutes(0, 0, 1, 5, 10, 60)),
		Lifetime: w.minutes(0, 0, 5, 10, 10, 20), Private: w.chance(8), Preemptible: w.chance(60), SingleNode: w.chance(30),
	}
	w.next++
	base := w.kernel()
	kernels := one(w, 1, 1, 1, 1, 2, 2, 3)
	if w.focus == gangs {
		kernels = one(w, 1, 2, 3, 3)
	}
	for i := range kernels {
		k := base
		k.Slots = maps.Clone(base.Slots)
		if w.chance(40) {
			k = w.kernel()
		}
		k.ID = cluster.KernelID(fmt.Sprintf("%s-%d", s.ID, i))
		s.Kernels = append(s.Kernels, k)
	}
	switch w.focus {
	case victims:
		s.Priority, s.Preemptible = one(w, 0, 0, 10, 20, 50), w.chance(85)
	case gangs:
		s.Lifetime = w.minutes(0, 0, 0, 5)
		for i := range s.Kernels {
			s.Kernels[i].Slots[w.gpu] = one[cluster.Amount](w, 0, 1000, 1000, 2000)
		}
	}
	if w.chance(10) {
		s.Volumes = []string{one(w, "v1", "v2")}
	}
	switch w.r.IntN(20) {
	case 0:
		s.StartsAt = w.o.now.Add(w.minutes(-5, 0, 5, 10))
	case 1:
		s.Waiting = "it waits for session train"
	case 2:
		s.Designated = []cluster.AgentID{"a0", "a2"}
	case 3:
		s.Failed = []cluster.AgentID{"a0"}
	case 4, 5:
		s.Companions = scheduler.Companions{Name: "c", Apart: w.chance(50), Strict: w.chance(50)}
	case 6:
		s.Priority = one(w, -1, 100, 101)
	}
	if w.chance(1) {
		s.Kernels = nil
	}
	return s
}

func (w *trial) kernel() scheduler.Kernel {
	k := scheduler.Kernel{
		Slots:        ask(one[int64](w, 1, 1, 2, 3, 4), one[int64](w, 0, 1, 1, 2, 4)),
		Architecture: one(w, "", "", "x86_64", "x86_64", "aarch64"),
	}
	k.Image = one(w, "", "python", "rust")
	k.Local = k.Image == "python" && w.chance(20)
	switch {
	case w.chance(40):
		if w.both {
			w.gpu, w.both = one(w, accelerators...), w.chance(25)
			if other := one(w, accelerators...); other != w.gpu && w.chance(20) {
				k.Slots[other] = 1000
			}
		}
		k.Slots[w.gpu] = one[cluster.Amount](w, 1000, 1000, 2000, 0)
		if w.gpu == "cuda.shares" {
			k.Slots[w.gpu] = one[cluster.Amount](w, 300, 500, 500, 1000, 2000)
		}
		if w.chance(25) {
			k.Models = []string{"A100"}
		}
		if w.chance(20) {
			k.Isolation = one(w, cluster.IsolationNone, cluster.IsolationDriver, cluster.IsolationHard)
		}
	case w.chance(5):
		k.Slots = cluster.Slots{cluster.SlotCPU: cluster.Whole(one[int64](w, -1, 0, 1))}
	case w.chance(2):
		k.Slots["tpu.device"] = 1000
	}
	return k
}

func (w *trial) enqueue(s scheduler.Session) {
	w.forget(s.ID)
	w.o.waiting = append(w.o.waiting, s)
	w.c.Enqueue("g", s)
	w.log("enqueue %+v", s)
}

// forget takes a session off the oracle.
func (w *trial) forget(id cluster.SessionID) {
	w.o.waiting = slices.DeleteFunc(w.o.waiting, func(s scheduler.Session) bool { return s.ID == id })
	w.o.running = slices.DeleteFunc(w.o.running, func(r scheduler.Running) bool { return r.ID == id })
	w.o.claims = slices.DeleteFunc(w.o.claims, func(c *keptPlace) bool { return c.session.ID == id })
	for _, c := range w.o.claims {
		c.victims = slices.DeleteFunc(c.victims, func(v cluster.SessionID) bool { return v == id })
	}
}

func (w *trial) remove(id cluster.SessionID) {
	w.forget(id)
	w.c.Remove(id)
	w.log("remove %s", id)
}

func (w *trial) setQuota() {
	scope := one(w, scheduler.Scope{Kind: scheduler.ScopeUser, ID: "ada"}, scheduler.Scope{Kind: scheduler.ScopeKeypair, ID: "bob"},
		scheduler.Scope{Kind: scheduler.ScopeProject, ID: "p"}, scheduler.Scope{Kind: scheduler.ScopeDomain, ID: "d"})
	if w.chance(30) {
		delete(w.o.quotas, scope)
		w.c.SetQuota(scope, nil)
		w.log("no quota of %v", scope)
		return
	}
	q := scheduler.Quota{Sessions: one(w, -1, -1, 0, 1, 2, 3), Private: one(w, -1, 0, 1)}
	if w.chance(60) {
		q.Slots = cluster.Slots{
			one(w, cluster.SlotCPU, cluster.SlotMem, w.gpu): one(w, 0, cluster.Whole(2), cluster.Whole(4), cluster.Whole(4<<30)),
		}
	}
	w.o.quotas[scope] = q
	w.c.SetQuota(scope, &q)
	w.log("quota of %v: %+v", scope, q)
}

// change does one random thing.
func (w *trial) change() {
	switch w.r.IntN(20) {
	case 0:
		w.setAgent(cluster.AgentID(fmt.Sprintf("a%d", w.r.IntN(4))))
	case 1:
		w.setQuota()
		if w.focus == levels {
			w.setTree()
		}
	case 2:
		scope := scheduler.Scope{
			Kind: one(w, scheduler.ScopeUser, scheduler.ScopeProject, scheduler.ScopeDomain),
			ID:   one(w, "ada", "bob", "p", "d"),
		}
		if w.focus == levels && w.chance(50) {
			scope = one(w, scheduler.Scope{Kind: scheduler.ScopeProject, ID: "s"}, scheduler.Scope{Kind: scheduler.ScopeProject, ID: "t"},
				scheduler.MemberScope("s", "ada"))
		}
		w.o.shares[scope] = float64(w.r.IntN(3))
		w.c.SetShare("g", scope, w.o.shares[scope])
		w.log("share of %v: %v", scope, w.o.shares[scope])
	case 3, 4, 5:
		w.o.now = w.o.now.Add(w.minutes(0, 1, 5, 5, 10))
		w.log("now %s", w.o.now)
	case 6, 7, 8, 9:
		if len(w.o.running) > 0 {
			w.remove(w.o.running[w.r.IntN(len(w.o.running))].ID)
		}
	case 10:
		if len(w.o.waiting) > 0 {
			w.remove(w.o.waiting[w.r.IntN(len(w.o.waiting))].ID)
		}
	case 11: // who runs changes what it is worth
		if len(w.o.running) > 0 {
			r := &w.o.running[w.r.IntN(len(w.o.running))]
			r.Priority, r.Preemptible, r.StartedAt = one(w, 0, 10, 20), w.chance(60), w.o.now.Add(-w.minutes(0, 5, 10))
			w.c.Run("g", *r)
			w.log("%s is now of priority %d, preemptible %v, since %s", r.ID, r.Priority, r.Preemptible, r.StartedAt)
		}
	case 12:
		if w.chance(30) {
			g := w.policy()
			g.OrderOptions, g.Order = w.o.group.OrderOptions, w.o.group.Order
			w.o.group = g
			require.NoError(w.t, w.c.SetGroup(g))
			w.log("policy %+v", g)
		}
	default:
		w.enqueueAlike()
	}
}

// enqueueAlike adds up to four sessions of one kind.
func (w *trial) enqueueAlike() {
	s := w.session()
	for range one(w, 1, 1, 1, 2, 3, 4) {
		w.enqueue(s)
		s.ID = cluster.SessionID(fmt.Sprintf("s%02d", w.next))
		s.Kernels = slices.Clone(s.Kernels)
		for i := range s.Kernels {
			s.Kernels[i].ID = cluster.KernelID(fmt.Sprintf("%s-%d", s.ID, i))
		}
		w.next++
		if w.chance(30) {
			s.Owner, s.Priority = w.owner(), one(w, 0, 10, 20, 50)
		}
		if w.chance(50) {
			s.EnqueuedAt = w.o.now.Add(-w.minutes(0, 1, 5))
		}
	}
}

// compare lets both decide, and says where they differ.
func (w *trial) compare() {
	before := slices.Clone(w.o.running)
	got, err := w.c.Pass("g", w.o.now, scheduler.Work{})
	require.NoError(w.t, err)
	w.o.pass()
	require.Equal(w.t, decided(w.o.decisions), decided(got.Decisions), "decisions")
	w.checkVictims(before, got.Decisions)
	all := slices.Clone(w.o.waiting)
	w.o.sort(all)
	for i := range all {
		s := &all[i]
		e, ok := w.c.Explain(s.ID)
		require.True(w.t, ok)
		require.Equal(w.t, i+1, e.Position, "position of %s", s.ID)
		w.checkReason(s, &e)
	}
	w.checkDepth(all)
	w.checkProbe()
	w.checkWake(got.Wake)
	w.log("pass %s: %s", w.o.now, decided(got.Decisions))
}

// checkProbe compares whether one more session would start.
func (w *trial) checkProbe() {
	s := w.session()
	d := w.c.Probe("g", w.o.now, s)
	open := len(s.Kernels) > 0 && !s.StartsAt.After(w.o.now) && s.Waiting == "" && !w.o.group.Inactive && w.o.overLimit(&s) == ""
	require.Equal(w.t, open && w.o.startsNow(&s), d.Hold == nil, "whether %+v would start", s)
	require.Len(w.t, d.Placements, map[bool]int{true: len(s.Kernels)}[d.Hold == nil])
	if d.Hold != nil {
		all := append(slices.Clone(w.o.waiting), s)
		w.o.sort(all)
		i := slices.IndexFunc(all, func(x scheduler.Session) bool { return x.ID == s.ID })
		require.Equal(w.t, i+1, d.Hold.Position, "position of %+v", s)
	}
}

// checkDepth checks that the queue counts every session once.
func (w *trial) checkDepth(waiting []scheduler.Session) {
	d := w.c.Queue("g")
	require.Equal(w.t, len(waiting), d.Pending)
	if len(w.o.claims) > 0 {
		return // sessions with a claim may be over a limit as well
	}
	total := 0
	for _, n := range d.Reasons {
		require.Positive(w.t, n)
		total += n
	}
	require.Equal(w.t, len(waiting), total, "%v", d.Reasons)
}

func decided(decisions []scheduler.Decision) string {
	var out strings.Builder
	for _, d := range decisions {
		fmt.Fprintf(&out, "%s", d.Session)
		for _, p := range d.Placements {
			fmt.Fprintf(&out, " %s on %s %s", p.Kernel, p.Agent, p.Allocation.Text())
		}
		if len(d.Preempt) > 0 {
			fmt.Fprintf(&out, " preempts %v", d.Preempt)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// checkReason compares why a session waits.
func (w *trial) checkReason(s *scheduler.Session, e *scheduler.Explanation) {
	o := w.o
	c := o.claimOf(s.ID)
	var want []scheduler.Reason
	switch limit := o.overLimit(s); {
	case len(s.Kernels) == 0:
		want = append(want, scheduler.TooBig)
	case s.StartsAt.After(o.now):
		want = append(want, scheduler.WaitsForStartTime)
	case s.Waiting != "":
		want = append(want, scheduler.WaitsForDependency)
	case o.group.Inactive:
		want = append(want, scheduler.WaitsForAgent)
	case c != nil && len(c.victims) > 0:
		want = append(want, scheduler.WaitsForVictims)
	case limit != "":
		want = append(want, limit)
	case len(units(s)) > 1:
		return // which of its kernels is explained depends on where the others would go
	case !o.everFits(s):
		want = append(want, scheduler.TooBig, scheduler.WaitsForAgent)
	case o.startsNow(s): // it did not at its turn, when another one came before it
		want = append(want, scheduler.WaitsForPass)
	case o.place(s, true) != nil:
		want = append(want, scheduler.WaitsBehind)
	default:
		want = append(want, scheduler.WaitsForCapacity, scheduler.WaitsForDevices)
	}
	require.Contains(w.t, want, e.Reason, "why %s waits: %s", s.ID, e.Text)
	if len(e.Rejected) > 0 && e.Reason != scheduler.WaitsForPass {
		refused := 0
		for _, n := range e.Rejected {
			refused += n
		}
		require.Equal(w.t, len(o.agents), refused, "every agent refuses %s: %v", s.ID, e.Rejected)
	}
	i := slices.IndexFunc(o.reserved, func(r *keptPlace) bool { return r.session.ID == s.ID })
	if i < 0 || e.Reason != scheduler.WaitsForCapacity && e.Reason != scheduler.WaitsForDevices || len(o.reserved[i].parts) == 0 {
		return
	}
	require.True(w.t, o.reserved[i].from.Equal(e.Estimate), "%s can start at %s, not %s", s.ID, o.reserved[i].from, e.Estimate)
	require.Contains(w.t, e.Remedies[len(e.Remedies)-1], "on agent "+string(o.reserved[i].parts[0].agent.ID)+" to end")
}

// startsNow reports whether a session would start if it were its turn.
func (o *oracle) startsNow(s *scheduler.Session) bool {
	last := o.last
	defer func() { o.last = last }()
	return o.place(s, false) != nil
}

// checkWake compares when time alone changes something. When a session is old enough to be a victim is not compared.
func (w *trial) checkWake(got time.Time) {
	var want time.Time
	earlier := func(at time.Time) {
		if at.After(w.o.now) && (want.IsZero() || at.Before(want)) {
			want = at
		}
	}
	for _, s := range w.o.waiting {
		if s.Waiting == "" {
			earlier(s.StartsAt)
		}
	}
	for _, r := range w.o.reserved {
		earlier(r.from)
	}
	if !w.o.group.Preemption.Enabled {
		require.True(w.t, want.Equal(got), "wake at %s, not %s", want, got)
	} else if !want.IsZero() {
		require.False(w.t, got.IsZero() || got.After(want), "wake at %s at the latest, not %s", want, got)
	}
}

// checkVictims checks the choice of victims for sessions on one agent against all sets of possible victims: they suffice, none can
// be spared, and no set of another choice has a lower highest priority.
func (w *trial) checkVictims(before []scheduler.Running, decisions []scheduler.Decision) {
	for i, d := range decisions {
		if len(d.Preempt) == 0 {
			continue
		}
		c := w.o.claimOf(d.Session)
		if c == nil || len(units(&c.session)) > 1 {
			continue // it changed its claim with another one
		}
		// As it was when the victims were chosen.
		running := slices.Clone(before)
		for _, e := range decisions[:i] {
			if len(e.Placements) > 0 {
				started := w.o.running[slices.IndexFunc(w.o.running, func(r scheduler.Running) bool { return r.ID == e.Session })]
				running = append(running, started)
			}
		}
		probe := *w.o
		probe.running, probe.claims = running, nil
		a, kernels := probe.agent(c.parts[0].agent.ID), kernelsOf(&c.session, units(&c.session)[0])
		fits := func(victims []cluster.SessionID) bool {
			_, ok := probe.fit(a, probe.spaceOf(a, func(r *scheduler.Running) bool { return slices.Contains(victims, r.ID) }), kernels)
			return ok
		}
		require.True(w.t, fits(d.Preempt), "the victims of %s do not suffice", d.Session)
		highest := -1
		for n := range d.Preempt {
			require.False(w.t, fits(slices.Delete(slices.Clone(d.Preempt), n, n+1)), "%s could be spared", d.Preempt[n])
		}
		var possible []cluster.SessionID
		for j := range running {
			r := &running[j]
			if slices.Contains(d.Preempt, r.ID) {
				require.True(w.t, probe.mayEnd(r, &c.session), "%s is no victim of %s", r.ID, d.Session)
				highest = max(highest, level(&r.Session))
			}
		}
		for j := range running {
			r := &running[j]
			here := slices.ContainsFunc(r.Placements, func(p scheduler.Placement) bool { return p.Agent == a.ID })
			named := slices.ContainsFunc(decisions[:i], func(e scheduler.Decision) bool { return slices.Contains(e.Preempt, r.ID) })
			if here && !named && probe.mayEnd(r, &c.session) && level(&r.Session) < highest {
				possible = append(possible, r.ID)
			}
		}
		require.False(w.t, fits(possible), "%s could do with victims of a priority below %d: %v", d.Session, highest, possible)
	}
}

// TestOracle compares the scheduler with the oracle on generated clusters, over several passes of each, and Plan with it at the end.
func TestOracle(t *testing.T) {
	t.Parallel()
	clusters := oracleClusters
	if testing.Short() {
		clusters = shortClusters
	}
	n, seed := fromEnv(t, clustersEnv, clusters), fromEnv(t, seedEnv, 1)
	for i := seed; i < seed+n; i++ {
		if !oracleTrial(t, uint64(i)) {
			t.Fatalf("to see it again: %s=%d %s=1 go test -run TestOracle ./internal/scheduler", seedEnv, i, clustersEnv)
		}
	}
}

// failure collects what a comparison says, so that the events can be shown once.
type failure struct{ text string }

func (f *failure) Errorf(format string, args ...any) { f.text += fmt.Sprintf(format, args...) }
func (f *failure) FailNow()                          { panic(f) }

func oracleTrial(t *testing.T, seed uint64) (ok bool) {
	f := &failure{}
	w := &trial{t: f, r: rand.New(rand.NewPCG(seed, 0)), c: scheduler.NewCluster(), focus: focus(seed % uint64(focuses))}
	defer func() {
		if p := recover(); p != nil {
			if p != any(f) {
				t.Logf("seed %d:\n%s", seed, w.history())
				panic(p)
			}
			t.Errorf("seed %d:\n%s\n%s", seed, w.history(), f.text)
			ok = false
		}
	}()
	w.gpu = one(w, accelerators...)
	w.o = &oracle{now: now, quotas: map[scheduler.Scope]scheduler.Quota{}, shares: map[scheduler.Scope]float64{}, group: w.policy()}
	w.log("policy %+v", w.o.group)
	require.NoError(f, w.c.SetGroup(w.o.group))
	for i := range one(w, 1, 1, 2, 3, 4) {
		w.setAgent(cluster.AgentID(fmt.Sprintf("a%d", i)))
	}
	if w.focus == levels {
		w.setTree()
	}
	for range 2 + w.r.IntN(4) {
		w.enqueueAlike()
	}
	for range 1 + w.r.IntN(4) {
		w.compare()
		for range 1 + w.r.IntN(4) {
			w.change()
		}
		if w.chance(60) { // victims end, or are enqueued again
			for _, c := range w.o.claims {
				for _, v := range slices.Clone(c.victims) {
					i := slices.IndexFunc(w.o.running, func(r scheduler.Running) bool { return r.ID == v })
					if i >= 0 && w.chance(70) {
						s := w.o.running[i].Session
						w.remove(v)
						if w.chance(30) {
							w.enqueue(s)
						}
					}
				}
			}
		}
	}
	w.comparePlan()
	return true
}

// comparePlan compares a plan of a snapshot with an oracle that remembers nothing.
func (w *trial) comparePlan() {
	s := scheduler.Snapshot{
		Now:     w.o.now,
		Group:   w.o.group,
		Agents:  w.o.agents,
		Running: slices.Clone(w.o.running),
		Pending: slices.Clone(w.o.waiting),
		Quotas:  maps.Clone(w.o.quotas),
		Tree:    w.o.tree,
		Shares:  maps.Clone(w.o.shares),
	}
	got, err := scheduler.Plan(s)
	require.NoError(w.t, err)
	w.o.claims, w.o.last = nil, ""
	w.o.pass()
	require.Len(w.t, got, len(w.o.decisions)+len(w.o.waiting)-len(w.preempting()))
	require.Equal(w.t, decided(w.o.decisions), decided(got[:len(w.o.decisions)]), "plan")
	all := slices.Clone(w.o.waiting)
	w.o.sort(all)
	for _, d := range got {
		if d.Hold == nil {
			continue
		}
		i := slices.IndexFunc(all, func(s scheduler.Session) bool { return s.ID == d.Session })
		require.Equal(w.t, i+1, d.Hold.Position, "position of %s in the plan", d.Session)
		w.checkReason(&all[i], d.Hold)
	}
}

func (w *trial) preempting() (out []cluster.SessionID) {
	for _, d := range w.o.decisions {
		if len(d.Preempt) > 0 {
			out = append(out, d.Session)
		}
	}
	return out
}
