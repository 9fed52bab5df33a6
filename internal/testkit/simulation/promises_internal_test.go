package simulation

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// picture is a snapshot that keeps every promise, for tests to spoil: a job and a gang run on two agents, a session waits, and everything
// has been well for an hour.
func picture() *snapshot {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	core := func(device string) string { return `{"cpu":{"` + device + `":1000}}` }
	kernel := func(id, session, agent, device string) kernelRow {
		return kernelRow{ID: id, Session: session, Agent: agent, Generation: 1, Desired: "run", Status: "RUNNING", Allocation: core(device),
			Slots: `{"cpu":1000}`, Changed: now.Add(-time.Hour)}
	}
	host := func(id string) hostState {
		h := hostState{id: id, running: map[string]container{}, starts: map[string]int{}, told: map[string]int64{}, connected: time.Hour,
			calm: time.Hour, up: true}
		for i := range 2 {
			h.devices = append(h.devices, alloc.Device{Slot: cluster.SlotCPU, ID: fmt.Sprint(i), Capacity: cluster.Whole(1), Healthy: true})
		}
		return h
	}
	s := &snapshot{now: now, calm: time.Hour, events: 9, digest: 77, oldDigest: 77,
		sessions: map[string]sessionRow{
			"s-job":  {ID: "s-job", Name: "job", Owner: "ada", Type: "batch", Status: "RUNNING", Size: 1, Result: "UNDEFINED"},
			"s-gang": {ID: "s-gang", Name: "gang", Owner: "bob", Type: "interactive", Status: "RUNNING", Size: 2, Result: "UNDEFINED"},
			"s-wait": {ID: "s-wait", Name: "wait", Owner: "ada", Type: "interactive", Status: "PENDING", Size: 1, Result: "UNDEFINED",
				Info: "no-capacity", Explained: true, Changed: now.Add(-time.Hour)},
			"s-old": {ID: "s-old", Name: "old", Owner: "ada", Type: "batch", Status: "TERMINATED", Size: 1, Result: "SUCCESS"},
		},
		kernels: []kernelRow{kernel("k-job", "s-job", "i-0", "0"), kernel("k-g0", "s-gang", "i-0", "1"), kernel("k-g1", "s-gang", "i-1", "0"),
			{ID: "k-wait", Session: "s-wait", Generation: 1, Desired: "run", Status: "PENDING", Slots: `{"cpu":1000}`},
			{ID: "k-old", Session: "s-old", Agent: "i-1", Generation: 1, Desired: "stop", Status: "TERMINATED", Slots: `{"cpu":1000}`}},
		hosts:   []hostState{host("i-0"), host("i-1")},
		created: map[string]bool{"s-job": true, "s-old": true}, asked: map[string]bool{"s-old": true},
		circuits: map[string]string{"c-gang": "k-g0"}, published: map[string]target{"c-gang": {"k-g0", 1}, "c-old": {"k-old", 1}},
		limits: map[string]limit{"ada": {sessions: 1}, "bob": {cores: 2}}, cores: 3}
	s.kernels[2].Rank = 1
	for _, k := range s.kernels[:3] {
		h := s.host(k.Agent)
		a, _ := alloc.Parse(k.Allocation)
		h.running[k.ID], h.starts[k.ID], h.told[k.ID] = container{1, a}, 1, 1
	}
	return s
}

func (s *snapshot) host(id string) *hostState {
	for i := range s.hosts {
		if s.hosts[i].id == id {
			return &s.hosts[i]
		}
	}
	return nil
}

func (s *snapshot) change(id string, do func(*kernelRow)) {
	for i := range s.kernels {
		if s.kernels[i].ID == id {
			do(&s.kernels[i])
		}
	}
}

func (s *snapshot) session(id string, do func(*sessionRow)) {
	r := s.sessions[id]
	do(&r)
	s.sessions[id] = r
}

// spoiled are changes of the picture that break one promise each, and what is told of them.
var spoiled = []struct {
	rule, told string
	spoil      func(was, is *snapshot)
}{
	{"acknowledged is durable", "session job is gone", func(_, is *snapshot) { delete(is.sessions, "s-job") }},
	{"acknowledged is durable", "session old was TERMINATED SUCCESS and is TERMINATED FAILURE", func(_, is *snapshot) {
		is.session("s-old", func(r *sessionRow) { r.Result = "FAILURE" })
	}},
	{"acknowledged is durable", "session old was TERMINATED SUCCESS and is RUNNING SUCCESS", func(_, is *snapshot) {
		is.session("s-old", func(r *sessionRow) { r.Status = "RUNNING" })
	}},
	{"acknowledged is durable", "the creation of session s-new was acknowledged", func(_, is *snapshot) { is.created["s-new"] = true }},
	{"acknowledged is durable", "the end of session job was acknowledged, and it is RUNNING", func(_, is *snapshot) {
		is.asked["s-job"] = true
	}},
	{"history only grows", "there were 9 events, 2 were added, there are 10", func(_, is *snapshot) { is.added, is.events = 2, 10 }},
	{"history only grows", "an event of the past was changed", func(_, is *snapshot) { is.oldDigest = 78 }},
	{"no over-allocation", `cpu 0 of i-0 is given away 2 times over`, func(_, is *snapshot) {
		is.change("k-g0", func(k *kernelRow) { k.Allocation = `{"cpu":{"0":1000}}` })
	}},
	{"no over-allocation", `its container runs: true`, func(_, is *snapshot) { // the row has ended, its container has not
		h := is.host("i-1")
		h.running["k-old"], h.connected = h.running["k-g1"], 0
	}},
	{"at most one run of a batch job", "the job of job (kernel -job gen 1) was started on i-0 and i-1", func(_, is *snapshot) {
		is.host("i-1").starts["k-job"] = 1
	}},
	{"at most one run of a batch job", "was started on i-0 and i-0", func(_, is *snapshot) { is.host("i-0").starts["k-job"] = 2 }},
	{"quotas hold", "2 sessions of ada have slots, 1 may", func(_, is *snapshot) {
		deadline := is.now.Add(30 * time.Second)
		is.cores = 4
		is.change("k-wait", func(k *kernelRow) { k.Status, k.Agent, k.Deadline, k.Changed = "SCHEDULED", "i-1", &deadline, is.now })
	}},
	{"quotas hold", "sessions of bob hold 2 cores, they may hold 1", func(_, is *snapshot) { is.limits["bob"] = limit{cores: 1} }},
	{"quotas hold", "the sessions of the project hold 3 cores, they may hold 2", func(_, is *snapshot) { is.cores = 2 }},
	{"gangs all or none", "session gang has kernels that wait and kernels that have slots", func(_, is *snapshot) {
		delete(is.host("i-1").running, "k-g1")
		is.change("k-g1", func(k *kernelRow) { k.Status, k.Agent = "PENDING", "" })
	}},
	{"gangs all or none", "session gang is RUNNING, and 1 of its kernels have not started", func(_, is *snapshot) {
		deadline := is.now.Add(time.Minute)
		is.change("k-g1", func(k *kernelRow) { k.Status, k.Deadline = "CREATING", &deadline })
	}},
	{"gangs all or none", "session gang has 1 kernels, it asked for 2", func(_, is *snapshot) {
		delete(is.host("i-1").running, "k-g1")
		is.kernels = append(is.kernels[:2:2], is.kernels[3:]...)
	}},
	{"every state has a deadline", "kernel -job is TERMINATING without one", func(_, is *snapshot) {
		is.change("k-job", func(k *kernelRow) { k.Status, k.Desired = "TERMINATING", "stop" })
	}},
	{"deadlines fire", "kernel -job is TERMINATING, 1m1s after its deadline", func(_, is *snapshot) {
		deadline := is.now.Add(-61 * time.Second)
		is.change("k-job", func(k *kernelRow) { k.Status, k.Desired, k.Deadline = "TERMINATING", "stop", &deadline })
	}},
	{"deadlines fire", "kernel -job is LOST, 1m1s after the grace", func(_, is *snapshot) {
		is.change("k-job", func(k *kernelRow) { k.Status, k.Changed = "LOST", is.now.Add(-lostGrace-61*time.Second) })
	}},
	{"orders arrive", "kernel wait was placed on i-1 25s ago, which has been connected for 1h0m0s and was not told", func(_, is *snapshot) {
		deadline := is.now.Add(5 * time.Second)
		is.limits["ada"] = limit{sessions: 2}
		is.cores = 4
		is.change("k-wait", func(k *kernelRow) {
			k.Status, k.Agent, k.Deadline, k.Changed = "SCHEDULED", "i-1", &deadline, is.now.Add(-quiet)
		})
	}},
	{"every waiting session has a reason", `session wait has waited for 1h0m0s and says only "create-timeout"`, func(_, is *snapshot) {
		is.session("s-wait", func(r *sessionRow) { r.Info, r.Explained = "create-timeout", false })
	}},
	{"who was replaced changes nothing", "manager 0, sweep changed something, and among leaders it is number 1 of 2", func(_, is *snapshot) {
		is.stale = []staleWrite{{who: "manager 0, sweep", what: "leaders", number: 1, newest: 2}}
	}},
	{"a partition is fenced", "i-1 has been connected for 1h0m0s and still runs kernel -job gen 1", func(_, is *snapshot) {
		is.host("i-1").running["k-job"] = container{generation: 1}
	}},
	{"circuits end with their kernels", "circuit -old leads to kernel -old, which is TERMINATED", func(_, is *snapshot) {
		is.circuits["c-old"] = "k-old"
	}},
	{"no circuit is lost", "circuit gang is gone, and its kernel k-g0 is RUNNING", func(_, is *snapshot) { delete(is.circuits, "c-gang") }},
	{"a partition is fenced", "still runs kernel k-g1 gen 1, which is RUNNING gen 2", func(_, is *snapshot) {
		is.change("k-g1", func(k *kernelRow) { k.Generation = 2 })
	}},
}

// TestPromisesNoticeTheirBreach: every check of the simulation can fire, says what is wrong, and fires alone.
func TestPromisesNoticeTheirBreach(t *testing.T) {
	t.Parallel()
	for _, p := range promises {
		require.Empty(t, p.broken(picture(), picture()), "%s, of a picture where everything is well", p.rule)
	}
	tried := map[string]bool{}
	for _, c := range spoiled {
		was, is := picture(), picture()
		c.spoil(was, is)
		tried[c.rule] = true
		for _, p := range promises {
			text := p.broken(was, is)
			if p.rule == c.rule {
				assert.Contains(t, text, c.told, p.rule)
			} else {
				assert.Empty(t, text, "%s, which is not broken by: %s", p.rule, c.told)
			}
		}
	}
	for _, p := range promises {
		assert.True(t, tried[p.rule], "nothing here breaks %q", p.rule)
	}
}

// TestBoundsOfTimeWaitForCalm: what needs time is not asked for while something is broken.
func TestBoundsOfTimeWaitForCalm(t *testing.T) {
	t.Parallel()
	for _, c := range spoiled {
		was, is := picture(), picture()
		c.spoil(was, is)
		is.calm = 0
		for i := range is.hosts {
			is.hosts[i].calm, is.hosts[i].connected = 0, 0
		}
		for _, p := range promises {
			switch p.rule {
			case "deadlines fire", "orders arrive", "every waiting session has a reason", "a partition is fenced":
				assert.Empty(t, p.broken(was, is), "%s: %s", p.rule, c.told)
			case c.rule:
				assert.NotEmpty(t, p.broken(was, is), "%s: %s", p.rule, c.told)
			}
		}
	}
}

// TestWantedContainersAreTold from those that may be ended.
func TestWantedContainersAreTold(t *testing.T) {
	t.Parallel()
	k := kernelRow{Status: "RUNNING", Desired: "run", Agent: "i-0", Generation: 2}
	assert.True(t, wanted(k, "i-0", 2))
	assert.False(t, wanted(k, "i-0", 1), "a generation of before")
	assert.False(t, wanted(k, "i-1", 2), "it runs elsewhere now")
	k.Desired = "stop"
	assert.False(t, wanted(k, "i-0", 2), "its owner ended it")
	k.Desired, k.Status = "run", "CREATING"
	assert.False(t, wanted(k, "i-0", 2), "it has not started")
}

// TestRemainsAreNamed: a cluster where all has ended has nothing left, and each thing that may be left is told with its promise.
func TestRemainsAreNamed(t *testing.T) {
	t.Parallel()
	const resource = "no resource is left when all has ended"
	none := func(*snapshot) map[string]int { return nil }
	for _, c := range []struct {
		rule, told string
		spoil      func(*snapshot) map[string]int
	}{
		{"", "", none},
		{"nobody starves", "session wait still waits: no-capacity", func(s *snapshot) map[string]int {
			s.session("s-wait", func(r *sessionRow) { r.Status, r.Info = "PENDING", "no-capacity" })
			return nil
		}},
		{"no session is stuck", "session job is TERMINATING", func(s *snapshot) map[string]int {
			s.session("s-job", func(r *sessionRow) { r.Status = "TERMINATING" })
			return nil
		}},
		{resource, "2 removals are pending", func(s *snapshot) map[string]int { s.removals = 2; return nil }},
		{resource, "i-0 does not run", func(s *snapshot) map[string]int { s.hosts[0].up = false; return nil }},
		{resource, "i-1 has 1 containers", func(s *snapshot) map[string]int { s.hosts[1].containers = 1; return nil }},
		{resource, "i-1 has 3 records in its ledger", func(*snapshot) map[string]int { return map[string]int{"i-1": 3} }},
		{resource, "i-0 has 1 directories of kernels", func(s *snapshot) map[string]int { s.hosts[0].files = 1; return nil }},
	} {
		s := picture()
		for id := range s.sessions {
			s.session(id, func(r *sessionRow) { r.Status = "TERMINATED" })
		}
		records := c.spoil(s)
		rule, why := remains(s, records)
		assert.Equal(t, c.rule, rule)
		assert.Contains(t, why, c.told)
		assert.Equal(t, c.told == "", why == "")
	}
}
