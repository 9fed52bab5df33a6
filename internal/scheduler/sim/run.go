package sim

import (
	"container/heap"
	"fmt"
	"slices"
	"strconv"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
)

// epoch is when every simulation begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// groupName is the one resource group of a simulation.
const groupName = "sim"

// Options say how a workload is run.
type Options struct {
	// InOrder takes the jobs one at a time in the order given: each is placed or refused at
	// once, a refused one is never tried again, and nothing ends.
	InOrder bool
	// History is a list from which typical requests may be learnt before the first arrival.
	History []Job
	// Until ends the simulation at this virtual time; 0: when nothing more happens.
	Until time.Duration
	// Stopwatch measures passes; nil leaves their times out of the report.
	Stopwatch func() time.Time
}

// Start is one job that began (or, in order, was refused: Node is empty then).
type Start struct {
	At     time.Duration
	Job    int // index in Workload.Jobs
	Kernel int
	Node   string
	GPUs   []int // indexes of the node's devices
}

// event is one thing that happens at an instant; of one instant, ends come before arrivals
// before wake-ups, and each kind in the order of its job.
type event struct {
	at   time.Duration
	kind int
	job  int
	run  int // end: which start of the job it belongs to
}

const (
	jobEnds = iota
	jobArrives
	wakeUp
)

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	a, b := e[i], e[j]
	if a.at != b.at {
		return a.at < b.at
	}
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	return a.job < b.job
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// jobState is where a job is.
type jobState int

const (
	unborn jobState = iota
	waiting
	running
	ended
	refused
)

// world is one simulation under way.
type world struct {
	w       *Workload
	opt     Options
	cluster *scheduler.Cluster
	events  events
	now     time.Duration
	state   []jobState
	runs    []int // starts per job
	after   map[string][]int
	open    []int // dependencies that have not ended, per job
	names   map[string]int
	ledger  *ledger
	meter   *meter
	report  *recorder
	nextID  time.Duration // the wake-up that is already in the heap
}

// Run simulates the workload. The error is Invalid for a workload that makes no sense; any
// other says which promise the scheduler broke and at which instant.
func Run(w *Workload, opt Options) (*Report, error) {
	x, err := newWorld(w, opt)
	if err != nil {
		return nil, err
	}
	if opt.InOrder {
		err = x.inOrder()
	} else {
		err = x.loop()
	}
	if err != nil {
		return nil, err
	}
	return x.report.finish(x), nil
}

func newWorld(w *Workload, opt Options) (*world, error) {
	x := &world{w: w, opt: opt, cluster: scheduler.NewCluster(), state: make([]jobState, len(w.Jobs)), runs: make([]int, len(w.Jobs)),
		open: make([]int, len(w.Jobs)), after: map[string][]int{}, names: map[string]int{}}
	g := w.Group
	g.Name, g.WholeDevices = groupName, true
	g.Rules = map[cluster.SlotName]alloc.Rule{cluster.SlotCPU: alloc.Divisible}
	if err := x.cluster.SetGroup(g); err != nil {
		return nil, err
	}
	for i := range w.Nodes {
		x.cluster.SetAgent(groupName, w.Nodes[i].agent())
	}
	for scope, q := range w.Quotas {
		x.cluster.SetQuota(scope, &q)
	}
	for i := range w.Jobs {
		j := &w.Jobs[i]
		if _, twice := x.names[j.Name]; twice && len(w.Jobs[i].After) > 0 {
			return nil, fault.Invalidf("two jobs are called %q and one of them waits for others", j.Name)
		}
		x.names[j.Name] = i
	}
	for i := range w.Jobs {
		for _, name := range w.Jobs[i].After {
			if _, ok := x.names[name]; !ok {
				return nil, fault.Invalidf("job %s waits for %s, which does not exist", w.Jobs[i].Name, name)
			}
			x.after[name] = append(x.after[name], i)
			x.open[i]++
		}
	}
	if len(opt.History) > 0 {
		typical := make([]scheduler.Session, len(opt.History))
		for i := range opt.History {
			typical[i] = opt.History[i].session(i, epoch)
		}
		if err := x.cluster.Learn(groupName, typical); err != nil {
			return nil, err
		}
	}
	var err error
	if x.meter, err = newMeter(w); err != nil {
		return nil, err
	}
	x.ledger = newLedger(w)
	x.report = newRecorder(w, opt)
	return x, nil
}

// agent is the node as the scheduler sees it: one device for all cores, one for the memory,
// one per accelerator.
func (n *Node) agent() scheduler.Agent {
	a := scheduler.Agent{ID: cluster.AgentID(n.Name), Architecture: n.Architecture, Schedulable: true, Alive: true}
	add := func(slot cluster.SlotName, id string, capacity cluster.Amount) {
		a.Devices = append(a.Devices, alloc.Device{Slot: slot, ID: id, NUMA: -1, Capacity: capacity, Healthy: true})
	}
	add(cluster.SlotCPU, "0", cluster.Amount(n.CPU))
	add(cluster.SlotMem, "root", cluster.Whole(n.Mem<<20))
	for i := range n.GPUs {
		add(SlotGPU, strconv.Itoa(i), cluster.Milli)
		d := &a.Devices[len(a.Devices)-1]
		d.Model = n.Model
		if i < len(n.Accelerators) {
			at := n.Accelerators[i]
			d.NUMA, d.PCI, d.Links = at.NUMA, at.PCI, map[string]int{}
			for other, class := range at.Links {
				d.Links[strconv.Itoa(other)] = class
			}
		}
	}
	return a
}

func (x *world) loop() error {
	for i := range x.w.Jobs {
		x.events = append(x.events, event{at: x.w.Jobs[i].Arrives, kind: jobArrives, job: i})
	}
	heap.Init(&x.events)
	for len(x.events) > 0 {
		if x.opt.Until > 0 && x.events[0].at > x.opt.Until {
			break
		}
		x.now = x.events[0].at
		x.meter.observe(x)
		for len(x.events) > 0 && x.events[0].at == x.now {
			if err := x.happen(heap.Pop(&x.events).(event)); err != nil {
				return err
			}
		}
		if err := x.pass(); err != nil {
			return err
		}
	}
	return nil
}

func (x *world) happen(e event) error {
	switch e.kind {
	case jobArrives:
		x.report.arrived(e.job, x.now)
		x.enqueue(e.job)
	case jobEnds:
		if x.state[e.job] != running || x.runs[e.job] != e.run {
			return nil // it was preempted meanwhile
		}
		x.finish(e.job, ended)
	case wakeUp:
		x.nextID = 0
	}
	return nil
}

func (x *world) enqueue(job int) {
	x.state[job] = waiting
	s := x.w.Jobs[job].session(job, epoch)
	if x.open[job] > 0 {
		s.Waiting = fmt.Sprintf("it waits for %d other jobs", x.open[job])
	}
	x.cluster.Enqueue(groupName, s)
}

// finish takes a running job away.
func (x *world) finish(job int, as jobState) {
	x.meter.book(x, job)
	x.state[job] = as
	x.ledger.release(job)
	x.report.ended(job, x.now)
	x.cluster.Remove(sessionID(job))
	if as != ended {
		return
	}
	for _, other := range x.after[x.w.Jobs[job].Name] {
		if x.open[other]--; x.open[other] == 0 && x.state[other] == waiting {
			x.enqueue(other)
		}
	}
}

// pass lets the scheduler decide until it has nothing more to say at this instant.
func (x *world) pass() error {
	for {
		began := x.stopwatch()
		result, err := x.cluster.Pass(groupName, epoch.Add(x.now), scheduler.Work{})
		if err != nil {
			return err
		}
		x.report.passed(x.stopwatch().Sub(began))
		preempted := false
		for _, d := range result.Decisions {
			job, err := strconv.Atoi(string(d.Session))
			if err != nil || x.state[job] != waiting {
				return fmt.Errorf("at %s: session %s was decided about and does not wait", x.now, d.Session)
			}
			for _, victim := range d.Preempt {
				v, err := strconv.Atoi(string(victim))
				if err != nil || x.state[v] != running || x.w.Jobs[v].Priority >= x.w.Jobs[job].Priority || !x.w.Jobs[v].Preemptible {
					return fmt.Errorf("at %s: session %s is no victim for %s", x.now, victim, d.Session)
				}
				preempted = true
				x.report.preempted(v)
				if x.w.Group.Preemption.Reschedule {
					x.finish(v, waiting)
					x.enqueue(v)
				} else {
					x.finish(v, ended)
				}
			}
			if d.Hold == nil {
				if err := x.start(job, d); err != nil {
					return err
				}
			}
		}
		if !result.More && !preempted {
			x.wake(result.Wake)
			return nil
		}
	}
}

func (x *world) start(job int, d scheduler.Decision) error {
	if err := x.ledger.take(job, d.Placements); err != nil {
		return fmt.Errorf("at %s: job %s: %v", x.now, x.w.Jobs[job].Name, err)
	}
	x.state[job] = running
	x.runs[job]++
	for k, p := range d.Placements {
		x.report.started(Start{At: x.now, Job: job, Kernel: k, Node: string(p.Agent), GPUs: devices(p.Allocation)})
	}
	if runs := x.w.Jobs[job].Runs; runs >= 0 {
		heap.Push(&x.events, event{at: x.now + runs, kind: jobEnds, job: job, run: x.runs[job]})
	}
	return nil
}

func (x *world) wake(at time.Time) {
	if at.IsZero() {
		return
	}
	due := max(at.Sub(epoch), x.now+time.Millisecond)
	if x.nextID == 0 || due < x.nextID {
		x.nextID = due
		heap.Push(&x.events, event{at: due, kind: wakeUp})
	}
}

func (x *world) stopwatch() time.Time {
	if x.opt.Stopwatch == nil {
		return time.Time{}
	}
	return x.opt.Stopwatch()
}

// inOrder is the experiment of the published packing studies.
func (x *world) inOrder() error {
	for job := range x.w.Jobs {
		x.now = x.w.Jobs[job].Arrives
		x.report.arrived(job, x.now)
		x.enqueue(job)
		if err := x.pass(); err != nil {
			return err
		}
		if x.state[job] == waiting {
			if node := x.ledger.fits(&x.w.Jobs[job]); node != "" {
				return fmt.Errorf("job %s was refused although it fits %s", x.w.Jobs[job].Name, node)
			}
			x.state[job] = refused
			x.cluster.Remove(sessionID(job))
			x.report.started(Start{At: x.now, Job: job})
		}
		x.report.point(x)
	}
	return nil
}

// devices lists the accelerators of an allocation in order.
func devices(a alloc.Allocation) []int {
	var out []int
	for id := range a[SlotGPU] {
		if i, err := strconv.Atoi(id); err == nil {
			out = append(out, i)
		}
	}
	slices.Sort(out)
	return out
}
