package cluster_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

// unknown is a status that nobody writes.
const unknown cluster.Status = "UNKNOWN"

// The names of events are the wire's.
func TestEventsOfStatuses(t *testing.T) {
	t.Parallel()
	for status, want := range map[cluster.Status]struct{ session, kernel cluster.EventName }{
		cluster.Pending:     {"session_enqueued", ""},
		cluster.Scheduled:   {"session_scheduled", ""},
		cluster.Preparing:   {"session_preparing", "kernel_preparing"},
		cluster.Pulling:     {"", "kernel_pulling"},
		cluster.Prepared:    {"", ""},
		cluster.Creating:    {"", "kernel_creating"},
		cluster.Running:     {"session_started", "kernel_started"},
		cluster.Restarting:  {"", ""},
		cluster.Lost:        {"", ""},
		cluster.Terminating: {"session_terminating", "kernel_terminating"},
		cluster.Terminated:  {"session_terminated", "kernel_terminated"},
		cluster.Cancelled:   {"session_cancelled", "kernel_cancelled"},
		cluster.Error:       {"session_terminated", "kernel_terminated"},
		unknown:             {"", ""},
	} {
		require.Equal(t, want.session, cluster.SessionEvent(status), status)
		require.Equal(t, want.kernel, cluster.KernelEvent(status), status)
	}
}

// Every status that an agent must leave has a deadline. Another agent may try again as long as nothing has run.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	for status, want := range map[cluster.Status]struct {
		reason cluster.Reason
		retry  bool
	}{
		cluster.Scheduled:   {cluster.ReasonCreateTimeout, true},
		cluster.Preparing:   {cluster.ReasonCreateTimeout, true},
		cluster.Pulling:     {cluster.ReasonPullTimeout, true},
		cluster.Prepared:    {cluster.ReasonCreateTimeout, true},
		cluster.Creating:    {cluster.ReasonStartTimeout, true},
		cluster.Restarting:  {cluster.ReasonStartTimeout, false},
		cluster.Terminating: {cluster.ReasonStopTimeout, false},
	} {
		got, ok := cluster.KernelDeadline(status)
		require.True(t, ok, status)
		require.Equal(t, want.reason, got.Reason, status)
		require.Equal(t, want.retry, got.Retry, status)
		require.GreaterOrEqual(t, got.After, 10*time.Second, status)
	}
	for _, status := range []cluster.Status{
		cluster.Pending, cluster.Running, cluster.Lost, cluster.Terminated, cluster.Cancelled, cluster.Error, unknown,
	} {
		got, ok := cluster.KernelDeadline(status)
		require.False(t, ok, status)
		require.Zero(t, got, status)
	}
	stop, _ := cluster.KernelDeadline(cluster.Terminating)
	require.Greater(t, stop.After, cluster.StopGrace, "a program may use its whole grace")
	require.Greater(t, cluster.MaxPlacements, 1, "a deadline with a retry allows one")
}

func TestPhasesAndTheirStatuses(t *testing.T) {
	t.Parallel()
	want := []cluster.Status{
		"", cluster.Preparing, cluster.Pulling, cluster.Prepared, cluster.Creating, cluster.Running, cluster.Terminating, cluster.Terminated,
	}
	for phase := cluster.PhaseUnknown; phase <= cluster.PhaseEnded; phase++ {
		require.Equal(t, want[phase], phase.Status())
	}
	require.Empty(t, (cluster.PhaseEnded + 1).Status())
	for phase := cluster.PhasePreparing; phase < cluster.PhaseEnded; phase++ {
		require.True(t, cluster.KernelMayMove(phase.Status(), (phase+1).Status()) || phase+1 == cluster.PhaseEnded, "%s moves on", phase.Status())
	}
}

func TestWhatStatusesMean(t *testing.T) {
	t.Parallel()
	final := []cluster.Status{cluster.Terminated, cluster.Cancelled, cluster.Error}
	for _, status := range cluster.AllStatuses {
		require.True(t, status.Valid(), status)
		require.Equal(t, slices.Contains(final, status), status.Final(), status)
		require.Equal(t, status != cluster.Pending && !status.Final(), status.HoldsSlots(), status)
	}
	require.False(t, unknown.Valid())
	require.False(t, unknown.Final())
}

// The guards of the store's statements are made of the sources: both must say the same as the table of moves.
func TestSourcesAreTheMovesBackwards(t *testing.T) {
	t.Parallel()
	require.True(t, cluster.KernelMayMove(cluster.Running, cluster.Lost))
	require.False(t, cluster.SessionMayMove(cluster.Running, cluster.Lost))
	require.False(t, cluster.SessionMayMove(cluster.Lost, cluster.Running))
	require.True(t, cluster.SessionMayMove(cluster.Pending, cluster.Scheduled))
	require.False(t, cluster.KernelMayMove(cluster.Pending, cluster.Running), "what no agent has cannot run")
}

// A session with several kernels, in whatever order they are listed.
func TestSessionStatusOfSeveralKernels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kernels []cluster.Status
		want    cluster.Status
	}{
		{[]cluster.Status{cluster.Lost}, cluster.Running},
		{[]cluster.Status{cluster.Pending, cluster.Running}, cluster.Pending},
		{[]cluster.Status{cluster.Pending, cluster.Scheduled, cluster.Creating}, cluster.Pending},
		{[]cluster.Status{cluster.Lost, cluster.Creating}, cluster.Creating},
		{[]cluster.Status{cluster.Running, cluster.Restarting}, cluster.Running},
		{[]cluster.Status{cluster.Pulling, cluster.Preparing, cluster.Running}, cluster.Preparing},
		{[]cluster.Status{cluster.Terminating, cluster.Terminating}, cluster.Terminating},
		{[]cluster.Status{cluster.Terminating, cluster.Pending}, cluster.Terminating},
		{[]cluster.Status{cluster.Cancelled, cluster.Running}, cluster.Terminating},
		{[]cluster.Status{cluster.Error, cluster.Running}, cluster.Terminating},
		{[]cluster.Status{cluster.Cancelled, cluster.Cancelled}, cluster.Cancelled},
		{[]cluster.Status{cluster.Cancelled, cluster.Error}, cluster.Error},
		{[]cluster.Status{cluster.Terminated, cluster.Terminated, cluster.Error}, cluster.Error},
		{[]cluster.Status{cluster.Terminated, cluster.Terminated}, cluster.Terminated},
	} {
		require.Equal(t, c.want, cluster.SessionStatus(c.kernels), "%v", c.kernels)
		slices.Reverse(c.kernels)
		require.Equal(t, c.want, cluster.SessionStatus(c.kernels), "%v", c.kernels)
	}
}
