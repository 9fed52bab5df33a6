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
	// ProbeBy is the session that tries the agent while Probing; what becomes of others decides nothing. It is "" in a trial that an
	// older manager wrote.
	ProbeBy SessionID `json:"probe_by,omitempty"`
}

// Failed is the trial after one more failure. blamed are the owners whose sessions fail in the same uncertain way on other agents:
// such failures say more about the sessions than about this agent, so they do not count against it.
func (t Trial) Failed(f AgentFailure, blamed map[UserID]bool, now time.Time) Trial {
	if !t.Since.IsZero() {
		if !t.Probing || t.ProbeBy != "" && t.ProbeBy != f.Session {
			return t // what was under way before, or starts again
		}
		t.Probing, t.ProbeBy = false, ""
		t.Probes++
		t.Failures = append(slices.Clone(t.Failures), f)
		t.Failures = t.Failures[max(0, len(t.Failures)-QuarantineAfter):]
		wait := min(LastProbe, FirstProbe<<min(t.Probes, 10))
		if t.doubtful() {
			wait = FirstProbe
		}
		t.ProbeAt = now.Add(wait)
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
		t.Since, t.ProbeAt, t.Probes, t.Probing, t.ProbeBy = now, now.Add(FirstProbe), 0, false, ""
	}
	return t
}

// doubtful reports whether all that is held against the agent are failures of one owner's sessions that may be the sessions' own. Others
// would wait for nothing then, so the agent is tried again soon.
func (t Trial) doubtful() bool {
	return !slices.ContainsFunc(t.Failures, func(f AgentFailure) bool { return f.Certain || f.Owner != t.Failures[0].Owner })
}

// Condition is the quarantine in words, for operators; ok is false when there is none.
func (t Trial) Condition() (c Condition, ok bool) {
	if t.Since.IsZero() {
		return Condition{}, false
	}
	last := "for an unknown reason"
	if n := len(t.Failures); n > 0 {
		last = t.Failures[n-1].Message
	}
	return Condition{Type: ConditionQuarantine, Reason: "sessions-fail", Since: t.Since, Blocks: true,
		Message: t.words(fmt.Sprintf(" (the last: %s)", last))}, true
}

// words say what the quarantine is about.
func (t Trial) words(last string) string {
	next := "it is tried again with one session from " + t.ProbeAt.UTC().Format("15:04:05") + " UTC on"
	if t.Probing {
		next = "it is being tried with one session now"
	}
	return fmt.Sprintf("%d sessions in a row could not be created there%s; %s", max(len(t.Failures), QuarantineAfter), last, next)
}

// Probe says which sessions may try an agent that is in quarantine: one of them at a time.
type Probe int

// Who may try.
const (
	NoProbe Probe = iota
	// ProbeByOthers: a session that has not failed there.
	ProbeByOthers
	// ProbeByAny: no other came in time.
	ProbeByAny
)

// MayProbe says which session may try an agent in quarantine now. Next is when the answer changes; zero: with time alone it does not.
// Sessions that failed there come last, so that one which fails everywhere does not use up all probes.
func (t Trial) MayProbe(now time.Time) (p Probe, next time.Time) {
	late := t.ProbeAt.Add(FirstProbe)
	switch {
	case t.Since.IsZero():
		return NoProbe, time.Time{}
	case now.Before(t.ProbeAt):
		return NoProbe, t.ProbeAt
	case now.Before(late):
		return ProbeByOthers, late
	}
	return ProbeByAny, time.Time{}
}

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

// Problem says why an agent gets no kernels now, in words that every tenant may read: what failed of others is not in them. It is ""
// when the agent may get kernels. In quarantine it may get one kernel's session when a probe is due, and probe says which.
func (s AgentStanding) Problem(now time.Time) (problem string, probe Probe) {
	for _, c := range s.Conditions() {
		if !c.Blocks {
			continue
		}
		message := c.Message
		if c.Type == ConditionQuarantine {
			if may, _ := s.Trial.MayProbe(now); may != NoProbe {
				probe = may
				continue
			}
			message = s.Trial.words("")
		}
		if problem == "" {
			problem = string(c.Type) + ": " + message
		}
	}
	if problem != "" {
		probe = NoProbe
	}
	return problem, probe
}
