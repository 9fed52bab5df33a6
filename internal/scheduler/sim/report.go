package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"math"
	"slices"
	"sort"
	"strings"
	"time"
)

// Report is what a simulation found. Times are in seconds of virtual time, pass times in
// milliseconds of real time.
type Report struct {
	Jobs    int `json:"jobs"`
	Started int `json:"started"`
	Ended   int `json:"ended"`
	Refused int `json:"refused"`
	Waiting int `json:"waiting"`
	// Preempted counts interruptions, not jobs.
	Preempted int `json:"preempted"`
	// Offered shows the allocation of accelerators as load arrives (in order only).
	Offered []Load `json:"offered,omitempty"`
	// Refusals per class of request (in order only).
	Refusals []Refusal `json:"refusals,omitempty"`
	// Allocation is the mean share of accelerators (of cores where there are none) in use from the first arrival to the
	// last event.
	Allocation float64 `json:"allocation"`
	// Fragmentation is the part of free accelerators at the end that a typical request could not use.
	Fragmentation float64 `json:"fragmentation"`
	Makespan      float64 `json:"makespan_s"`
	// Waits of the jobs that started, by class, and "all".
	Waits []Wait `json:"waits"`
	// Fairness is Jain's index over users of the part of their jobs' presence (from arrival to end)
	// in which these ran, weighted by size: 1 when all users waited alike.
	Fairness float64 `json:"fairness"`
	Users    []User  `json:"users,omitempty"`
	Passes   Passes  `json:"passes"`
	// Trace is a digest of every start: equal digests are equal simulations.
	Trace string `json:"trace"`

	starts []Start
	jobs   []Job
}

// Load is the allocation while the arrived load rounds to Percent of capacity: the mean over
// the jobs of that point, as published (README of the openb judge).
type Load struct {
	Percent   int     `json:"percent"`
	Allocated float64 `json:"allocated_percent"`
	// Unusable is the fragmentation at the last job of the point.
	Unusable float64 `json:"unusable_of_free"`
}

// Refusal counts one class of requests.
type Refusal struct {
	Class   string `json:"class"`
	Arrived int    `json:"arrived"`
	Refused int    `json:"refused"`
	// First is the offered load in per cent at the first refusal; 0 when there was none.
	First float64 `json:"first_at_percent"`
}

// Wait is the distribution of waiting times.
type Wait struct {
	Class string  `json:"class"`
	Jobs  int     `json:"jobs"`
	Mean  float64 `json:"mean_s"`
	P50   float64 `json:"p50_s"`
	P95   float64 `json:"p95_s"`
	Max   float64 `json:"max_s"`
}

// User is what one user got.
type User struct {
	Name string `json:"name"`
	// Received is what its jobs held, Present what they would have held had they started at once
	// and ended when they did; in accelerator (else core) hours.
	Received float64 `json:"received_hours"`
	Present  float64 `json:"present_hours"`
	MeanWait float64 `json:"mean_wait_s"`
}

// Passes describes how long the scheduler thought.
type Passes struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
	// PerJob is all passes over all jobs.
	PerJob float64 `json:"per_job_ms"`
}

// recorder gathers a report.
type recorder struct {
	w        *Workload
	opt      Options
	typical  []share
	starts   []Start
	trace    hash.Hash
	arrivals []time.Duration
	begun    []time.Duration
	waited   []time.Duration // summed over starts
	tries    []int
	enqueued []time.Duration
	finished int
	evicted  int
	passes   []time.Duration
	got      []float64 // thousandths × seconds, per job

	offered   int64 // thousandths that arrived
	points    []Load
	sum       float64
	count     int
	usage     float64 // thousandths × seconds
	lastAt    time.Duration
	lastUsed  float64
	hasGPUs   bool
	classes   map[string]*Refusal
	capacity  float64
	classKeys []string
}

func newRecorder(w *Workload, opt Options) *recorder {
	n := len(w.Jobs)
	r := &recorder{
		w:        w,
		opt:      opt,
		trace:    sha256.New(),
		arrivals: make([]time.Duration, n),
		begun:    make([]time.Duration, n),
		waited:   make([]time.Duration, n),
		tries:    make([]int, n),
		enqueued: make([]time.Duration, n),
		got:      make([]float64, n),
		classes:  map[string]*Refusal{},
	}
	for _, node := range w.Nodes {
		r.hasGPUs = r.hasGPUs || node.GPUs > 0
	}
	for _, node := range w.Nodes {
		if r.hasGPUs {
			r.capacity += float64(node.GPUs) * 1000
		} else {
			r.capacity += float64(node.CPU)
		}
	}
	typical := opt.History
	if len(typical) == 0 {
		typical = w.Jobs
	}
	r.typical = typicalOf(typical)
	return r
}

// weight is what a job holds while it runs, in thousandths of accelerators, else of cores.
func (r *recorder) weight(job int) float64 {
	if r.hasGPUs {
		return float64(r.w.Jobs[job].gpuMilli())
	}
	return float64(r.w.Jobs[job].CPU) * float64(max(r.w.Jobs[job].Kernels, 1))
}

func (r *recorder) class(job int) *Refusal {
	name := r.w.Jobs[job].class()
	c := r.classes[name]
	if c == nil {
		c = &Refusal{Class: name}
		r.classes[name] = c
		r.classKeys = append(r.classKeys, name)
	}
	return c
}

func (r *recorder) arrived(job int, now time.Duration) {
	r.advance(now)
	r.arrivals[job], r.enqueued[job] = now, now
	r.offered += r.w.Jobs[job].gpuMilli()
	r.class(job).Arrived++
}

// advance integrates the use up to now.
func (r *recorder) advance(now time.Duration) {
	r.usage += r.lastUsed * (now - r.lastAt).Seconds()
	r.lastAt = now
}

func (r *recorder) started(s Start) {
	fmt.Fprintf(r.trace, "%d %d %d %s %v\n", s.At, s.Job, s.Kernel, s.Node, s.GPUs)
	r.starts = append(r.starts, s)
	if s.Node == "" {
		c := r.class(s.Job)
		if c.Refused++; c.Refused == 1 {
			c.First = 100 * float64(r.offered) / r.capacity
		}
		return
	}
	if s.Kernel > 0 {
		return
	}
	r.advance(s.At)
	r.lastUsed += r.weight(s.Job)
	r.begun[s.Job] = s.At
	r.waited[s.Job] += s.At - r.enqueued[s.Job]
	r.tries[s.Job]++
}

func (r *recorder) ended(job int, now time.Duration) {
	r.advance(now)
	r.lastUsed -= r.weight(job)
	r.got[job] += r.weight(job) * (now - r.begun[job]).Seconds()
	r.enqueued[job] = now
	r.finished++
}

func (r *recorder) preempted(int) { r.evicted++; r.finished-- }

func (r *recorder) passed(d time.Duration) { r.passes = append(r.passes, d) }

// point adds the state after one job of an ordered list.
func (r *recorder) point(x *world) {
	if !r.hasGPUs {
		return
	}
	percent := int(math.RoundToEven(100 * float64(r.offered) / r.capacity))
	if n := len(r.points); n == 0 || r.points[n-1].Percent != percent {
		r.closePoint(x)
		r.points = append(r.points, Load{Percent: percent})
	}
	r.sum += math.RoundToEven(10000*float64(x.ledger.gpu)/r.capacity) / 100
	r.count++
}

func (r *recorder) closePoint(x *world) {
	if n := len(r.points); n > 0 && r.count > 0 {
		p := &r.points[n-1]
		p.Allocated = math.RoundToEven(100*r.sum/float64(r.count)) / 100
		if p.Percent%5 == 0 {
			p.Unusable = round(x.ledger.unusable(r.typical), 4)
		}
	}
	r.sum, r.count = 0, 0
}

func (r *recorder) finish(x *world) *Report {
	r.advance(x.now)
	r.closePoint(x)
	out := &Report{Jobs: len(r.w.Jobs), Ended: r.finished, Preempted: r.evicted, Makespan: x.now.Seconds(), starts: r.starts, jobs: r.w.Jobs,
		Trace: hex.EncodeToString(r.trace.Sum(nil))}
	for i := range r.w.Jobs {
		if r.tries[i] > 0 {
			out.Started++
		}
		switch x.state[i] {
		case refused:
			out.Refused++
		case waiting:
			out.Waiting++
		case running:
			r.got[i] += r.weight(i) * (x.now - r.begun[i]).Seconds()
		}
	}
	if x.now > 0 && r.capacity > 0 {
		out.Allocation = round(r.usage/(r.capacity*x.now.Seconds()), 4)
	}
	out.Fragmentation = round(x.ledger.unusable(r.typical), 4)
	for _, p := range r.points {
		if p.Percent%5 == 0 {
			out.Offered = append(out.Offered, p)
		}
	}
	if r.opt.InOrder {
		slices.Sort(r.classKeys)
		for _, k := range r.classKeys {
			c := *r.classes[k]
			c.First = round(c.First, 1)
			out.Refusals = append(out.Refusals, c)
		}
	} else {
		out.Waits = r.waits()
		out.Users, out.Fairness = r.users(x)
	}
	out.Passes = describePasses(r.passes, len(r.w.Jobs))
	return out
}

func (r *recorder) waits() []Wait {
	by := map[string][]float64{}
	for i := range r.w.Jobs {
		if r.tries[i] > 0 {
			w := r.waited[i].Seconds()
			by["all"] = append(by["all"], w)
			by[r.w.Jobs[i].class()] = append(by[r.w.Jobs[i].class()], w)
		}
	}
	var out []Wait
	for class, all := range by {
		slices.Sort(all)
		out = append(
			out,
			Wait{
				Class: class,
				Jobs:  len(all),
				Mean:  round(mean(all), 3),
				P50:   round(quantile(all, 0.5), 3),
				P95:   round(quantile(all, 0.95), 3),
				Max:   all[len(all)-1],
			},
		)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Class < out[j].Class })
	return out
}

// users compares what each user's jobs held with what they would have held without waiting.
func (r *recorder) users(x *world) ([]User, float64) {
	by := map[string]*User{}
	count := map[string]int{}
	for i := range r.w.Jobs {
		j := &r.w.Jobs[i]
		u := by[j.User]
		if u == nil {
			u = &User{Name: j.User}
			by[j.User] = u
		}
		end := x.now
		if x.state[i] == ended {
			end = r.enqueued[i]
		}
		u.Present += r.weight(i) * max(0, end-j.Arrives).Seconds() / 3.6e6
		u.Received += r.got[i] / 3.6e6
		if r.tries[i] > 0 {
			u.MeanWait += r.waited[i].Seconds()
			count[j.User]++
		}
	}
	var out []User
	sum, squares := 0.0, 0.0
	for name, u := range by {
		if count[name] > 0 {
			u.MeanWait = round(u.MeanWait/float64(count[name]), 3)
		}
		ratio := 1.0
		if u.Present > 0 {
			ratio = u.Received / u.Present
		}
		u.Present, u.Received = round(u.Present, 4), round(u.Received, 4)
		out = append(out, *u)
		sum, squares = sum+ratio, squares+ratio*ratio
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	if squares == 0 {
		return out, 1
	}
	return out, round(sum*sum/(float64(len(by))*squares), 4)
}

func describePasses(all []time.Duration, jobs int) Passes {
	p := Passes{Count: len(all)}
	if len(all) == 0 {
		return p
	}
	ms := make([]float64, len(all))
	total := 0.0
	for i, d := range all {
		ms[i] = d.Seconds() * 1000
		total += ms[i]
	}
	slices.Sort(ms)
	p.Mean, p.P99, p.Max = round(total/float64(len(ms)), 4), round(quantile(ms, 0.99), 4), round(ms[len(ms)-1], 4)
	p.PerJob = round(total/float64(max(jobs, 1)), 4)
	return p
}

// Placements renders one line per job and kernel in the order of arrival: name,node,gpu-gpu-…;
// node and GPUs are empty where the job never started. A job that started again shows its last place.
func (r *Report) Placements() string {
	type key struct{ job, kernel int }
	last := map[key]Start{}
	for _, s := range r.starts {
		last[key{s.Job, s.Kernel}] = s
	}
	var b strings.Builder
	for i := range r.jobs {
		for k := range max(r.jobs[i].Kernels, 1) {
			s := last[key{i, k}]
			b.WriteString(r.jobs[i].Name + "," + s.Node + ",")
			for n, g := range s.GPUs {
				if n > 0 {
					b.WriteByte('-')
				}
				fmt.Fprint(&b, g)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// quantile of sorted values, by the nearest rank.
func quantile(v []float64, q float64) float64 {
	return v[min(len(v)-1, max(0, int(math.Ceil(q*float64(len(v))))-1))]
}

func round(x float64, digits int) float64 {
	f := math.Pow10(digits)
	return math.RoundToEven(x*f) / f
}
