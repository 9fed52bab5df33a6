package cluster

import (
	"cmp"
	"slices"
	"time"
)

// Condition is something about an agent that its operator should know. Some keep the agent from new kernels.
type Condition struct {
	Type ConditionType `json:"type"`
	// Reason is a stable word for programs, Message one sentence for people.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Since is when it began, as far as the manager knows.
	Since time.Time `json:"since"`
	// Blocks says that no kernel is placed on the agent while this lasts.
	Blocks bool `json:"blocks"`
}

// ConditionType is what a condition is about.
type ConditionType string

// The types of conditions. Agents report all but ConditionQuarantine, which is the manager's own judgement.
const (
	ConditionDisk       ConditionType = "disk"
	ConditionEngine     ConditionType = "engine"
	ConditionNetwork    ConditionType = "network"
	ConditionClock      ConditionType = "clock"
	ConditionVolume     ConditionType = "volume"
	ConditionKernelLog  ConditionType = "kernel-log"
	ConditionQuarantine ConditionType = "quarantine"
)

// Reported says whether agents may report conditions of this type.
func (t ConditionType) Reported() bool {
	switch t {
	case ConditionDisk, ConditionEngine, ConditionNetwork, ConditionClock, ConditionVolume, ConditionKernelLog:
		return true
	}
	return false
}

// MaxConditions bounds how many conditions are kept of one agent.
const MaxConditions = 32

// Same reports whether two conditions are the same one, perhaps in other words.
func (c Condition) Same(o Condition) bool { return c.Type == o.Type && c.Reason == o.Reason }

// KeepSince returns what an agent reports now, in order, with the time at which each condition began: the earlier one of what was
// known before and what the agent says. An agent that was started again does not know when something began.
func KeepSince(before, now []Condition, at time.Time) []Condition {
	out := make([]Condition, 0, min(len(now), MaxConditions))
	for _, c := range now {
		if len(out) == MaxConditions {
			break
		}
		if c.Since.IsZero() || c.Since.After(at) {
			c.Since = at
		}
		for _, b := range before {
			if b.Same(c) && b.Since.Before(c.Since) {
				c.Since = b.Since
			}
		}
		out = append(out, c)
	}
	SortConditions(out)
	return out
}

// SortConditions puts those first that keep kernels away, and orders the rest by type, reason and message.
func SortConditions(list []Condition) {
	slices.SortStableFunc(list, func(a, b Condition) int {
		if a.Blocks != b.Blocks {
			if a.Blocks {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
}

// Blocking returns the first condition that keeps kernels away; ok is false when there is none.
func Blocking(list []Condition) (c Condition, ok bool) {
	for _, c := range list {
		if c.Blocks {
			return c, true
		}
	}
	return Condition{}, false
}
