package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
)

// Explain says why a waiting session waits, as of the last pass; ok is false when it does not wait.
// It looks at one session and the agents, whatever the length of the queue.
func (c *Cluster) Explain(id cluster.SessionID) (e Explanation, ok bool) {
	w := c.sessions[id].waiting
	if w == nil {
		return Explanation{}, false
	}
	g := w.lane.band.group
	g.sync()
	out := g.explain(w)
	out.Position = g.queue.position(w)
	return *out, true
}

// Probe plans one more session, without adding it: its placements when it would start now, else why not.
func (c *Cluster) Probe(name string, now time.Time, s Session) Decision {
	g := c.group(name)
	g.sync()
	at := g.queue.now
	g.queue.now = max(at, nanos(now))
	k := c.kindOf(&s)
	defer func() {
		g.queue.now = at
		c.drop(k)
	}()
	b := &band{owner: g.fairness.ownerOf(c.accountOf(s.Owner)), group: g, priority: min(max(s.Priority, 0), maxPriority)}
	w := &waiting{id: s.ID, name: s.Name, enqueued: nanos(s.EnqueuedAt), starts: nanos(s.StartsAt), dependency: s.Waiting,
		lane: &lane{band: b, kind: k, entitled: b.owner.isEntitled(k)}}
	for i := range s.Kernels {
		if i == 0 {
			w.kernel = s.Kernels[0].ID
		} else {
			w.others = append(w.others, s.Kernels[i].ID)
		}
	}
	d := Decision{Session: s.ID}
	if w.starts <= g.queue.now && w.dependency == "" && !g.policy.Inactive && b.owner.over(k) == nil {
		cursor := g.search.cursor
		if holds, why, _ := g.place(w, false); why == mayStart {
			for _, h := range holds {
				d.Placements = append(d.Placements, Placement{Kernel: h.kernel, Agent: h.agent.id, Allocation: h.agent.topo.Allocation(h.takes)})
				h.agent.take(h.takes, -1)
				g.search.changed(h.agent)
			}
			g.search.cursor = cursor
			return d
		}
	}
	d.Hold = g.explain(w)
	d.Hold.Position = g.queue.position(w)
	return d
}

// Queue describes the group's waiting sessions by reason, as of the last pass.
func (c *Cluster) Queue(name string) Depth {
	d := Depth{Reasons: map[Reason]int{}}
	g := c.groups[name]
	if g == nil {
		return d
	}
	d.Pending = g.queue.pending
	count := func(r Reason, n int) {
		if n > 0 {
			d.Reasons[r] += n
		}
	}
	count(WaitsForDependency, g.queue.dependent)
	count(WaitsForStartTime, len(g.queue.future))
	count(WaitsForVictims, len(g.reservations.claims))
	for _, l := range g.queue.lanes {
		switch l.standing {
		case mayStart:
			if t := g.queue.kinds[l.kind]; t.refused == mayStart {
				count(WaitsForPass, l.list.n)
			} else {
				count(t.reason, l.list.n)
			}
		case limited:
			r := WaitsForQuota
			if o := l.band.owner.over(l.kind); o != nil && o.slot == slotClosed {
				r = WaitsForOwner
			} else if o != nil && o.slot == slotSessions {
				r = WaitsForConcurrency
			}
			count(r, l.list.n)
		}
	}
	for _, claim := range g.reservations.claims { // counted above as preempting
		if r := g.queue.kinds[claim.w.lane.kind].reason; claim.w.lane.standing == mayStart && d.Reasons[r] > 0 {
			if d.Reasons[r]--; d.Reasons[r] == 0 {
				delete(d.Reasons, r)
			}
		}
	}
	return d
}

// explain says why a session waits now, without its position.
func (g *group) explain(w *waiting) *Explanation {
	k := w.lane.kind
	switch {
	case k.kernels == 0:
		return &Explanation{Reason: TooBig, Text: "it has no kernels"}
	case w.starts > g.queue.now:
		return &Explanation{Reason: WaitsForStartTime, Text: "it starts at " + timeText(time.Unix(0, w.starts))}
	case w.dependency != "":
		return &Explanation{Reason: WaitsForDependency, Text: w.dependency}
	case g.policy.Inactive:
		return &Explanation{Reason: WaitsForAgent, Text: "its resource group " + g.policy.Name + " is not active", Elsewhere: g.elsewhere(w)}
	}
	if c := g.reservations.claimOf(w); c != nil && len(c.victims) > 0 {
		return claimed(c)
	}
	if o := w.lane.band.owner.over(k); o != nil {
		return o.explain(g.cluster, k)
	}
	return g.explainRoom(w)
}

// claimed explains that a session's place is being cleared.
func claimed(c *claim) *Explanation {
	text := fmt.Sprintf("%d running sessions of lower priority end to make room for it", len(c.victims))
	if len(c.victims) == 1 {
		text = "a running session of lower priority ends to make room for it"
	}
	return &Explanation{Reason: WaitsForVictims, Text: text + ", on agent " + string(c.parts[0].agent.id)}
}

// judge finds out why a shape of w does not fit an agent; "" when it does.
func (g *group) judge(a *agent, w *waiting, sh *shape) string {
	k := w.lane.kind
	if filter := a.eligible(k, sh); filter != "" {
		return filter
	}
	if g.search.preference(k, a) < 0 {
		return filterCompanions
	}
	if short := g.search.shortfall(a.now(), sh); len(short) > 0 {
		return string(short.Names()[0])
	}
	if !g.search.fits(a, a.now(), sh) {
		switch ever := g.search.fits(a, a.empty(), sh); {
		case !ever && sh.isolation() != "" && g.search.fits(a, a.empty(), sh.unisolated()):
			return filterIsolation
		case !ever && slices.ContainsFunc(sh.requests, func(r request) bool { return len(r.models) > 0 }):
			return filterModels
		}
		return filterDevices
	}
	if closed := g.reservations.closedFor(w); closed != nil && closed[a.index] ||
		g.reservations.keptFrom(a, w) && !g.search.fits(a, g.reservations.masked, sh) {
		return filterReserved
	}
	return ""
}

// explainRoom says why a session does not fit now.
func (g *group) explainRoom(w *waiting) *Explanation {
	k := w.lane.kind
	// Units that fit are booked for the moment, so that the next one is judged beside them.
	var booked []*hold
	defer func() {
		for _, h := range booked {
			h.agent.take(h.takes, -1)
			g.search.changed(h.agent)
		}
	}()
	for _, i := range g.search.placementOrder(k) {
		sh := k.units[i].shape
		if a, takes, _ := g.findAgent(w, k, sh, false); a != nil {
			for _, t := range takes {
				a.take(t, 1)
				booked = append(booked, &hold{agent: a, takes: t})
			}
			g.search.changed(a)
			continue
		}
		return g.explainShape(w, sh, k.session.Kernels[k.units[i].kernels[0]].Role)
	}
	return &Explanation{Reason: WaitsForPass, Text: "the scheduler has not come to it yet"}
}

// explainShape says why a unit of a session does not fit now; role is that of its kernel, "" for none.
func (g *group) explainShape(w *waiting, sh *shape, role string) *Explanation {
	k := w.lane.kind
	e := &Explanation{Rejected: map[string]int{}}
	asked := cluster.Slots{}
	for _, x := range sh.sum {
		asked[g.cluster.slots.name[x.slot]] = x.amount
	}
	usable, reserved, fragmented := 0, 0, 0
	var best *agent
	bestMissing := 0.0
	for _, a := range g.search.agents {
		filter := g.judge(a, w, sh)
		e.Rejected[filter]++
		switch filter {
		case filterLost, filterNotSchedulable, filterArchitecture, filterDesignated, filterVolume, filterCondition, filterImage,
			filterUnencrypted:
			continue
		case filterReserved:
			reserved++
		case filterDevices, filterModels, filterIsolation:
			fragmented++
		}
		usable++
		if x := missing(g.search.shortfall(a.now(), sh), asked); best == nil || x < bestMissing {
			best, bestMissing = a, x
		}
	}
	if best != nil {
		e.Shortfall = g.search.shortfall(best.now(), sh)
	}
	asks := "it asks for " + describe(asked)
	if k.kernels > 1 {
		switch {
		case k.session.SingleNode:
			asks = fmt.Sprintf("its %d kernels ask for %s together on one agent", k.kernels, describe(asked))
		case role != "":
			asks = fmt.Sprintf("each of its %d kernels must be placed, one of role %s asks for %s", k.kernels, role, describe(asked))
		default:
			asks = fmt.Sprintf("each of its %d kernels must be placed, one asks for %s", k.kernels, describe(asked))
		}
	}
	only := len(e.Rejected) == 1
	switch {
	case usable == 0:
		e.Reason = WaitsForAgent
		e.Text = "no agent can take it: " + g.whyNone(k, sh, e.Rejected)
		if role != "" && !k.session.SingleNode {
			e.Text = fmt.Sprintf("no agent can take its kernels of role %s: %s", role, g.whyNone(k, sh, e.Rejected))
		}
	case !g.search.fitsEver(k, false):
		if g.search.fitsEver(k, true) {
			e.Reason = WaitsForAgent
			e.Text = asks + ", and the agents that are large enough are lost or not schedulable"
			if e.Rejected[filterCondition] > 0 {
				e.Text = asks + ", and the agents that are large enough are lost, not schedulable or have a problem"
			}
			break
		}
		e.Reason = TooBig
		if e.Rejected[filterIsolation] > 0 {
			e.Text = fmt.Sprintf("%s with %s isolation at least, which the accelerators of no agent offer", asks, sh.isolation())
			break
		}
		e.Text = fmt.Sprintf("%s, more than any agent has: %s", asks, g.tooMuch(k, sh, asked))
	case reserved > 0 && len(e.Shortfall) == 0:
		e.Reason = WaitsBehind
		e.Text = asks + ", and what is free is kept for a session that came before"
	case fragmented > 0 && len(e.Shortfall) == 0:
		e.Reason = WaitsForDevices
		e.Text = asks + ", that much is free on an agent but not in devices that fit together"
		if e.Rejected[filterIsolation] > 0 {
			e.Text = fmt.Sprintf("%s, that much is free on an agent but not with %s isolation at least", asks, sh.isolation())
		}
	case e.Rejected[filterCompanions] > 0 && only:
		e.Reason = WaitsForCapacity
		e.Text = asks + ", and no agent is left that suits its companions"
	case len(e.Shortfall) == 0:
		e.Reason = WaitsForCapacity
		e.Text = asks + ", which does not fit beside its own other kernels now"
	default:
		e.Reason = WaitsForCapacity
		e.Text = fmt.Sprintf("%s, the best agent %s lacks %s now", asks, best.id, describe(e.Shortfall))
	}
	g.advise(w, sh, best, e)
	return e
}

// missing is the size of a shortfall: the sum over slots of the missing part of what is asked.
func missing(short, want cluster.Slots) float64 {
	total := 0.0
	for _, slot := range short.Names() {
		total += float64(short[slot]) / float64(want[slot])
	}
	return total
}

// whyNone turns the counts of refused agents into words.
func (g *group) whyNone(k *kind, sh *shape, counts map[string]int) string {
	if len(g.search.agents) == 0 {
		return "its resource group has no agents"
	}
	arch := "its own"
	if sh.arch >= 0 {
		arch = g.cluster.archs.name[sh.arch]
	}
	words := map[string]string{
		filterLost:           "lost",
		filterNotSchedulable: "excluded from scheduling",
		filterArchitecture:   "of another architecture than " + arch,
		filterDesignated:     "not among the designated ones",
		filterCondition:      "with a problem",
		filterImage:          "without the image " + strings.Join(g.localImages(sh), " and ") + ", which no registry has",
		filterUnencrypted:    "that cannot encrypt its network",
		filterVolume:         "where " + strings.Join(k.session.Volumes, " or ") + " does not answer",
	}
	var parts []string
	for _, f := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[f], words[f]))
	}
	parts = append(parts, g.problems(k, sh)...)
	return fmt.Sprintf("of %d agents, %s", len(g.search.agents), strings.Join(parts, ", "))
}

// maxProblems bounds how many agents an explanation names.
const maxProblems = 3

// problems names agents that would be looked at but for a problem, each with its problem.
func (g *group) problems(k *kind, sh *shape) (out []string) {
	for _, a := range g.search.agents {
		var text string
		switch filter := a.eligible(k, sh); {
		case filter == filterCondition && a.facts.Problem != "":
			text = " takes none: " + a.facts.Problem
		case filter == filterCondition && a.probed:
			text = " takes none: sessions failed there, and it is tried with one other first"
		case filter == filterCondition:
			text = " does not take it: sessions failed there, this one too, and one that did not is to try first"
		case filter == filterUnencrypted:
			text = " encrypts none: " + a.facts.Unencrypted
		default:
			continue
		}
		if len(out) == maxProblems {
			return append(out, "and others")
		}
		out = append(out, "agent "+string(a.id)+text)
	}
	return out
}

// troubled names agents that would be looked at but for a problem.
func (g *group) troubled(k *kind, sh *shape) (out []string) {
	for _, a := range g.search.agents {
		if a.eligible(k, sh) != filterCondition {
			continue
		}
		if len(out) == maxProblems {
			return append(out, "others")
		}
		out = append(out, "agent "+string(a.id))
	}
	return out
}

// localImages are the images of a shape that no registry has.
func (g *group) localImages(sh *shape) (out []string) {
	for _, image := range sh.local {
		out = append(out, g.cluster.images.name[image])
	}
	return out
}

// tooMuch says by how much a request is over the largest usable agent.
func (g *group) tooMuch(k *kind, sh *shape, asked cluster.Slots) string {
	var best *agent
	bestMissing := 0.0
	for _, a := range g.search.agents {
		if a.eligible(k, sh) != "" {
			continue
		}
		if x := missing(g.search.shortfall(a.empty(), sh), asked); best == nil || x < bestMissing {
			best, bestMissing = a, x
		}
	}
	if best == nil {
		return "none is usable"
	}
	if short := g.search.shortfall(best.empty(), sh); len(short) > 0 {
		return fmt.Sprintf("the largest, %s, is short of %s", best.id, describe(short))
	}
	if k.kernels > 1 && !k.session.SingleNode {
		return "all agents together cannot hold its kernels"
	}
	return "the devices of no agent can be combined to it"
}

// advise adds what would let a session start, and when it will.
func (g *group) advise(w *waiting, sh *shape, best *agent, e *Explanation) {
	k := w.lane.kind
	if best != nil && k.kernels == 1 && len(e.Shortfall) > 0 {
		less := cluster.Slots{}
		for slot, short := range e.Shortfall {
			var asked cluster.Amount
			for _, x := range sh.sum {
				if g.cluster.slots.name[x.slot] == slot {
					asked = x.amount
				}
			}
			if left := asked - short; left > 0 {
				less[slot] = left
			}
		}
		if len(less) == len(e.Shortfall) {
			e.Remedies = append(e.Remedies, "ask for "+strings.Join(strings.Split(describe(less), ", "), " and ")+" at most")
		}
	}
	switch {
	case e.Reason == WaitsForAgent && e.Rejected[filterNotSchedulable] > 0:
		e.Remedies = append(e.Remedies,
			fmt.Sprintf("ask an administrator to allow scheduling on one of %d excluded agents", e.Rejected[filterNotSchedulable]))
	case e.Reason == WaitsForAgent && e.Rejected[filterArchitecture] > 0:
		var archs []string
		for _, a := range g.search.agents {
			if a.usable() && !slices.Contains(archs, a.facts.Architecture) {
				archs = append(archs, a.facts.Architecture)
			}
		}
		if slices.Sort(archs); len(archs) > 0 {
			e.Remedies = append(e.Remedies, "choose an image for "+strings.Join(archs, " or "))
		}
	case e.Reason == WaitsForAgent && e.Rejected[filterVolume] > 0:
		e.Remedies = append(e.Remedies, fmt.Sprintf("wait until its folders' volume answers on one of %d agents, or start it without folders",
			e.Rejected[filterVolume]))
	case e.Reason == WaitsForAgent && e.Rejected[filterUnencrypted] > 0:
		e.Remedies = append(e.Remedies, fmt.Sprintf("ask an administrator to have one of %d agents encrypt networks, or start it with "+
			"--cluster-mode single-node", e.Rejected[filterUnencrypted]))
	case e.Reason == WaitsForAgent && e.Rejected[filterImage] > 0:
		e.Remedies = append(e.Remedies, fmt.Sprintf("ask an administrator to load image %s on one of %d agents, or choose an image of a registry",
			strings.Join(g.localImages(sh), " and "), e.Rejected[filterImage]))
	case e.Reason == WaitsForAgent && e.Rejected[filterDesignated] > 0:
		e.Remedies = append(e.Remedies, "leave the choice of the agent open")
	}
	if e.Rejected[filterCondition] > 0 {
		e.Remedies = append(e.Remedies, "ask an administrator to repair "+strings.Join(g.troubled(k, sh), ", ")+": berth agent list")
	}
	if e.Reason == WaitsForCapacity || e.Reason == WaitsForDevices {
		g.estimate(w, e)
	}
	e.Elsewhere = g.elsewhere(w)
}

// estimate tells when a blocked session starts at the latest, where declared lifetimes tell it:
// for those with a reservation, and for the next ones if nobody before them waits for the same agents.
func (g *group) estimate(w *waiting, e *Explanation) {
	r := g.reservations.reservationOf(w)
	if r == nil && g.queue.position(w) <= len(g.reservations.reserved)+1 {
		r = g.reservations.reserve(w)
	}
	if r == nil || len(r.parts) == 0 {
		return
	}
	if r.end == forever {
		e.Remedies = append(e.Remedies, fmt.Sprintf("wait for sessions on agent %s to end", r.parts[0].agent.id))
		return
	}
	e.Estimate = time.Unix(0, r.end).UTC()
	name, first := "a session", cluster.SessionID("")
	for _, h := range r.parts[0].agent.holds {
		o := h.run
		mine := o.name != "" && sameUser(o.account.owner, w.lane.band.owner.Owner)
		if mine && max(o.end, g.queue.now) == r.end && (first == "" || o.id < first) {
			name, first = "session "+o.name, o.id
		}
	}
	e.Remedies = append(e.Remedies, fmt.Sprintf("wait for %s on agent %s to end, by %s", name, r.parts[0].agent.id, timeText(e.Estimate)))
}

// sameUser reports whether two owners are one person, who may read the names of the sessions of both.
func sameUser(a, b Owner) bool {
	return a.User == b.User && (a.User != "" || a.AccessKey == b.AccessKey)
}

// elsewhere names other resource groups that have room for a session now.
func (g *group) elsewhere(w *waiting) []string {
	var out []string
	names := slices.Sorted(maps.Keys(g.cluster.groups))
	for _, name := range names[:min(len(names), 64)] {
		o := g.cluster.groups[name]
		if o == g || o.policy.Inactive {
			continue
		}
		if o.sync(); o.hasRoom(w.lane.kind) {
			out = append(out, name)
		}
	}
	return out
}

// hasRoom reports whether a kind of session of another group would fit now.
func (g *group) hasRoom(k *kind) bool {
	rest := map[*agent]*freeVector{}
	for _, u := range k.units {
		found := false
		for _, a := range g.search.agents {
			v := a.now()
			if rest[a] != nil {
				v = *rest[a]
			}
			if a.eligible(k, u.shape) != "" || slices.ContainsFunc(g.reservations.reserved, func(r *reservation) bool { return r.on(a) != nil }) ||
				!g.search.fits(a, v, u.shape) {
				continue
			}
			all := g.search.devices(a, v, u.shape)
			if all == nil {
				continue
			}
			if rest[a] == nil {
				rest[a] = &freeVector{}
				a.copyTo(rest[a])
			}
			for _, takes := range all {
				a.give(rest[a], takes, -1)
			}
			found = true
			break
		}
		if !found {
			return false
		}
	}
	return true
}

// describe renders slots for people: "2 cpu, 512 MiB mem".
func describe(slots cluster.Slots) string {
	var parts []string
	for _, slot := range slots.Names() {
		if v := slots[slot]; v != 0 {
			parts = append(parts, slot.Text(v))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
