package scheduler

import (
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/option"
	"berth.dev/berth/internal/scheduler/packing"
)

// leastFragmentation takes the agent that loses least of what it could still do for typical requests, see package packing. What is
// typical it learns from the sessions that are enqueued, or from a list.
type leastFragmentation struct {
	policy   *packing.Policy
	workload packing.Workload
	typical  bool // learnt from a list: arrivals no longer count
	arrivals int  // since the policy learnt
	learnt   int  // arrivals that the policy has learnt from
	dirty    bool
	surveyed int    // search.position at the last survey, -1 before the first
	facts    uint64 // search.facts at the last survey
	memo     []memo
	node     packing.Node
	free     [packing.MaxGPUs]int32
	models   map[int32]uint8
}

// The policy learns anew when arrivals have grown by half, between these bounds.
const (
	firstLesson = 16
	lastLesson  = 1 << 14
	// memory is the number of arrivals after which one counts half.
	memory = 1 << 15
)

func newLeastFragmentation(o *option.Reader) (strategy, error) {
	l := &leastFragmentation{models: map[int32]uint8{}}
	l.workload.HalfLife = o.Number("memory", memory, 16, 1e9)
	p, err := packing.New(&l.workload, packing.Options{
		Sequences: int(o.Number("sequences", 0, 1, 1024)), Length: int(o.Number("length", 0, 1, 1024)),
	})
	l.policy = p
	return l, err
}

// Epoch changes when scores of before no longer compare with those of now.
func (l *leastFragmentation) Epoch() uint64 { return l.policy.Epoch() }

// Turns is false: equal scores go by id.
func (l *leastFragmentation) Turns() bool { return false }

// memo is the score of a shape for a state of an agent at an epoch of the policy.
type memo struct {
	shape *shape
	state uint64
	epoch uint64
	score int64
}

// memos is the size of the memory of scores, a power of two.
const memos = 1 << 16

// Score is the loss. Where package packing knows nothing of the request, it is the score of pack, which is larger than every loss.
// Many agents have equal free vectors: one of them is scored and the score remembered.
func (l *leastFragmentation) Score(v *view) int64 {
	if l.memo == nil {
		l.memo = make([]memo, memos)
	}
	key := memo{shape: v.w.s, state: v.agent.fingerprint(), epoch: l.policy.Epoch()}
	m := &l.memo[(key.state^v.w.s.id*0x9e3779b97f4a7c15>>32)%memos]
	if m.shape == key.shape && m.state == key.state && m.epoch == key.epoch {
		return m.score
	}
	*m = key
	m.score = 1<<60 + pack{}.Score(v)>>2
	if c, ok := l.choice(v); ok {
		m.score = c.Loss
	}
	return m.score
}

// fingerprint is a number that agents with the same devices and the same free vector share.
func (a *agent) fingerprint() uint64 {
	if a.fingerprintAt == a.version {
		return a.fingerprintIs
	}
	h := uint64(14695981039346656037)
	add := func(x uint64) {
		h ^= x
		h *= 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	for slot, v := range a.room {
		if a.total[slot] > 0 {
			add(uint64(slot))
			add(uint64(v))
		}
	}
	if own, from := a.gpus(); own >= 0 {
		_, _, _, to := a.topo.Slot(a.sectionOf(own))
		add(uint64(own)<<32 | uint64(a.model))
		for d := from; d < to; d++ {
			add(uint64(a.free[d]))
			add(uint64(a.whole[d]))
		}
	}
	a.fingerprintAt, a.fingerprintIs = a.version, h
	return h
}

// Pick is the device that a share goes to.
func (l *leastFragmentation) Pick(v *view) int {
	c, ok := l.choice(v)
	if !ok || c.GPU < 0 {
		return -1
	}
	_, from := v.agent.gpus()
	return from + c.GPU
}

func (l *leastFragmentation) choice(v *view) (packing.Choice, bool) {
	r, slot, ok := l.request(v.w.in, v.w.s)
	if !ok || !l.describe(v.w.in, v.agent, slot) {
		return packing.Choice{}, false
	}
	return l.policy.Score(&l.node, &r)
}

// gpus finds the slot with the most accelerators, -1 when there are none, and its first device.
func (a *agent) gpus() (slot int32, from int) {
	slot, most := int32(-1), 0
	for i, s := range a.slot {
		name, rule, first, to := a.topo.Slot(i)
		if accelerates(name) && rule != alloc.Bulk && to-first > most {
			slot, from, most = s, first, to-first
		}
	}
	return slot, from
}

// describe fills l.node with what an agent has left; slot is that of the accelerators that are
// asked for, -1 when none are.
func (l *leastFragmentation) describe(in *search, a *agent, slot int32) bool {
	own, from := a.gpus()
	if slot >= 0 && slot != own {
		return false
	}
	n := &l.node
	n.CPU, n.Mem, n.GPUs, n.Model = int64(a.roomOf(in.cluster.cpu)), int64(a.roomOf(in.cluster.mem)/cluster.Milli)>>20, l.free[:0], 0
	if own < 0 {
		return true
	}
	_, _, _, to := a.topo.Slot(a.sectionOf(own))
	if to-from > packing.MaxGPUs {
		return false
	}
	for d := from; d < to; d++ {
		f := a.topo.Left(a.free, d)
		if c := a.topo.Device(d).Capacity; c != cluster.Milli && c > 0 {
			f = f * cluster.Milli / c
		}
		n.GPUs = append(n.GPUs, int32(f))
	}
	n.Model = l.model(a.model)
	return true
}

// model numbers a model below 64; those beyond share the last number.
func (l *leastFragmentation) model(name int32) uint8 {
	n, ok := l.models[name]
	if !ok {
		n = uint8(min(len(l.models), 63))
		l.models[name] = n
	}
	return n
}

// request turns a shape into a request of the policy; false when it has none like it.
func (l *leastFragmentation) request(in *search, sh *shape) (r packing.Request, slot int32, ok bool) {
	slot = -1
	for i := range sh.requests {
		q := &sh.requests[i]
		for _, w := range q.wants {
			switch w.slot {
			case in.cluster.cpu:
				r.CPU += int64(w.amount)
			case in.cluster.mem:
				r.Mem += int64(w.amount/cluster.Milli) >> 20
			default:
				if slot >= 0 && slot != w.slot || r.GPUs > 0 && (w.amount < cluster.Milli || r.Milli < packing.Whole) {
					return r, slot, false
				}
				slot = w.slot
				r.GPUs += int((w.amount + cluster.Milli - 1) / cluster.Milli)
				r.Milli = packing.Whole
				if w.amount < cluster.Milli {
					r.Milli = int32(w.amount)
				}
			}
		}
		for _, name := range q.models {
			r.Models |= 1 << l.model(in.cluster.models.of(name))
		}
	}
	return r, slot, r.GPUs <= packing.MaxGPUs
}

// Learn counts an arrival.
func (l *leastFragmentation) Learn(w *wanted, typical bool) {
	switch {
	case typical && !l.typical:
		l.typical, l.workload = true, packing.Workload{}
	case !typical && l.typical:
		return
	}
	if r, _, ok := l.request(w.in, w.s); ok && r.CPU >= 0 && r.Mem >= 0 && r.GPUs >= 0 {
		l.workload.Add(r)
		l.arrivals++
		l.dirty = l.dirty || typical
	}
}

// Settle learns when enough has arrived, and looks at what is scarce when enough has changed.
func (l *leastFragmentation) Settle(in *search) {
	if l.dirty || !l.typical && l.arrivals >= min(max(firstLesson, l.learnt/2), lastLesson) {
		l.learnt += l.arrivals
		l.arrivals, l.dirty = 0, false
		l.policy.Learn(&l.workload)
		l.surveyed = -1
	}
	at := in.position()
	seldom := max(8, len(in.agents)/16, len(in.cache)*len(in.agents)/2000) // changes between two surveys
	if l.workload.Len() == 0 || l.surveyed >= 0 && l.facts == in.facts && at-l.surveyed < seldom {
		return
	}
	l.surveyed, l.facts = at, in.facts
	l.policy.Survey(func(yield func(*packing.Node) bool) {
		for _, a := range in.agents {
			if a.usable() && l.describe(in, a, -1) && !yield(&l.node) {
				return
			}
		}
	})
	in.steps += len(in.agents) / 4
}
