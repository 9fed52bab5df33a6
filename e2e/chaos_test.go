package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// disturbance breaks something for a while and mends it.
type disturbance struct {
	name string
	// lasts is for how long; long replaces it in the long setting.
	lasts, long time.Duration
	strike      func(c *chaos, d time.Duration)
}

func disturbances() []disturbance {
	during := func(on, off func(c *chaos)) func(c *chaos, d time.Duration) {
		return func(c *chaos, d time.Duration) {
			on(c)
			defer off(c)
			<-time.After(d)
		}
	}
	killed := func(which func(c *chaos) string) func(c *chaos, d time.Duration) {
		return during(func(c *chaos) { c.signal(which(c), syscall.SIGKILL) }, func(c *chaos) { c.begin(which(c)) })
	}
	stopped := func(which func(c *chaos) string) func(c *chaos, d time.Duration) {
		return during(func(c *chaos) { c.signal(which(c), syscall.SIGSTOP) }, func(c *chaos) { c.signal(which(c), syscall.SIGCONT) })
	}
	manager := func(*chaos) string { return theManager }
	agent := (*chaos).turn
	return []disturbance{
		{"kill manager", 3 * time.Second, 10 * time.Second, killed(manager)},
		{"kill agent", 3 * time.Second, 10 * time.Second, killed(agent)},
		{"stop manager", time.Minute, time.Minute, stopped(manager)},
		{"stop agent", time.Minute, time.Minute, stopped(agent)},
		{"cut agent", 90 * time.Second, 6 * time.Minute, // the manager gives up the agent meanwhile; its jobs must not run again
			during(func(c *chaos) { c.wires.cut(chaosAgents[0]) }, func(c *chaos) { c.wires.join(chaosAgents[0]) })},
		{"deaf to agent", 45 * time.Second, 2 * time.Minute,
			during(func(c *chaos) { c.wires.deafen(agent(c)) }, func(c *chaos) { c.wires.join(agent(c)) })},
		{"kill database", 45 * time.Second, 3 * time.Minute,
			during(func(c *chaos) { c.database.Kill() }, func(c *chaos) { c.database.Start() })},
		{"stop database", 30 * time.Second, time.Minute,
			during(func(c *chaos) { c.database.Pause(true) }, func(c *chaos) { c.database.Pause(false) })},
		{"cut database", 45 * time.Second, 3 * time.Minute,
			during(func(c *chaos) { c.wires.cut(wireDatabase) }, func(c *chaos) { c.wires.join(wireDatabase) })},
	}
}

// turn is the agent whose turn it is. Only the first one is ever away for longer than the grace, because sessions end then.
func (c *chaos) turn() string { return chaosAgents[c.round%len(chaosAgents)] }

// struck is the agent that a fault hits, and one of them where it hits none.
func (c *chaos) struck(d disturbance) string {
	if strings.HasPrefix(d.name, "cut") {
		return chaosAgents[0]
	}
	return c.turn()
}

// recoveryBound is how long after a fault each agent may take until it starts a session.
const recoveryBound = 45 * time.Second

// roundRest is about what a round takes besides its fault.
const roundRest = 50 * time.Second

// burstLead is how long before a fault at most the burst of jobs begins.
const burstLead = 2 * time.Second

// row is what became of one kind of fault.
type row struct {
	rounds      int
	lasted      time.Duration
	recovery    time.Duration // the longest
	well, tried map[string]int
}

// chaos is a cluster under load that is broken in rounds. docs/proving-ground.md describes it.
type chaos struct {
	*workload
	rand  *rand.Rand
	round int
	rows  map[string]*row
	notes []string // what was not well
}

// TestChaos breaks a real cluster again and again, for as long as BERTH_CHAOS_TIME says; without it nothing is done. BERTH_CHAOS_LONG=1
// lets faults last as long as it takes to find the defects that need minutes, BERTH_CHAOS_ONLY names the faults to make.
func TestChaos(t *testing.T) {
	needEngine(t)
	limit, err := time.ParseDuration(os.Getenv("BERTH_CHAOS_TIME"))
	if err != nil {
		t.Skip("set BERTH_CHAOS_TIME, or run make chaos")
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("BERTH_CHAOS_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("BERTH_CHAOS_SEED=%d", seed)
	end := time.Now().Add(limit)
	c := &chaos{workload: newWorkload(newFragile(t)), rand: rand.New(rand.NewPCG(seed, 1)), rows: map[string]*row{}}
	t.Logf("the manager is behind %s", c.wires.name())
	all := chosen()
	if len(all) == 0 {
		t.Fatalf("BERTH_CHAOS_ONLY names no fault")
	}
	for left := 0; fits(all, time.Until(end)); {
		if left == 0 { // every one once, in an order of its own
			c.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			left = len(all)
		}
		left--
		if d := all[left]; d.lasts+roundRest <= time.Until(end) {
			c.play(d)
		}
	}
	t.Log(c.table(all))
	if c.round == 0 {
		t.Errorf("no round was made: %s is too short for the cluster's start and one of these faults", limit)
	}
	for _, n := range c.notes {
		t.Error(n)
	}
}

// chosen are the faults to make, each with the time that it lasts.
func chosen() (out []disturbance) {
	only := os.Getenv("BERTH_CHAOS_ONLY")
	for _, d := range disturbances() {
		if os.Getenv("BERTH_CHAOS_LONG") != "" {
			d.lasts = d.long
		}
		if only == "" || strings.Contains(","+only+",", ","+d.name+",") {
			out = append(out, d)
		}
	}
	return out
}

// fits says whether a round of some fault ends in the time that is left.
func fits(all []disturbance, left time.Duration) bool {
	for _, d := range all {
		if d.lasts+roundRest <= left {
			return true
		}
	}
	return false
}

// play makes one fault under load, and judges.
func (c *chaos) play(d disturbance) {
	r := c.rows[d.name]
	if r == nil {
		r = &row{lasted: d.lasts, well: map[string]int{}, tried: map[string]int{}}
		c.rows[d.name] = r
	}
	r.rounds++
	began := time.Now()
	handover := c.handing(c.struck(d), d.lasts)
	c.underway()
	burst := c.burst()
	<-time.After(time.Duration(c.rand.Int64N(int64(burstLead)))) // so that faults find the burst's jobs at every step
	stop := c.submitting()
	var during sync.WaitGroup
	during.Go(func() {
		<-time.After(time.Second) // the fault has begun
		handover()
	})
	d.strike(c, d.lasts)
	during.Wait()
	burst()
	took := c.recovers(d.name)
	stop()
	r.recovery = max(r.recovery, took)
	for n := range 3 {
		c.submit(n, 0, true)
	}
	for _, w := range works {
		r.tried[w.name]++
		why := w.broken(c.workload)
		for deadline := time.Now().Add(patience); why != "" && !w.once && time.Now().Before(deadline); why = w.broken(c.workload) {
			<-time.After(500 * time.Millisecond)
		}
		if why == "" {
			r.well[w.name]++
			continue
		}
		c.notes = append(c.notes, fmt.Sprintf("round %d, %s, %s: %s", c.round, d.name, w.name, why))
		c.t.Log(c.notes[len(c.notes)-1])
	}
	c.t.Logf("round %d: %s for %s, recovered after %s, %s in all", c.round, d.name, d.lasts, took.Round(100*time.Millisecond),
		time.Since(began).Round(time.Second))
	c.round++
}

// recovers waits until every agent starts a session again, and tells how long that took.
func (c *chaos) recovers(fault string) time.Duration {
	began := time.Now()
	for i, agent := range chaosAgents {
		for {
			// One that waits already is waited for.
			name := fmt.Sprintf("probe-%d-%d", c.round, i)
			r, _ := c.attempt(30*time.Second, "session", "create", "python", "--name", name, "--agent", agent, "-r", "cpu=1", "-r", "mem=128m")
			if r.code == 0 {
				break
			}
			if time.Since(began) > 2*patience {
				c.notes = append(c.notes, fmt.Sprintf("round %d, %s: agent %s starts no session: %s", c.round, fault, agent, r.stderr))
				break
			}
			<-time.After(200 * time.Millisecond)
		}
	}
	took := time.Since(began)
	if took > recoveryBound {
		c.notes = append(c.notes, fmt.Sprintf("round %d, %s: the cluster recovered after %s, it may take %s", c.round, fault, took,
			recoveryBound))
	}
	for i := range chaosAgents {
		c.attempt(30*time.Second, "session", "rm", "--force", "--yes", fmt.Sprintf("probe-%d-%d", c.round, i))
	}
	return took
}

// table is the report: a row for each fault, a column for each load, and what was checked.
func (c *chaos) table(all []disturbance) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-14s %6s %6s %9s", "fault", "rounds", "lasts", "recovery")
	for _, w := range works {
		fmt.Fprintf(&b, " %8s", w.name)
	}
	for _, d := range disturbances() {
		r := c.rows[d.name]
		if r == nil {
			continue
		}
		fmt.Fprintf(&b, "\n%-14s %6d %6s %9s", d.name, r.rounds, r.lasted, r.recovery.Round(100*time.Millisecond))
		for _, w := range works {
			fmt.Fprintf(&b, " %8s", fmt.Sprintf("%d/%d", r.well[w.name], r.tried[w.name]))
		}
	}
	fmt.Fprintf(&b, "\n\nrounds in which a promise held, of those in which it was checked;"+
		" recovery is the longest time until both agents started a session, %s at most\n", recoveryBound)
	for _, w := range works {
		fmt.Fprintf(&b, "%-9s %s\n", w.name, w.promise)
	}
	fmt.Fprintf(&b, "%d rounds of %d faults, %d jobs, manager behind %s\n", c.round, len(all), len(c.jobs), c.wires.name())
	return b.String()
}
