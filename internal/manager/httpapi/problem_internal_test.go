package httpapi

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

func TestProblems(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
		slug   string
		msg    string
	}{
		{fault.NotFoundf("No such session: x").WithData(map[string]string{
			"object": "session",
		}), 404, "object-not-found", "No such session: x"},
		{fmt.Errorf("place session x: %w", fault.Invalidf("too big").WithNext("ask for less")), 400, "invalid-api-params",
			"place session x: too big; ask for less"},
		{fault.Conflictf("busy"), 400, "generic-bad-request", "busy"},
		{fault.Deniedf("no"), 403, "generic-forbidden", "no"},
		{fault.New(fault.Unauthenticated, "who"), 401, "auth-failed", "who"},
		{fault.Exhaustedf("full"), 412, "quota-exceeded", "full"},
		{fault.Unavailablef("away"), 503, "service-unavailable", "away"},
		{fault.New(fault.Timeout, "late"), 504, "agent-timeout", "late"},
		{fault.Deniedf("frozen").WithReason("server-frozen"), 503, "server-frozen", "frozen"},
		{fault.Conflictf("x").WithReason("something-new"), 400, "generic-bad-request", "x"},
		{fault.NotFoundf("No such resource group: project").WithData(map[string]string{
			"object": "resource group",
		}), 404, "object-not-found", "No such scaling group: project"},
	} {
		p := problemOf(c.err)
		require.Equal(t, c.status, p.status, c.slug)
		require.Equal(t, problemBase+c.slug, p.Type)
		require.Equal(t, c.msg, p.Msg)
		require.NotEmpty(t, p.Title)
	}
}

func TestProblemsWithoutAReasonHaveThatOfTheirKind(t *testing.T) {
	t.Parallel()
	for err, code := range map[error]string{
		fault.Invalidf("x"): "invalid-api-params", fault.Deniedf("x"): "generic-forbidden", fault.NotFoundf("x"): "object-not-found",
		fault.Exhaustedf("x"): "quota-exceeded", fault.Unavailablef("x"): "service-unavailable", fault.Conflictf("x"): "generic-bad-request",
		fault.New(fault.Unauthenticated, "x"): "auth-failed", fault.New(fault.Timeout, "x"): "agent-timeout",
		errors.New("x"): "internal-server-error",
		fault.Conflictf("x").WithReason("something-new"): "something-new",
	} {
		require.Equal(t, code, problemOf(err).Code)
	}
}

func TestProblemsSpeakTheWordsOfTheWire(t *testing.T) {
	t.Parallel()
	for ours, wire := range map[string]string{
		"resource group": "scaling group", "project": "user group (or project)", "agent": "agent instance", "session": "session",
	} {
		err := fault.NotFoundf("No such %s: agent", ours).WithData(map[string]string{"object": ours})
		p := problemOf(fmt.Errorf("look for agent: %w", err))
		require.Equal(t, "No such "+wire+".", p.Title)
		require.Equal(t, "look for agent: No such "+wire+": agent", p.Msg)
		require.JSONEq(t, `{"object":"`+wire+`"}`, string(p.Data))
		require.Equal(t, map[string]string{"object": ours}, err.Data, "the error keeps its own words")
	}
}

func TestProblemsHideWhatIsInternal(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New("pq: password authentication failed for user berth"), fault.New(fault.Internal, "secret")} {
		p := problemOf(err)
		require.Equal(t, 500, p.status)
		require.NotContains(t, p.Msg, "secret")
		require.NotContains(t, p.Msg, "password")
	}
}

func TestProblemsThatTheCommandLineIndexes(t *testing.T) {
	t.Parallel()
	for _, slug := range []string{"too-many-sessions-matched", "session-already-exists"} {
		require.JSONEq(t, `{"matches":[]}`, string(problemOf(fault.Conflictf("x").WithReason(slug)).Data), slug)
	}
}
