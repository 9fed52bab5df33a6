package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// kernelRow and sessionRow are what the checks look at.
type kernelRow struct {
	ID, Session, Agent string
	Generation         int64
	Desired, Status    string
	Allocation, Slots  string
	Rank               int
	Deadline           *time.Time
	Changed            time.Time
}

type sessionRow struct {
	ID, Name, Owner, Type, Status, Info, Result string
	Size                                        int  // how many kernels it has
	Explained                                   bool // the scheduler has said why it waits now
	Changed                                     time.Time
}

// hostState is what a machine looks like at an instant.
type hostState struct {
	id      string
	devices []alloc.Device
	running map[string]container // by kernel
	starts  map[string]int       // how often containers of a kernel were started
	told    map[string]int64     // generations of kernels that the agent's process was told
	// connected is for how long the agent has had a stream to a manager that is well; 0: it has none. calm is for how long the machine and
	// what all share have had no fault.
	connected, calm   time.Duration
	up                bool // the agent's process runs
	containers, files int
}

// container is one that runs.
type container struct {
	generation int64
	holds      alloc.Allocation
}

// staleWrite is a change by somebody who had been replaced.
type staleWrite struct {
	who, what      string
	number, newest int64
}

// snapshot is all that the promises are judged by.
type snapshot struct {
	now      time.Time
	kernels  []kernelRow
	sessions map[string]sessionRow
	hosts    []hostState
	removals int
	// events counts the history, added those since the snapshot before. digest is over all as they were when it was made, oldDigest over
	// those of the digest before.
	events, added     int64
	digest, oldDigest int64
	// created and asked are sessions whose creation and whose end were acknowledged.
	created, asked map[string]bool
	// circuits are the kernels that circuits lead to; published are those that somebody was told of, with what they led to then.
	circuits  map[string]string
	published map[string]target
	limits    map[string]limit // of owners
	cores     int              // that all owners may hold together
	stale     []staleWrite
	calm      time.Duration // for which what all share has had no fault
}

// target is what a circuit leads to: a kernel in one of its lives.
type target struct {
	kernel     string
	generation int64
}

// promise is one that the platform makes.
type promise struct {
	rule string
	// broken says how the promise is broken, and nothing while it holds; was is the snapshot before.
	broken func(was, is *snapshot) string
}

// promises are all that hold at any instant.
var promises = []promise{
	{"acknowledged is durable", durable},
	{"history only grows", historyGrows},
	{"no over-allocation", roomHolds},
	{"at most one run of a batch job", runsOnce},
	{"quotas hold", quotasHold},
	{"gangs all or none", gangsHold},
	{"every state has a deadline", deadlinesSet},
	{"deadlines fire", deadlinesFire},
	{"orders arrive", ordersArrive},
	{"every waiting session has a reason", reasonsGiven},
	{"who was replaced changes nothing", replacedAreFenced},
	{"a partition is fenced", partitionsFenced},
	{"circuits end with their kernels", circuitsEnd},
	{"no circuit is lost", circuitsStay},
}

const (
	// quiet is how long a part must have been without any fault before it is held to bounds of time.
	quiet = 25 * time.Second
	// overdue is how long after a deadline something must have happened.
	overdue = time.Minute
)

// live says whether a kernel has slots.
func live(k kernelRow) bool {
	return !cluster.Status(k.Status).Final() && k.Status != string(cluster.Pending)
}

// durable: what was acknowledged stays, and what has ended stays as it ended.
func durable(was, is *snapshot) string {
	for _, id := range slices.Sorted(maps.Keys(was.sessions)) {
		old := was.sessions[id]
		r, there := is.sessions[id]
		switch {
		case !there:
			return fmt.Sprintf("session %s is gone", old.Name)
		case cluster.Status(old.Status).Final() && (old.Status != r.Status || old.Result != r.Result):
			return fmt.Sprintf("session %s was %s %s and is %s %s", r.Name, old.Status, old.Result, r.Status, r.Result)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(is.created)) {
		if _, there := is.sessions[id]; !there {
			return fmt.Sprintf("the creation of session %s was acknowledged, and there is none", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(is.asked)) {
		r := is.sessions[id]
		if st := cluster.Status(r.Status); !st.Final() && st != cluster.Terminating {
			return fmt.Sprintf("the end of session %s was acknowledged, and it is %s", r.Name, st)
		}
	}
	return ""
}

// historyGrows: events are added, and none changes.
func historyGrows(was, is *snapshot) string {
	switch {
	case is.events != was.events+is.added:
		return fmt.Sprintf("there were %d events, %d were added, there are %d", was.events, is.added, is.events)
	case is.oldDigest != was.digest:
		return "an event of the past was changed"
	}
	return ""
}

// roomHolds: what is given away on an agent together with what running containers still hold there is not more than it has.
func roomHolds(_, is *snapshot) string {
	for _, h := range is.hosts {
		holds := map[string]alloc.Allocation{}
		for id, c := range h.running {
			holds[id] = c.holds
		}
		for _, k := range is.kernels {
			if k.Agent != h.id || !live(k) {
				continue
			}
			if a, err := alloc.Parse(k.Allocation); err == nil {
				holds[k.ID] = a
			}
		}
		sum := alloc.Allocation{}
		for _, a := range holds {
			sum = sum.Add(a)
		}
		for _, d := range h.devices {
			if got := sum[d.Slot][d.ID]; got > d.Capacity {
				return fmt.Sprintf("%s %s of %s is given away %s times over: %s", d.Slot, d.ID, h.id, got, holders(is, h, holds))
			}
		}
	}
	return ""
}

func holders(is *snapshot, h hostState, holds map[string]alloc.Allocation) string {
	rows := map[string]kernelRow{}
	for _, k := range is.kernels {
		rows[k.ID] = k
	}
	var out []string
	for _, id := range slices.Sorted(maps.Keys(holds)) {
		k := rows[id]
		_, runs := h.running[id]
		out = append(out, fmt.Sprintf("kernel %s of %s is %s on %q, its container runs: %t", short(id), is.sessions[k.Session].Name, k.Status,
			k.Agent, runs))
	}
	return strings.Join(out, "; ")
}

// runsOnce: no batch job is started twice, wherever and in whatever generation. Its main kernel runs its command.
func runsOnce(_, is *snapshot) string {
	for _, k := range is.kernels {
		r := is.sessions[k.Session]
		if r.Type != string(cluster.Batch) || k.Rank > 0 {
			continue
		}
		var where []string
		for _, h := range is.hosts {
			for range h.starts[k.ID] {
				where = append(where, h.id)
			}
		}
		if len(where) > 1 {
			return fmt.Sprintf("the job of %s (kernel %s gen %d) was started on %s", r.Name, short(k.ID), k.Generation,
				strings.Join(where, " and "))
		}
	}
	return ""
}

// quotasHold: no owner has more sessions or cores than its limits, and all together have no more cores than their project.
func quotasHold(_, is *snapshot) string {
	held, of := map[string]int{}, map[string]map[string]bool{}
	all := 0
	for _, k := range is.kernels {
		if !live(k) {
			continue
		}
		owner := is.sessions[k.Session].Owner
		if of[owner] == nil {
			of[owner] = map[string]bool{}
		}
		of[owner][k.Session] = true
		held[owner] += cores(k.Slots)
		all += cores(k.Slots)
	}
	for _, owner := range slices.Sorted(maps.Keys(of)) {
		l := is.limits[owner]
		if n := len(of[owner]); l.sessions > 0 && n > l.sessions {
			return fmt.Sprintf("%d sessions of %s have slots, %d may", n, owner, l.sessions)
		}
		if n := held[owner]; l.cores > 0 && n > l.cores {
			return fmt.Sprintf("sessions of %s hold %d cores, they may hold %d", owner, n, l.cores)
		}
	}
	if all > is.cores {
		return fmt.Sprintf("the sessions of the project hold %d cores, they may hold %d", all, is.cores)
	}
	return ""
}

// gangsHold: the kernels of a session are there and are placed all or none, and it is RUNNING only when all have run. A session that goes
// back to the queue is TERMINATING until the last agent has let go; until then some of its kernels wait.
func gangsHold(_, is *snapshot) string {
	type gang struct{ kernels, waiting, placed, leaving, early int }
	gangs := map[string]gang{}
	for _, k := range is.kernels {
		g := gangs[k.Session]
		g.kernels++
		switch st := cluster.Status(k.Status); {
		case st == cluster.Pending:
			g.waiting++
		case st == cluster.Terminating:
			g.leaving++
		case live(k):
			g.placed++
			if slices.Contains([]cluster.Status{cluster.Scheduled, cluster.Preparing, cluster.Pulling, cluster.Prepared, cluster.Creating}, st) {
				g.early++
			}
		}
		gangs[k.Session] = g
	}
	for _, id := range slices.Sorted(maps.Keys(is.sessions)) {
		r, g := is.sessions[id], gangs[id]
		switch {
		case g.kernels != r.Size:
			return fmt.Sprintf("session %s has %d kernels, it asked for %d", r.Name, g.kernels, r.Size)
		case g.waiting > 0 && (g.placed > 0 || g.leaving > 0 && r.Status != string(cluster.Terminating)):
			return fmt.Sprintf("session %s has kernels that wait and kernels that have slots", r.Name)
		case r.Status == string(cluster.Running) && g.waiting+g.early > 0:
			return fmt.Sprintf("session %s is RUNNING, and %d of its kernels have not started", r.Name, g.waiting+g.early)
		}
	}
	return ""
}

// due says whether a kernel is in a state that must end by itself.
func due(k kernelRow) bool {
	st := cluster.Status(k.Status)
	return !st.Final() && st != cluster.Pending && st != cluster.Running
}

// deadlinesSet: every state that must end has a deadline. LOST ends with the grace of the agent.
func deadlinesSet(_, is *snapshot) string {
	for _, k := range is.kernels {
		if due(k) && k.Deadline == nil && k.Status != string(cluster.Lost) {
			return fmt.Sprintf("kernel %s is %s without one", short(k.ID), k.Status)
		}
	}
	return ""
}

// deadlinesFire: something happens soon when a deadline is missed, and to what is LOST when the grace is over.
func deadlinesFire(_, is *snapshot) string {
	if is.calm <= overdue {
		return ""
	}
	for _, k := range is.kernels {
		switch late := is.now.Sub(k.Changed) - lostGrace; {
		case !due(k):
		case k.Deadline != nil && is.now.Sub(*k.Deadline) > overdue:
			return fmt.Sprintf("kernel %s is %s, %s after its deadline", short(k.ID), k.Status, is.now.Sub(*k.Deadline))
		case k.Status == string(cluster.Lost) && late > overdue && is.calm > lostGrace+overdue:
			return fmt.Sprintf("kernel %s is LOST, %s after the grace", short(k.ID), late)
		}
	}
	return ""
}

// ordersArrive: an agent that is connected hears soon what is placed on it.
func ordersArrive(_, is *snapshot) string {
	for _, k := range is.kernels {
		if k.Status != string(cluster.Scheduled) || k.Desired != "run" || is.now.Sub(k.Changed) < quiet {
			continue
		}
		for _, h := range is.hosts {
			if h.id == k.Agent && h.calm >= quiet && h.connected >= quiet && h.told[k.ID] < k.Generation {
				return fmt.Sprintf("kernel %s was placed on %s %s ago, which has been connected for %s and was not told", short(k.ID), h.id,
					is.now.Sub(k.Changed), h.connected)
			}
		}
	}
	return ""
}

// reasonsGiven: a session that waits says why it waits now.
func reasonsGiven(_, is *snapshot) string {
	for _, id := range slices.Sorted(maps.Keys(is.sessions)) {
		r := is.sessions[id]
		if r.Status == string(cluster.Pending) && !r.Explained && is.now.Sub(r.Changed) > quiet && is.calm > quiet {
			return fmt.Sprintf("session %s has waited for %s and says only %q", r.Name, is.now.Sub(r.Changed), r.Info)
		}
	}
	return ""
}

// replacedAreFenced: a leader that another one followed and a stream that a newer one of its agent followed store nothing.
func replacedAreFenced(_, is *snapshot) string {
	for _, w := range is.stale {
		if w.number < w.newest {
			return fmt.Sprintf("%s changed something, and among %s it is number %d of %d", w.who, w.what, w.number, w.newest)
		}
	}
	return ""
}

// partitionsFenced: when an agent is back, what runs on it is what it shall run: what was given up meanwhile is ended.
func partitionsFenced(_, is *snapshot) string {
	rows := map[string]kernelRow{}
	for _, k := range is.kernels {
		rows[k.ID] = k
	}
	for _, h := range is.hosts {
		if h.calm <= overdue || h.connected <= overdue {
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(h.running)) {
			k, there := rows[id]
			if there && k.Agent == h.id && k.Generation == h.running[id].generation && live(k) || is.now.Sub(k.Changed) <= overdue {
				continue
			}
			return fmt.Sprintf("%s has been connected for %s and still runs kernel %s gen %d, which is %s gen %d on %q", h.id, h.connected,
				short(id), h.running[id].generation, k.Status, k.Generation, k.Agent)
		}
	}
	return ""
}

// reachable says whether a kernel has circuits. One that is LOST may come back and keeps them.
func reachable(k kernelRow) bool {
	return k.Status == string(cluster.Running) || k.Status == string(cluster.Lost)
}

// circuitsEnd: no circuit leads to a kernel that does not run: its devices and addresses may be another one's already.
func circuitsEnd(_, is *snapshot) string {
	rows := map[string]kernelRow{}
	for _, k := range is.kernels {
		rows[k.ID] = k
	}
	for _, id := range slices.Sorted(maps.Keys(is.circuits)) {
		if k := rows[is.circuits[id]]; !reachable(k) {
			return fmt.Sprintf("circuit %s leads to kernel %s, which is %s", short(id), short(is.circuits[id]), k.Status)
		}
	}
	return ""
}

// circuitsStay: a circuit that somebody was told of is there as long as its kernel runs on.
func circuitsStay(_, is *snapshot) string {
	rows := map[string]kernelRow{}
	for _, k := range is.kernels {
		rows[k.ID] = k
	}
	for _, id := range slices.Sorted(maps.Keys(is.published)) {
		to := is.published[id]
		_, there := is.circuits[id]
		if k := rows[to.kernel]; !there && reachable(k) && k.Generation == to.generation {
			return fmt.Sprintf("circuit %s is gone, and its kernel %s is %s", short(id), short(to.kernel), k.Status)
		}
	}
	return ""
}

// wanted says whether a container of a kernel on a host must not be ended: restarts and partitions touch nothing.
func wanted(k kernelRow, host string, generation int64) bool {
	return k.Status == string(cluster.Running) && k.Desired == "run" && k.Agent == host && k.Generation == generation
}

// remains names what is left when everything should have ended, and the promise that this breaks. records are those of ledgers.
func remains(is *snapshot, records map[string]int) (rule, why string) {
	for _, id := range slices.Sorted(maps.Keys(is.sessions)) {
		if r := is.sessions[id]; !cluster.Status(r.Status).Final() {
			if r.Status == string(cluster.Pending) {
				return "nobody starves", fmt.Sprintf("session %s still waits: %s", r.Name, r.Info)
			}
			return "no session is stuck", fmt.Sprintf("session %s is %s %s", r.Name, r.Status, r.Info)
		}
	}
	rule = "no resource is left when all has ended"
	if is.removals > 0 {
		return rule, fmt.Sprintf("%d removals are pending", is.removals)
	}
	for _, h := range is.hosts {
		switch {
		case !h.up:
			return rule, h.id + " does not run"
		case h.containers > 0:
			return rule, fmt.Sprintf("%s has %d containers", h.id, h.containers)
		case records[h.id] > 0:
			return rule, fmt.Sprintf("%s has %d records in its ledger", h.id, records[h.id])
		case h.files > 0:
			return rule, fmt.Sprintf("%s has %d directories of kernels", h.id, h.files)
		}
	}
	return "", ""
}
