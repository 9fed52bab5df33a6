package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Bounds of the judgement about agents that fail.
const (
	// QuarantineAfter is how many different sessions must fail on an agent in a row. A failure that is plainly of the agent's making
	// counts every time, also when it is the same session's.
	QuarantineAfter = 3
	// FirstProbe is the time between the beginning of a quarantine and the first probe. It doubles with every probe that fails,
	// up to LastProbe.
	FirstProbe = 15 * time.Second
	LastProbe  = 10 * time.Minute
	// ProbeLasts is how long a probe may take. When nothing has come of it by then, another session may try.
	ProbeLasts = 5 * time.Minute
)

// AgentFailure is a kernel that an agent could not bring up although another agent might.
type AgentFailure struct {
	Session SessionID `json:"session"`
	// Owner is the user of the session.
	Owner UserID `json:"owner"`
	// Certain says that the failure is plainly of the agent's making: its disk, its engine, its network.
	Certain bool   `json:"certain"`
	Message string `json:"message"`
}

// Trial is how the manager judges an agent by what became of the sessions that it was given. The zero value is an agent on which the
// last session started.
type Trial struct {
	// Failures are those in a row, the newest last; at most QuarantineAfter are kept.
	Failures []AgentFailure `json:"failures,omitempty"`
	// Since is when the quarantine began; zero: there is none.
	Since time.Time `json:"since,omitzero"`
	// ProbeAt is when the agent may be tried with one session, Probes how many probes have failed. Probing says that a session is on
	// its way there; then ProbeAt is when that is given up.
	ProbeAt time.Time `json:"probe_at,omitzero"`
	Probes  int       `json:"probes,omitempty"`
	Probing bool      `json:"probing,omitempty"`
}

// Failed is the trial after one more failure. blamed are the owners whose sessions fail in the same uncertain way on other agents:
// such failures say more about the sessions than about this agent, so they do not count against it.
func (t Trial) Failed(f AgentFailure, blamed map[UserID]bool, now time.Time) Trial {
	if !t.Since.IsZero() {
		if t.Probing {
			t.Probing = false
			t.Probes++
			t.ProbeAt = now.Add(min(LastProbe, FirstProbe<<min(t.Probes, 10)))
		}
		return t
	}
	if !f.Certain && blamed[f.Owner] {
		return t
	}
	kept := slices.Clone(t.Failures)
	if !f.Certain {
		kept = slices.DeleteFunc(kept, func(o AgentFailure) bool { return o.Session == f.Session && !o.Certain })
	}
	kept = append(kept, f)
	t.Failures = kept[max(0, len(kept)-QuarantineAfter):]
	if len(t.Failures) == QuarantineAfter {
		t.Since, t.ProbeAt, t.Probes, t.Probing = now, now.Add(FirstProbe), 0, false
	}
	return t
}

// Uncertain reports whether a quarantine rests on failures alone that may be the sessions' own.
func (t Trial) Uncertain() bool {
	return !slices.ContainsFunc(t.Failures, func(f AgentFailure) bool { return f.Certain })
}

// Condition is the quarantine in words; ok is false when there is none.
func (t Trial) Condition() (c Condition, ok bool) {
	if t.Since.IsZero() {
		return Condition{}, false
	}
	last := "for an unknown reason"
	if n := len(t.Failures); n > 0 {
		last = t.Failures[n-1].Message
	}
	next := "it is tried again with one session from " + t.ProbeAt.UTC().Format("15:04:05") + " UTC on"
	if t.Probing {
		next = "it is being tried with one session now"
	}
	return Condition{Type: ConditionQuarantine, Reason: "sessions-fail", Since: t.Since, Blocks: true,
		Message: fmt.Sprintf("%d sessions in a row could not be created there (the last: %s); %s",
			max(len(t.Failures), QuarantineAfter), last, next),
	}, true
}

// MayProbe reports whether an agent in quarantine may be given one session now.
func (t Trial) MayProbe(now time.Time) bool { return !t.Since.IsZero() && !now.Before(t.ProbeAt) }

// AgentStanding is what the manager knows about whether an agent may get kernels, from its row.
type AgentStanding struct {
	Reported []Condition
	Trial    Trial
	// What agents reported before they reported conditions.
	EngineOK                 bool
	EngineError, DiskProblem string
	HungVolumes              []string
}

// Conditions are all conditions of an agent. For agents that do not report conditions they follow from their older facts.
func (s AgentStanding) Conditions() []Condition {
	out := slices.Clone(s.Reported)
	has := func(types ...ConditionType) bool {
		return slices.ContainsFunc(out, func(c Condition) bool { return slices.Contains(types, c.Type) })
	}
	if !s.EngineOK && !has(ConditionEngine, ConditionNetwork) {
		out = append(out, Condition{Type: ConditionEngine, Reason: "engine-unavailable",
			Message: cmp.Or(s.EngineError, "it has not told of itself yet"), Blocks: true})
	}
	if s.DiskProblem != "" && !has(ConditionDisk) {
		out = append(out, Condition{Type: ConditionDisk, Reason: "disk-low", Message: s.DiskProblem, Blocks: true})
	}
	if !has(ConditionVolume) {
		for _, v := range s.HungVolumes {
			out = append(out, Condition{Type: ConditionVolume, Reason: "hung:" + v, Message: "the volume " + v + " does not answer there"})
		}
	}
	if c, ok := s.Trial.Condition(); ok {
		out = append(out, c)
	}
	SortConditions(out)
	return out
}

// Problem says why an agent gets no kernels now; "" when it may. In quarantine it may get one kernel's session when a probe is due,
// and probe is true then.
func (s AgentStanding) Problem(now time.Time) (problem string, probe bool) {
	for _, c := range s.Conditions() {
		if !c.Blocks {
			continue
		}
		if c.Type == ConditionQuarantine && s.Trial.MayProbe(now) {
			probe = true
			continue
		}
		if problem == "" {
			problem = string(c.Type) + ": " + c.Message
		}
	}
	return problem, probe && problem == ""
}
