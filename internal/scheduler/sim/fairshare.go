package sim

import (
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/fairshare"
)

// observeEvery is how often use is measured and told to the scheduler, as a leader does.
const observeEvery = 5 * time.Minute

// meter accounts the use of owners for the fair-share order.
type meter struct {
	decay    fairshare.Decay
	capacity cluster.Slots
	since    time.Duration
	buckets  map[scheduler.Scope][]fairshare.Bucket
	scopes   []scheduler.Scope // in order of first use
}

// newMeter returns nil where the order does not ask for past use.
func newMeter(w *Workload) (*meter, error) {
	if w.Group.Order != "fair-share" {
		return nil, nil
	}
	decay, err := fairshare.Parse(w.Group.OrderOptions)
	if err != nil {
		return nil, err
	}
	m := &meter{decay: decay, capacity: cluster.Slots{}, buckets: map[scheduler.Scope][]fairshare.Bucket{}}
	for _, n := range w.Nodes {
		m.capacity[cluster.SlotCPU] += cluster.Amount(n.CPU)
		m.capacity[cluster.SlotMem] += cluster.Whole(n.Mem << 20)
		m.capacity[SlotGPU] += cluster.Amount(n.GPUs * cluster.Milli)
	}
	return m, nil
}

// observe books what runs and tells the scheduler everybody's share.
func (m *meter) observe(x *world) {
	if m == nil || x.now-m.since < observeEvery {
		return
	}
	for job := range x.w.Jobs {
		if x.state[job] == running {
			m.book(x, job)
		}
	}
	m.since = x.now
	for _, scope := range m.scopes {
		x.cluster.SetShare(groupName, scope, m.decay.Share(epoch.Add(x.now), m.capacity, m.buckets[scope], 0))
	}
}

// book adds what a running job used since the last observation.
func (m *meter) book(x *world, job int) {
	if m == nil {
		return
	}
	seconds := (x.now - max(m.since, x.report.begun[job])).Seconds()
	s := x.w.Jobs[job].session(job, epoch)
	for _, scope := range s.Owner.Scopes() {
		if scope.Kind == scheduler.ScopeKeypair {
			continue
		}
		used := m.bucket(scope, x.now)
		for _, k := range s.Kernels {
			for slot, v := range k.Slots {
				used[slot] += float64(v) * seconds
			}
		}
	}
}

// bucket is the use of an owner in the present unit of time.
func (m *meter) bucket(scope scheduler.Scope, now time.Duration) map[cluster.SlotName]float64 {
	start := epoch.Add(now.Truncate(m.decay.Unit))
	all := m.buckets[scope]
	if all == nil {
		m.scopes = append(m.scopes, scope)
	}
	if len(all) == 0 || !all[len(all)-1].Start.Equal(start) {
		all = slices.DeleteFunc(all, func(b fairshare.Bucket) bool { return start.Sub(b.Start) > m.decay.Lookback+m.decay.Unit })
		all = append(all, fairshare.Bucket{Start: start, Used: map[cluster.SlotName]float64{}})
		m.buckets[scope] = all
	}
	return all[len(all)-1].Used
}
