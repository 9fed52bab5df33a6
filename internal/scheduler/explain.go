package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// outcome is why one agent refused a kernel.
type outcome struct {
	seat *seat
	no   *rejection
}

// explain finds the dominant reason why a kernel (or, on a single node, its whole session)
// found no agent. rejected has one entry for every agent of the group.
func (b *board) explain(session *Session, k *Kernel, rejected []outcome) *Explanation {
	e := &Explanation{Rejected: map[string]int{}}
	want := k.Slots
	if session.SingleNode {
		want = sum(session.Kernels)
	}
	usable, reserved, fragmented := 0, 0, 0
	var best *seat
	bestMissing := 0.0
	for _, o := range rejected {
		e.Rejected[o.no.filter]++
		switch o.no.filter {
		case filterLost, filterNotSchedulable, filterArchitecture, filterDesignated:
			continue
		case filterReserved:
			reserved++
		case filterDevices:
			fragmented++
		}
		usable++
		if m := missing(o.seat.free.Shortfall(want), want); best == nil || m < bestMissing {
			best, bestMissing = o.seat, m
		}
	}
	if best != nil {
		e.Shortfall = best.free.Shortfall(want)
	}
	asks := "it asks for " + describe(want)
	if len(session.Kernels) > 1 {
		if session.SingleNode {
			asks = fmt.Sprintf("its %d kernels ask for %s together on one agent", len(session.Kernels), describe(want))
		} else {
			asks = fmt.Sprintf("each of its %d kernels must be placed, one asks for %s", len(session.Kernels), describe(want))
		}
	}
	switch {
	case usable == 0:
		e.Reason = WaitsForAgent
		e.Text = fmt.Sprintf("no agent can take it: %s", b.whyNone(session, k, e.Rejected))
	case !b.fitsEmpty(session, false):
		if b.fitsEmpty(session, true) {
			e.Reason = WaitsForAgent
			e.Text = fmt.Sprintf("%s, and the agents that are large enough are lost or not schedulable", asks)
			break
		}
		e.Reason = TooBig
		e.Text = fmt.Sprintf("%s, more than any agent has: %s", asks, b.tooMuch(session, k, want))
	case reserved > 0 && len(e.Shortfall) == 0:
		e.Reason = WaitsBehind
		e.Text = fmt.Sprintf("%s, and what is free is kept for a session that came before", asks)
	case fragmented > 0 && len(e.Shortfall) == 0:
		e.Reason = WaitsForDevices
		e.Text = fmt.Sprintf("%s, which is free in sum but not on devices that fit together", asks)
	case len(e.Shortfall) == 0:
		e.Reason = WaitsForCapacity
		e.Text = fmt.Sprintf("%s, and every agent runs as many containers as it may", asks)
		if e.Rejected[filterContainers] == 0 {
			e.Text = asks + ", which does not fit beside its own other kernels now"
		}
	default:
		e.Reason = WaitsForCapacity
		e.Text = fmt.Sprintf("%s, the best agent %s lacks %s now", asks, best.ID, describe(e.Shortfall))
	}
	return e
}

// fitsEmpty reports whether the session fits when nothing runs, counting also lost and
// unschedulable agents when away is set.
func (b *board) fitsEmpty(session *Session, away bool) bool {
	empty := b.emptied(func(*seat) bool { return true })
	if away {
		for _, s := range empty.agents {
			a := *s.Agent
			a.Alive, a.Schedulable = true, true
			s.Agent = &a
		}
	}
	if session.SingleNode {
		for _, s := range empty.agents {
			if s.fitAll(session, nil) == nil {
				return true
			}
		}
		return false
	}
	for _, i := range bySize(session.Kernels) {
		k := &session.Kernels[i]
		if !slices.ContainsFunc(empty.agents, func(s *seat) bool {
			a, no := s.fit(session, k)
			if no == nil {
				s.take(a)
			}
			return no == nil
		}) {
			return false
		}
	}
	return true
}

// missing weighs a shortfall: the sum over slots of the missing part of what is asked.
func missing(short, want cluster.Slots) float64 {
	total := 0.0
	for _, slot := range short.Names() {
		total += float64(short[slot]) / float64(max(want[slot], 1))
	}
	return total
}

// whyNone turns the counts of refused agents into words.
func (b *board) whyNone(session *Session, k *Kernel, counts map[string]int) string {
	if len(b.agents) == 0 {
		return "its resource group has no agents"
	}
	words := map[string]string{
		filterLost:           "lost",
		filterNotSchedulable: "excluded from scheduling",
		filterArchitecture:   "of another architecture than " + k.Architecture,
		filterDesignated:     "not among the designated ones",
	}
	var parts []string
	for _, f := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[f], words[f]))
	}
	return fmt.Sprintf("of %d agents, %s", len(b.agents), strings.Join(parts, ", "))
}

// tooMuch says by how much a request is over the largest usable agent.
func (b *board) tooMuch(session *Session, k *Kernel, want cluster.Slots) string {
	var best *seat
	bestMissing := 0.0
	for _, s := range b.agents {
		if s.eligible(session, k) != "" {
			continue
		}
		if m := missing(s.capacity.Shortfall(want), want); best == nil || m < bestMissing {
			best, bestMissing = s, m
		}
	}
	if best == nil {
		return "none is usable"
	}
	short := best.capacity.Shortfall(want)
	if len(short) == 0 {
		if len(session.Kernels) > 1 && !session.SingleNode {
			return "all agents together cannot hold its kernels"
		}
		return "the devices of no agent can be combined to it"
	}
	return fmt.Sprintf("the largest, %s, is short of %s", best.ID, describe(short))
}
