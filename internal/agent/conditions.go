package agent

import (
	"fmt"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/kernellog"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// health is what one scan finds out about this host.
type health struct {
	// engine and network say why no session can run or be connected; nil when they can.
	engine, network error
	// unguarded says what keeps sessions from being guarded from each other and from this host, although they run.
	unguarded []string
	// disk says why no more kernels should come for want of disk; "" when they may.
	disk string
	// hung are the volumes that do not answer here.
	hung []string
	// log is what the kernel's log tells.
	log []kernellog.Event
	// skew is by how much this host's clock is ahead of the managers'; known says whether that was heard.
	skew  time.Duration
	known bool
}

// maxSkew is by how much clocks may differ without a word about it.
const maxSkew = 10 * time.Second

// conditionsOf are the conditions that follow from a look at the host. Times are left to the caller.
func conditionsOf(h health) []cluster.Condition {
	var out []cluster.Condition
	add := func(kind cluster.ConditionType, reason, message string, blocks bool) {
		out = append(out, cluster.Condition{Type: kind, Reason: reason, Message: message, Blocks: blocks})
	}
	if h.engine != nil {
		add(cluster.ConditionEngine, "engine-unavailable", words(h.engine), true)
	}
	if h.network != nil {
		add(cluster.ConditionNetwork, "network-broken", words(h.network), true)
	}
	for _, text := range h.unguarded {
		add(cluster.ConditionNetwork, "network-not-guarded", text, false)
	}
	if h.disk != "" {
		add(cluster.ConditionDisk, "disk-low", h.disk, true)
	}
	for _, volume := range h.hung {
		add(cluster.ConditionVolume, "hung:"+volume,
			"the volume "+volume+" does not answer here; sessions with folders of it start elsewhere", false)
	}
	if d := h.skew.Abs(); h.known && d > maxSkew {
		way := "ahead of"
		if h.skew < 0 {
			way = "behind"
		}
		add(cluster.ConditionClock, "clock-differs", fmt.Sprintf("the clock of this host is %s %s that of the manager; set it by NTP",
			d.Round(10*time.Second), way), false)
	}
	for _, e := range h.log {
		add(cluster.ConditionKernelLog, e.Kind, "the kernel's log says: "+e.Text, false)
	}
	return out
}

// words is an error with what to do next.
func words(err error) string {
	if next := fault.NextOf(err); next != "" {
		return err.Error() + "; next: " + next
	}
	return err.Error()
}

// sameConditions reports whether there is no news in b.
func sameConditions(a, b []cluster.Condition) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Same(b[i]) || a[i].Message != b[i].Message || a[i].Blocks != b[i].Blocks {
			return false
		}
	}
	return true
}

// skews remembers by how much the newest heartbeats of managers differed from this host's clock. The smallest difference counts: a
// heartbeat may have waited on its way, above all while this process or the whole host was stopped.
type skews struct {
	mu   sync.Mutex
	last [5]time.Duration
	n    int
}

// heard notes a heartbeat.
func (s *skews) heard(sent, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[s.n%len(s.last)] = now.Sub(sent)
	s.n++
}

// now is the difference; known is false before enough heartbeats came.
func (s *skews) now() (skew time.Duration, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n < len(s.last) {
		return 0, false
	}
	skew = s.last[0]
	for _, d := range s.last[1:] {
		if d.Abs() < skew.Abs() {
			skew = d
		}
	}
	return skew, true
}
