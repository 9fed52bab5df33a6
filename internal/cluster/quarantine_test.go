package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestWhenAnAgentIsSetAside(t *testing.T) {
	fail := func(session, owner string, certain bool) AgentFailure {
		return AgentFailure{Session: SessionID(session), Owner: UserID(owner), Certain: certain, Message: "no"}
	}
	own := func(ids ...string) (out []AgentFailure) {
		for _, id := range ids {
			out = append(out, fail(id, "u", false))
		}
		return out
	}
	agents := func(ids ...string) (out []AgentFailure) {
		for _, id := range ids {
			out = append(out, fail(id, "u", true))
		}
		return out
	}
	u := map[UserID]bool{"u": true}
	for name, c := range map[string]struct {
		failures []AgentFailure
		blamed   map[UserID]bool
		aside    bool
	}{
		"two sessions":                          {failures: own("1", "2")},
		"three sessions":                        {failures: own("1", "2", "3"), aside: true},
		"one session again and again":           {failures: own("1", "1", "1", "1")},
		"one session, plainly the agent's":      {failures: agents("1", "1", "1"), aside: true},
		"an owner whose sessions fail anywhere": {failures: own("1", "2", "3"), blamed: u},
		"such an owner, plainly the agent's":    {failures: agents("1", "2", "3"), blamed: u, aside: true},
		"such an owner among others": {blamed: u,
			failures: []AgentFailure{fail("1", "u", false), fail("2", "v", false), fail("3", "u", false), fail("4", "w", false)}},
	} {
		var trial Trial
		for _, f := range c.failures {
			trial = trial.Failed(f, c.blamed, noon)
		}
		require.Equal(t, c.aside, !trial.Since.IsZero(), name)
		require.LessOrEqual(t, len(trial.Failures), QuarantineAfter, name)
		_, told := trial.Condition()
		require.Equal(t, c.aside, told, name)
	}
}

func TestProbes(t *testing.T) {
	var trial Trial
	for _, id := range []SessionID{"1", "2", "3"} {
		trial = trial.Failed(AgentFailure{Session: id}, nil, noon)
	}
	require.Equal(t, NoProbe, probe(trial, noon))
	require.Equal(t, noon.Add(FirstProbe), trial.ProbeAt)
	late := trial.Failed(AgentFailure{Session: "4"}, nil, noon)
	require.Equal(t, trial, late, "what was under way before counts no more")
	now, wait := trial.ProbeAt, FirstProbe
	for i := range 12 {
		require.Equal(t, ProbeByOthers, probe(trial, now))
		require.Equal(t, ProbeByAny, probe(trial, now.Add(FirstProbe)), "where nobody else waits, who failed tries again")
		trial.Probing, trial.ProbeBy, trial.ProbeAt = true, "1", now.Add(ProbeLasts)
		require.Equal(t, NoProbe, probe(trial, now), "one at a time")
		require.Equal(t, trial, trial.Failed(AgentFailure{Session: "2"}, nil, now), "what becomes of others decides nothing")
		trial = trial.Failed(AgentFailure{Session: "1", Owner: UserID(fmt.Sprint(i))}, nil, now)
		require.False(t, trial.Probing)
		require.Len(t, trial.Failures, QuarantineAfter)
		wait = min(2*wait, LastProbe)
		require.Equal(t, now.Add(wait), trial.ProbeAt)
		now = trial.ProbeAt
	}
	trial.Probing, trial.ProbeAt = true, now.Add(ProbeLasts)
	require.Equal(t, ProbeByOthers, probe(trial, now.Add(ProbeLasts)), "a probe of which nothing is heard does not close the agent for good")
}

func probe(t Trial, now time.Time) Probe { p, _ := t.MayProbe(now); return p }

// TestOneOwnersFailuresDoNotCloseAnAgentForLong: the time between probes grows only where somebody else's sessions fail as well, or the
// agent says itself that it is to blame.
func TestOneOwnersFailuresDoNotCloseAnAgentForLong(t *testing.T) {
	for name, c := range map[string]struct {
		failure AgentFailure
		wait    time.Duration
	}{
		"the same owner":    {AgentFailure{Session: "4", Owner: "u"}, FirstProbe},
		"another owner":     {AgentFailure{Session: "4", Owner: "v"}, 2 * FirstProbe},
		"plainly the agent": {AgentFailure{Session: "4", Owner: "u", Certain: true}, 2 * FirstProbe},
	} {
		var trial Trial
		for _, id := range []SessionID{"1", "2", "3"} {
			trial = trial.Failed(AgentFailure{Session: id, Owner: "u"}, nil, noon)
		}
		trial.Probing, trial.ProbeBy = true, "4"
		require.Equal(t, noon.Add(c.wait), trial.Failed(c.failure, nil, noon).ProbeAt, name)
	}
}

// TestOthersDoNotLearnWhatFailed: tenants read why an agent takes none; what failed may name folders and images of others.
func TestOthersDoNotLearnWhatFailed(t *testing.T) {
	var trial Trial
	for _, id := range []SessionID{"1", "2", "3"} {
		trial = trial.Failed(AgentFailure{Session: id, Message: "folder merger-plans is not on its volume"}, nil, noon)
	}
	s := AgentStanding{EngineOK: true, Trial: trial}
	problem, _ := s.Problem(noon)
	require.Contains(t, problem, "quarantine: 3 sessions in a row could not be created there; it is tried again")
	require.NotContains(t, problem, "merger-plans")
	require.Contains(t, s.Conditions()[0].Message, "merger-plans", "operators do")
}

func TestWhyAnAgentGetsNothing(t *testing.T) {
	well := AgentStanding{EngineOK: true}
	aside := Trial{Since: noon, ProbeAt: noon.Add(time.Minute)}
	disk := []Condition{{Type: ConditionDisk, Reason: "disk-low", Message: "full", Blocks: true}}
	for name, c := range map[string]struct {
		s       AgentStanding
		problem string
		probe   Probe
	}{
		"well":                  {s: well},
		"told, not in the way":  {s: AgentStanding{EngineOK: true, Reported: []Condition{{Type: ConditionClock, Message: "late"}}}},
		"disk":                  {s: AgentStanding{EngineOK: true, Reported: disk}, problem: "disk: full"},
		"of before conditions":  {s: AgentStanding{EngineOK: true, DiskProblem: "low"}, problem: "disk: low"},
		"an engine that is off": {s: AgentStanding{EngineError: "gone"}, problem: "engine: gone"},
		"a volume":              {s: AgentStanding{EngineOK: true, HungVolumes: []string{"nas:a"}}},
		"a probe is due":        {s: AgentStanding{EngineOK: true, Trial: Trial{Since: noon, ProbeAt: noon}}, probe: ProbeByOthers},
		"due, but the disk": {problem: "disk: full",
			s: AgentStanding{EngineOK: true, Reported: disk, Trial: Trial{Since: noon, ProbeAt: noon}}},
	} {
		problem, probe := c.s.Problem(noon)
		require.Equal(t, c.problem, problem, name)
		require.Equal(t, c.probe, probe, name)
	}
	well.Trial = aside
	problem, probe := well.Problem(noon)
	require.Contains(t, problem, "quarantine: 3 sessions in a row could not be created there")
	require.Equal(t, NoProbe, probe)
}

func TestSinceSurvivesARestartOfTheAgent(t *testing.T) {
	before := []Condition{{Type: ConditionDisk, Reason: "disk-low", Message: "1 GiB", Since: noon.Add(-time.Hour)}}
	now := []Condition{{Type: ConditionClock, Reason: "clock-differs"},
		{Type: ConditionDisk, Reason: "disk-low", Message: "2 GiB", Since: noon, Blocks: true},
		{Type: ConditionEngine, Reason: "x", Since: noon.Add(time.Hour)}}
	got := KeepSince(before, now, noon)
	require.Equal(t, []Condition{
		{Type: ConditionDisk, Reason: "disk-low", Message: "2 GiB", Since: noon.Add(-time.Hour), Blocks: true},
		{Type: ConditionClock, Reason: "clock-differs", Since: noon}, {Type: ConditionEngine, Reason: "x", Since: noon},
	}, got)
	require.Len(t, KeepSince(nil, make([]Condition, 2*MaxConditions), noon), MaxConditions)
}
