package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// This file bounds what the reports of one agent cost the cluster. Each report of facts is a transaction, and every new name in one
// stays in the scheduler's memory for as long as the manager runs.

const (
	// factsBurst reports of facts are taken as they come; after those one every factsEvery. The newest counts.
	factsBurst = 20
	factsEvery = 5 * time.Second
)

// factsGate decides when the next report of facts of one agent is stored, over all its connections.
type factsGate struct {
	mu      sync.Mutex
	left    int
	at      time.Time   // when left was counted
	waiting *node.Facts // the newest report that was not stored yet
	passed  int         // reports that a newer one replaced before they were stored
}

// begin forgets what an earlier connection of the agent left.
func (g *factsGate) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting, g.passed = nil, 0
}

// take offers a report (nil: none that is new) and returns the one to store now; else wait is how long the next one waits, 0 when there
// is none.
func (g *factsGate) take(fresh *node.Facts, now time.Time) (ready *node.Facts, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if fresh != nil {
		if g.waiting != nil {
			g.passed++
		}
		g.waiting = fresh
	}
	if g.waiting == nil {
		return nil, 0
	}
	switch gained := int(now.Sub(g.at) / factsEvery); {
	case g.at.IsZero() || now.Before(g.at):
		g.left, g.at = factsBurst, now
	case gained > 0:
		g.left, g.at = min(g.left+gained, factsBurst), g.at.Add(time.Duration(gained)*factsEvery)
	}
	if g.left == 0 {
		return nil, max(g.at.Add(factsEvery).Sub(now), time.Millisecond)
	}
	g.left--
	ready, g.waiting = g.waiting, nil
	return ready, 0
}

// words is what the agent's warnings say about reports that were not stored, once.
func (g *factsGate) words() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.passed == 0 {
		return ""
	}
	n := g.passed
	g.passed = 0
	return fmt.Sprintf("%d reports about this host came faster than one every %s and were passed over: look for a device that comes and "+
		"goes, or whether the host was taken over", n, factsEvery)
}

// The names that one agent may bring up while a manager runs. What hosts have changes with their hardware: rarely.
const (
	maxSlotNames = 2 * maxSlots
	maxArchs     = 8
	maxModels    = 256
)

// claims remembers of each agent how often it reported, and which names it brought up.
type claims struct {
	mu sync.Mutex
	of map[cluster.AgentID]*claim
}

// claim is what one agent said so far.
type claim struct {
	gate                 factsGate
	slots, archs, models map[string]bool
}

func (c *claims) agent(id cluster.AgentID) *claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[id] == nil {
		if c.of == nil {
			c.of = map[cluster.AgentID]*claim{}
		}
		c.of[id] = &claim{slots: map[string]bool{}, archs: map[string]bool{}, models: map[string]bool{}}
	}
	return c.of[id]
}

// admit refuses facts with more new names than one agent may bring up.
func (c *claims) admit(agent cluster.AgentID, f *node.Facts) error {
	s := c.agent(agent)
	c.mu.Lock()
	defer c.mu.Unlock()
	add := func(known map[string]bool, name, what string, most int) error {
		if name == "" || known[name] {
			return nil
		}
		if len(known) >= most {
			return fault.Exhaustedf("agent %s has reported more than %d different names of %s", agent, most, what).
				WithReason("too-many-names").
				WithNext("look whether its host was taken over (berth admin certificate revoke --role agent --name %s); if they are right, "+
					"restart the managers", agent)
		}
		known[name] = true
		return nil
	}
	if err := add(s.archs, cut(f.Architecture, maxName), "architectures", maxArchs); err != nil {
		return err
	}
	for slot := range f.Slots {
		if err := add(s.slots, cut(slot, maxName), "slots", maxSlotNames); err != nil {
			return err
		}
	}
	for _, d := range f.Devices {
		if err := add(s.slots, cut(d.Slot, maxName), "slots", maxSlotNames); err != nil {
			return err
		}
		if err := add(s.models, cut(d.Model, maxName), "models of devices", maxModels); err != nil {
			return err
		}
	}
	return nil
}

// report stores facts; false ends the session.
func (s *session) report(f *node.Facts, gate *factsGate) bool {
	facts, err := factsOf(f)
	if err == nil {
		err = s.link.claims.admit(s.agent, f)
	}
	if err != nil {
		s.log.Log(s.ctx, slog.LevelError, "what an agent reports of its host is refused, and its connection ended", "error", err,
			"next", fault.NextOf(err))
		s.cancel(err)
		return false
	}
	if words := gate.words(); words != "" {
		s.log.Warn("an agent reports its host too often", "words", words)
		facts.Warnings = append(facts.Warnings, words)
	}
	return s.retry("store the facts", func(ctx context.Context) error {
		return s.link.d.Sink.UpdateFacts(ctx, s.agent, s.epoch.Load(), facts)
	})
}
