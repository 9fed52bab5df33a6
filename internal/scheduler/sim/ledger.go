package sim

import (
	"fmt"
	"slices"
	"strconv"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// ledger is the simulator's own account of what every node has left. It shares no code with
// the scheduler, so that it can be its witness.
type ledger struct {
	w     *Workload
	nodes []room
	at    map[string]int
	held  map[int][]hold // job to what its kernels hold
	use   map[scheduler.Scope]scheduler.Usage
	// gpu is the total of used thousandths, capacity of all there are.
	gpu, capacity int64
}

type room struct {
	cpu, mem int64 // thousandths of cores, MiB
	gpus     []int64
}

type hold struct {
	node int
	gpus []int
}

func newLedger(w *Workload) *ledger {
	l := &ledger{w: w, at: map[string]int{}, held: map[int][]hold{}, use: map[scheduler.Scope]scheduler.Usage{}}
	for i, n := range w.Nodes {
		r := room{cpu: n.CPU, mem: n.Mem, gpus: make([]int64, n.GPUs)}
		for g := range r.gpus {
			r.gpus[g] = cluster.Milli
		}
		l.nodes, l.at[n.Name] = append(l.nodes, r), i
		l.capacity += int64(n.GPUs) * cluster.Milli
	}
	return l
}

// take books the placements of a job. The error names the rule that they break.
func (l *ledger) take(job int, placements []scheduler.Placement) error {
	j := &l.w.Jobs[job]
	if len(placements) != max(j.Kernels, 1) {
		return fmt.Errorf("%d of %d kernels were placed", len(placements), max(j.Kernels, 1))
	}
	for k, p := range placements {
		at, ok := l.at[string(p.Agent)]
		if !ok {
			return fmt.Errorf("kernel %d was placed on %q, which does not exist", k, p.Agent)
		}
		if j.SingleNode && p.Agent != placements[0].Agent {
			return fmt.Errorf("kernel %d is apart from the first", k)
		}
		n := &l.nodes[at]
		if n.cpu -= j.CPU; n.cpu < 0 {
			return fmt.Errorf("node %s has %d thousandths of cores too few", p.Agent, -n.cpu)
		}
		if n.mem -= j.Mem; n.mem < 0 {
			return fmt.Errorf("node %s has %d MiB too few", p.Agent, -n.mem)
		}
		if j.GPUs > 0 && len(j.Models) > 0 && !slices.Contains(j.Models, l.w.Nodes[at].Model) {
			return fmt.Errorf("node %s has %s, %v was asked for", p.Agent, l.w.Nodes[at].Model, j.Models)
		}
		chosen := devices(p.Allocation)
		if len(chosen) != j.GPUs {
			return fmt.Errorf("%d accelerators were chosen, %d asked for", len(chosen), j.GPUs)
		}
		for _, g := range chosen {
			if p.Allocation[SlotGPU][strconv.Itoa(g)] != cluster.Amount(j.Milli) {
				return fmt.Errorf("accelerator %d of %s gives another part than was asked for", g, p.Agent)
			}
			if g >= len(n.gpus) || n.gpus[g] < j.Milli {
				return fmt.Errorf("accelerator %d of %s is over its capacity", g, p.Agent)
			}
			n.gpus[g] -= j.Milli
		}
		l.held[job] = append(l.held[job], hold{at, chosen})
	}
	l.gpu += j.gpuMilli()
	return l.count(j, 1)
}

// count books the job against its owners and checks their quotas.
func (l *ledger) count(j *Job, sign int64) error {
	if len(l.w.Quotas) == 0 {
		return nil
	}
	s := j.session(0, epoch)
	for _, scope := range s.Owner.Scopes() {
		u := l.use[scope]
		if u.Slots == nil {
			u.Slots = cluster.Slots{}
		}
		u.Sessions += int(sign)
		for _, k := range s.Kernels {
			for slot, v := range k.Slots {
				u.Slots[slot] += v * cluster.Amount(sign)
			}
		}
		l.use[scope] = u
		q, limited := l.w.Quotas[scope]
		if !limited || sign < 0 {
			continue
		}
		if q.Sessions >= 0 && u.Sessions > q.Sessions {
			return fmt.Errorf("%s %s runs %d sessions, %d are allowed", scope.Kind, scope.ID, u.Sessions, q.Sessions)
		}
		for slot, limit := range q.Slots {
			if s.Kernels[0].Slots[slot] > 0 && u.Slots[slot] > limit {
				return fmt.Errorf("%s %s holds %s %s, %s is allowed", scope.Kind, scope.ID, u.Slots[slot], slot, limit)
			}
		}
	}
	return nil
}

// release gives back what a job held.
func (l *ledger) release(job int) {
	j := &l.w.Jobs[job]
	for _, h := range l.held[job] {
		n := &l.nodes[h.node]
		n.cpu, n.mem = n.cpu+j.CPU, n.mem+j.Mem
		for _, g := range h.gpus {
			n.gpus[g] += j.Milli
		}
	}
	delete(l.held, job)
	l.gpu -= j.gpuMilli()
	_ = l.count(j, -1) // giving back breaks no quota
}

// fits names a node that has room for a job of one kernel; "" when none has.
func (l *ledger) fits(j *Job) string {
	if j.Kernels > 1 {
		return ""
	}
	for i := range l.nodes {
		if l.room(i, j) {
			return l.w.Nodes[i].Name
		}
	}
	return ""
}

func (l *ledger) room(i int, j *Job) bool {
	n := &l.nodes[i]
	if n.cpu < j.CPU || n.mem < j.Mem || len(n.gpus) < j.GPUs {
		return false
	}
	if j.GPUs == 0 {
		return true
	}
	if len(j.Models) > 0 && !slices.Contains(j.Models, l.w.Nodes[i].Model) {
		return false
	}
	found := 0
	for _, free := range n.gpus {
		if free >= j.Milli {
			found++
		}
	}
	return found >= j.GPUs
}

// unusable is the fragmentation of the published studies (F of FGD, USENIX ATC 2023): the part
// of all free accelerator thousandths that a request drawn from the typical ones could not use
// where they are, averaged over the typical requests.
func (l *ledger) unusable(typical []share) float64 {
	total, free := 0.0, 0.0
	for i := range l.nodes {
		n := &l.nodes[i]
		for _, g := range n.gpus {
			free += float64(g)
		}
		for _, t := range typical {
			total += t.weight * float64(l.lost(i, &t.job))
		}
	}
	if free == 0 {
		return 0
	}
	return total / free
}

// lost is how many free thousandths of a node a request cannot use.
func (l *ledger) lost(i int, j *Job) int64 {
	n := &l.nodes[i]
	sum, small := int64(0), int64(0)
	for _, g := range n.gpus {
		sum += g
		if j.GPUs > 0 && g < j.Milli {
			small += g
		}
	}
	if j.GPUs == 0 || !l.room(i, j) {
		return sum
	}
	return small
}

// share is a typical request with its frequency.
type share struct {
	job    Job
	weight float64
}

// typicalOf finds the most frequent requests of a list that together make 95 % of it.
func typicalOf(jobs []Job) []share {
	count := map[string]int{}
	first := map[string]Job{}
	var keys []string
	for _, j := range jobs {
		key := fmt.Sprint(j.CPU, j.GPUs, j.Milli, j.Models)
		if count[key]++; count[key] == 1 {
			first[key] = j
			keys = append(keys, key)
		}
	}
	slices.SortStableFunc(keys, func(a, b string) int { return count[b] - count[a] })
	var out []share
	seen := 0
	for _, key := range keys {
		if float64(seen) >= 0.95*float64(len(jobs)) {
			break
		}
		seen += count[key]
		j := first[key]
		j.Mem = 0
		out = append(out, share{j, float64(count[key])})
	}
	for i := range out {
		out[i].weight /= float64(seen)
	}
	return out
}
