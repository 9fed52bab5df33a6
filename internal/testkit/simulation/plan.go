package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind names what an event of a plan does.
type Kind string

// The kinds of events: load first, then faults.
const (
	// Create makes an interactive session, Batch a batch job that takes For, Gang a session of N kernels on any agents, which is a batch job
	// where For says how long. The number of a session is its place among the events of the plan.
	Create Kind = "create"
	Batch  Kind = "batch"
	Gang   Kind = "gang"
	// Destroy ends session N; DestroyForced does so by force.
	Destroy       Kind = "destroy"
	DestroyForced Kind = "destroy-forced"
	// Publish makes a circuit to session N as soon as it runs.
	Publish Kind = "publish"

	// Cut breaks the agent's connection. Partition lets nothing pass between agent and manager for a while, PartitionUp nothing that the
	// agent says, PartitionDown nothing that the manager says. Slow adds N milliseconds to every message.
	Cut           Kind = "cut"
	Partition     Kind = "partition"
	PartitionUp   Kind = "partition-up"
	PartitionDown Kind = "partition-down"
	Slow          Kind = "slow"
	// Reports makes N percent of the reports of all agents get lost before or after they were stored, arrive twice, or arrive again late.
	Reports Kind = "reports"
	// KillAgent ends the agent's process before the N-th step that its kernels take from now on, and starts it again after a while.
	KillAgent Kind = "kill-agent"
	// SuspendAgent stops the agent's process for a while as SIGSTOP does: time goes by, nothing is done.
	SuspendAgent Kind = "suspend-agent"
	// KillManager ends a manager before its next transaction (N even) or right after it, and starts it again after a while. Of this and of
	// the faults of one manager below: N below 2 means the manager that leads then, else the other one, where there are two.
	KillManager Kind = "kill-manager"
	// SuspendManager stops a manager's process for a while as SIGSTOP does. IsolateManager lets nothing pass between a manager and all
	// agents. CutDatabase lets one manager wait for PostgreSQL, while the other has it.
	SuspendManager Kind = "suspend-manager"
	IsolateManager Kind = "isolate-manager"
	CutDatabase    Kind = "cut-database"
	// DatabaseRefuses and DatabaseHangs take PostgreSQL away: calls fail at once, or get no answer.
	DatabaseRefuses Kind = "database-refuses"
	DatabaseHangs   Kind = "database-hangs"
	// EngineFails lets the next start of a container on the agent fail before (N = 0) or after its work was done. EngineHangs lets starts
	// wait, EngineLost all calls fail.
	EngineFails Kind = "engine-fails"
	EngineHangs Kind = "engine-hangs"
	EngineLost  Kind = "engine-lost"
	// DiskFull lets the agent write nothing, DiskSlow makes each write take N milliseconds.
	DiskFull Kind = "disk-full"
	DiskSlow Kind = "disk-slow"
	// ClockStep puts the agent's clock N seconds forward, or back when N is negative.
	ClockStep Kind = "clock-step"
)

// Event is one thing that happens at an instant of the simulated time.
type Event struct {
	At    time.Duration
	Kind  Kind
	Agent int           // of faults of one agent
	For   time.Duration // how long a fault lasts, or a job takes
	N     int
	Owner int // of a session: its place among the owners of the database
	Cores int // of each kernel of a session
}

// batch says whether the event makes a batch job, which ends by itself.
func (e Event) batch() bool { return e.Kind == Batch || e.Kind == Gang && e.For > 0 }

// ofManager says whether the event is a fault of one manager.
func (e Event) ofManager() bool {
	return slices.Contains([]Kind{KillManager, SuspendManager, IsolateManager, CutDatabase}, e.Kind)
}

func (e Event) String() string {
	out := fmt.Sprintf("%9s  %s", stamp(e.At), e.Kind)
	switch e.Kind {
	case Create, Gang, Batch:
		out += fmt.Sprintf(" of owner %d cores=%d", e.Owner, e.Cores)
	case Destroy, DestroyForced, Publish, Reports, DatabaseRefuses, DatabaseHangs:
	default:
		if !e.ofManager() {
			out += fmt.Sprintf(" agent %d", e.Agent)
		}
	}
	switch {
	case e.Kind == Destroy, e.Kind == DestroyForced, e.Kind == Publish:
		out += fmt.Sprintf(" session-%d", e.N)
	case e.N != 0:
		out += fmt.Sprintf(" n=%d", e.N)
	}
	if e.For > 0 {
		out += " for " + stamp(e.For)
	}
	return out
}

// stamp writes a span in seconds.
func stamp(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

// Plan is everything that a seed decides: what happens, when. Random choices within a run follow from the seed and from what they are
// about, not from the order in which they are made, so that a plan with fewer events runs as the whole one did.
type Plan struct {
	Seed     uint64
	Managers int
	Agents   int
	Cores    int // of each agent
	Events   []Event
}

func (p Plan) String() string {
	lines := []string{fmt.Sprintf("seed %d: %d managers, %d agents of %d cores", p.Seed, p.Managers, p.Agents, p.Cores)}
	for _, i := range p.present() {
		lines = append(lines, fmt.Sprintf("  #%-3d %s", i, p.Events[i]))
	}
	return strings.Join(lines, "\n")
}

// The time of a plan: events happen within active; then everything is healed and what is left is ended.
const (
	active = 9 * time.Minute
	// bound is how long a healed cluster may take to end everything: it covers the grace for lost agents, every deadline of kernels and
	// the agents' pauses between attempts.
	bound = 15 * time.Minute
)

// NewPlan makes the plan of a seed.
func NewPlan(seed uint64) Plan {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	p := Plan{Seed: seed, Managers: 1 + min(r.IntN(3), 1), Agents: 2 + r.IntN(2), Cores: 2 + r.IntN(3)}
	// Load comes in a few crowds, faults around them: what fails together is what was never tried together.
	crowds := 2 + r.IntN(3)
	var at []time.Duration
	for range crowds {
		at = append(at, within(r, 0, active*2/3))
	}
	slices.Sort(at)
	for _, start := range at {
		for range 2 + r.IntN(4) {
			when := start + within(r, 0, 4*time.Second)
			p.load(r, when)
		}
		for range 1 + r.IntN(3) {
			p.fault(r, max(0, start+within(r, -2*time.Second, 6*time.Second)))
		}
	}
	slices.SortStableFunc(p.Events, func(a, b Event) int { return int(a.At - b.At) })
	p.destroyers(r)
	p.publishers(r)
	return p
}

func within(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}

func (p *Plan) load(r *rand.Rand, at time.Duration) {
	// Nobody asks for more than an owner may have or than empty agents hold: such a session would wait for ever, and rightly.
	e := Event{At: at, Owner: r.IntN(owners), Cores: 1 + r.IntN(5)/4}
	takes := within(r, 100*time.Millisecond, []time.Duration{time.Second, 20 * time.Second, 3 * time.Minute}[r.IntN(3)])
	switch n := r.IntN(10); {
	case n < 3:
		e.Kind = Create
	case n < 8:
		e.Kind, e.For = Batch, takes
	default:
		e.Kind, e.N, e.Cores = Gang, 2+r.IntN(2), 1
		if r.IntN(2) == 0 {
			e.For = takes
		}
	}
	p.Events = append(p.Events, e)
}

// destroyers lets some sessions be ended by their owners, most of them soon after their creation.
func (p *Plan) destroyers(r *rand.Rand) {
	for i, e := range slices.Clone(p.Events) {
		if e.Cores == 0 || e.batch() && r.IntN(4) > 0 || r.IntN(3) == 0 {
			continue
		}
		kind := Destroy
		if r.IntN(2) == 0 {
			kind = DestroyForced
		}
		after := within(r, time.Millisecond, []time.Duration{time.Second, 10 * time.Second, 2 * time.Minute}[r.IntN(3)])
		p.Events = append(p.Events, Event{At: e.At + after, Kind: kind, N: i})
	}
}

// publishers lets apps of half of the sessions be published, most of them soon after their creation. They are drawn last: what a seed does
// besides stays as it is.
func (p *Plan) publishers(r *rand.Rand) {
	for i, e := range slices.Clone(p.Events) {
		if e.Cores > 0 && r.IntN(2) == 0 {
			after := within(r, time.Millisecond, []time.Duration{5 * time.Second, time.Minute}[r.IntN(2)])
			p.Events = append(p.Events, Event{At: e.At + after, Kind: Publish, N: i})
		}
	}
}

func (p *Plan) fault(r *rand.Rand, at time.Duration) {
	e := Event{At: at, Agent: r.IntN(p.Agents)}
	short := within(r, 50*time.Millisecond, 20*time.Second)
	long := within(r, 20*time.Second, 7*time.Minute)
	either := []time.Duration{short, long}[r.IntN(2)]
	switch r.IntN(22) {
	case 0:
		e.Kind = Cut
	case 1, 2:
		e.Kind, e.For = Partition, either
	case 3:
		e.Kind, e.For = PartitionUp, either
	case 4:
		e.Kind, e.For = PartitionDown, either
	case 5:
		e.Kind, e.For, e.N = Slow, either, 1+r.IntN(3000)
	case 6:
		e.Kind, e.For, e.N = Reports, either, 5+r.IntN(30)
	case 7, 8:
		e.Kind, e.For, e.N = KillAgent, either, 1+r.IntN(40)
	case 9, 10:
		e.Kind, e.For = SuspendAgent, either
	case 11:
		e.Kind, e.For, e.N = KillManager, either, r.IntN(4)
	case 12:
		e.Kind, e.For = DatabaseRefuses, either
	case 13:
		e.Kind, e.For = DatabaseHangs, either
	case 14:
		e.Kind, e.For, e.N = []Kind{EngineFails, EngineHangs, EngineLost}[r.IntN(3)], short, r.IntN(2)
	case 15:
		e.Kind, e.For, e.N = []Kind{DiskFull, DiskSlow}[r.IntN(2)], short, 1+r.IntN(2000)
	case 16:
		e.Kind, e.N = ClockStep, r.IntN(7200)-3600
	case 17, 18:
		e.Kind, e.For, e.N = SuspendManager, either, r.IntN(4)
	case 19:
		e.Kind, e.For, e.N = IsolateManager, either, r.IntN(4)
	case 20:
		e.Kind, e.For, e.N = CutDatabase, either, r.IntN(4)
	case 21:
		e.Kind, e.For, e.N = KillManager, short, r.IntN(4)
	}
	p.Events = append(p.Events, e)
}

// without returns the plan without some events. Destroyers name sessions by number, so an event that is left out keeps its place.
func (p Plan) without(drop map[int]bool) Plan {
	p.Events = slices.Clone(p.Events)
	for i := range p.Events {
		if drop[i] {
			p.Events[i].Kind = ""
		}
	}
	return p
}
