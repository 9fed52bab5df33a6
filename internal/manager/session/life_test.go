package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit/await"
)

func TestLifeOfAnInteractiveSession(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 4, 8*managertest.GiB)
	ctx := t.Context()

	events, err := w.Sessions.Events(ctx, w.Admin, session.EventFilter{Sessions: true, Kernels: true, FromNow: true})
	require.NoError(t, err)
	c := w.Create("life")
	require.True(t, c.Created)
	require.Equal(t, cluster.Pending, c.Status)
	require.Equal(t, []session.ServicePort{{Name: "jupyter", Protocol: "http", Ports: []int{8070}},
		{Name: "web", Protocol: "tcp", Ports: []int{9001, 9002}}}, c.ServicePorts)

	// The wait begins before anything happens and ends at RUNNING.
	type waited struct {
		st       session.State
		timedOut bool
		err      error
	}
	results := make(chan waited, 1)
	go func() {
		st, timedOut, err := w.Sessions.Wait(ctx, w.Admin, c.ID, session.UntilStarted, time.Minute)
		results <- waited{st, timedOut, err}
	}()
	w.Place(c.ID, "a1")
	desired, err := w.Reports.Desired(ctx, "a1", nil)
	require.NoError(t, err)
	require.Len(t, desired, 1)
	require.False(t, desired[0].Stop)
	require.Equal(t, managertest.Image, desired[0].Spec.Image)
	require.Equal(t, managertest.Digest(1), desired[0].Spec.ImageDigest)
	require.Equal(t, "python", desired[0].Spec.RuntimeType)
	require.Equal(t, string(c.ID), desired[0].Spec.Env["BACKENDAI_SESSION_ID"])
	require.JSONEq(t, `{"cpu":{"0":1000}}`, desired[0].Spec.Allocation)
	require.Equal(t, cluster.Slots{"cpu": cluster.Whole(1), "mem": cluster.Whole(2 << 30)}, desired[0].Spec.Slots)
	// What the agent has is named and not told again; another generation would be.
	again, err := w.Reports.Desired(ctx, "a1", map[cluster.KernelID]int64{desired[0].Kernel: desired[0].Generation})
	require.NoError(t, err)
	require.Len(t, again, 1)
	require.Nil(t, again[0].Spec)
	again, err = w.Reports.Desired(ctx, "a1", map[cluster.KernelID]int64{desired[0].Kernel: desired[0].Generation - 1})
	require.NoError(t, err)
	require.Equal(t, desired, again)

	for _, p := range []cluster.Phase{cluster.PhasePreparing, cluster.PhaseCreating, cluster.PhasePulling, cluster.PhaseCreating,
		cluster.PhaseRunning, cluster.PhasePreparing, cluster.PhaseRunning} {
		require.Empty(t, w.Report(c.ID, "a1", p)) // late, doubled and reordered reports change nothing
	}
	r := <-results
	require.NoError(t, r.err)
	require.False(t, r.timedOut)
	require.Equal(t, cluster.Running, r.st.Status)
	v := w.Session(c.ID)
	require.Equal(t, []cluster.AgentID{"a1"}, v.AgentIDs)
	require.NotNil(t, v.StartedAt)
	require.Nil(t, v.EndedAt)
	require.Equal(t, v.RequestedSlots, v.OccupyingSlots)

	_, timedOut, err := w.Sessions.Wait(ctx, w.Admin, c.ID, session.UntilEnded, time.Millisecond)
	require.NoError(t, err)
	require.True(t, timedOut)

	out, err := w.Sessions.Destroy(ctx, w.Admin, "life", session.DestroyOptions{})
	require.NoError(t, err)
	require.Equal(t, cluster.Terminating, out[0].Status)
	desired, err = w.Reports.Desired(ctx, "a1", nil)
	require.NoError(t, err)
	require.True(t, desired[0].Stop)
	require.Equal(t, cluster.ReasonUserRequested, desired[0].StopReason)
	_, err = w.Sessions.Destroy(ctx, w.Admin, "life", session.DestroyOptions{})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)

	w.Report(c.ID, "a1", cluster.PhaseRunning) // still the old news
	acked := w.Report(c.ID, "a1", cluster.PhaseEnded, managertest.Ended(143, "bye\x00\xff\n"))
	require.Len(t, acked, 1)
	acked = w.Report(c.ID, "a1", cluster.PhaseEnded, managertest.Ended(143, "bye\n"))
	require.Len(t, acked, 1, "a doubled end is acknowledged again")
	v = w.Session(c.ID)
	require.Equal(t, cluster.Terminated, v.Status)
	require.Equal(t, string(cluster.ReasonUserRequested), v.StatusInfo)
	require.NotNil(t, v.EndedAt)
	require.Equal(t, 143, *v.MainKernel().ExitCode)
	require.Empty(t, v.OccupyingSlots)
	logs, err := w.Sessions.Logs(ctx, w.Admin, string(c.ID), "", session.LogOptions{})
	require.NoError(t, err)
	text := make([]byte, 100)
	n, _ := logs.Read(text)
	require.Equal(t, "bye\uFFFD\uFFFD\n", string(text[:n]))

	_, err = w.Sessions.Find(ctx, w.Admin, "life", "")
	require.True(t, fault.Is(err, fault.NotFound), "names mean live sessions only")

	session, kernel := w.EventNames(c.ID)
	require.Equal(t, []string{"session_enqueued", "session_scheduled", "session_preparing", "session_started", "session_terminating",
		"session_terminated"}, session)
	require.Equal(t, []string{"kernel_preparing", "kernel_creating", "kernel_started", "kernel_terminating", "kernel_terminated"}, kernel)
	var streamed []string
	for range len(session) + len(kernel) {
		e := <-events
		require.Equal(t, c.ID, e.SessionID)
		require.Equal(t, "life", e.SessionName)
		streamed = append(streamed, string(e.Name))
	}
	require.Equal(t, "session_enqueued", streamed[0])
	require.Equal(t, "session_terminated", streamed[len(streamed)-1])
	w.Clean()
}

func TestBatchSessionsEndWithTheirResult(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 16, 64*managertest.GiB)
	one := 1
	zero := 0
	for name, c := range map[string]struct {
		change func(*cluster.KernelObservation)
		result cluster.Result
		reason cluster.Reason
		event  string
	}{
		"good": {func(o *cluster.KernelObservation) { o.Batch, o.ExitCode = true, &zero }, cluster.ResultSuccess, cluster.ReasonTaskFinished,
			"session_success"},
		"bad1": {func(o *cluster.KernelObservation) { o.Batch, o.ExitCode = true, &one }, cluster.ResultFailure, cluster.ReasonTaskFailed,
			"session_failure"},
		"slow": {func(o *cluster.KernelObservation) { o.Batch, o.TimedOut = true, true }, cluster.ResultFailure, cluster.ReasonTaskTimeout,
			"session_failure"},
		"oom1": {func(o *cluster.KernelObservation) { o.OOMKilled = true }, cluster.ResultFailure, cluster.ReasonOutOfMemory, "session_failure"},
		"quick": {func(o *cluster.KernelObservation) { o.Batch, o.ExitCode = true, &zero }, cluster.ResultSuccess, cluster.ReasonTaskFinished,
			"session_success"},
	} {
		id := w.Create(name, managertest.Batch("true")).ID
		w.Place(id, "a1")
		if name != "quick" { // the manager may see only the end
			w.Report(id, "a1", cluster.PhaseRunning)
		}
		require.Len(t, w.Report(id, "a1", cluster.PhaseEnded, c.change), 1)
		v := w.Session(id)
		require.Equal(t, cluster.Terminated, v.Status, name)
		require.Equal(t, c.result, v.Result, name)
		require.Equal(t, string(c.reason), v.StatusInfo, name)
		events, _ := w.EventNames(id)
		require.Equal(t, c.event, events[len(events)-2], name)
		require.Equal(t, "session_terminated", events[len(events)-1], name)
	}

	// A job whose container goes on is stopped.
	id := w.Running("linger", "a1", managertest.Batch("true"))
	w.Report(id, "a1", cluster.PhaseRunning, func(o *cluster.KernelObservation) { o.Batch, o.ExitCode = true, &zero })
	v := w.Session(id)
	require.Equal(t, cluster.Terminating, v.Status)
	require.Equal(t, cluster.ResultSuccess, v.Result)
	w.Report(id, "a1", cluster.PhaseEnded, func(o *cluster.KernelObservation) { o.Batch, o.ExitCode = true, &one })
	v = w.Session(id)
	require.Equal(t, cluster.ResultSuccess, v.Result, "the first result wins")
	require.Equal(t, string(cluster.ReasonTaskFinished), v.StatusInfo)
	w.Clean()
}

// TestOutOfMemoryOfASessionThatGoesOn: processes that are killed for want of memory are named while their session runs, and told once in
// each start of a kernel.
func TestOutOfMemoryOfASessionThatGoesOn(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Running("starved", "a1")
	told := func() (n int) {
		_, kernel := w.EventNames(id)
		for _, e := range kernel {
			if e == string(cluster.KernelOutOfMemory) {
				n++
			}
		}
		return n
	}
	short := func(o *cluster.KernelObservation) {
		o.OOMKilled, o.Detail = true, "a process was killed: out of memory"
	}
	w.Report(id, "a1", cluster.PhaseRunning, short)
	v := w.Session(id)
	require.Equal(t, cluster.Running, v.Status)
	require.Equal(t, "a process was killed: out of memory", v.StatusInfo)
	require.True(t, v.MainKernel().OOMKilled)
	require.Equal(t, 1, told())
	w.Report(id, "a1", cluster.PhaseRunning, short)
	w.Report(id, "a1", cluster.PhaseRunning, short, func(o *cluster.KernelObservation) { o.Detail = "the disk is full" })
	require.Equal(t, "the disk is full", w.Session(id).StatusInfo)
	require.Equal(t, 1, told(), "once is enough")
	w.Clean()
}

func TestFailuresAreRetriedElsewhere(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 4, 8*managertest.GiB)
	w.Agent("a2", 4, 8*managertest.GiB)
	id := w.Create("retry").ID
	failed := func(retry bool) func(*cluster.KernelObservation) {
		return func(o *cluster.KernelObservation) {
			o.Failed, o.RetryElsewhere, o.Reason, o.Detail = true, retry, cluster.ReasonFailedToCreate, "no space left on device"
		}
	}
	w.Place(id, "a1")
	// The agent cleans up before it tells the end: that must not look like an end that somebody wanted.
	w.Report(id, "a1", cluster.PhaseCreating)
	w.Report(id, "a1", cluster.PhaseTerminating)
	require.Equal(t, cluster.Creating, w.Session(id).Status)
	require.Len(t, w.Report(id, "a1", cluster.PhaseEnded, failed(true)), 1)
	v := w.Session(id)
	require.Equal(t, cluster.Pending, v.Status)
	require.EqualValues(t, 2, v.MainKernel().Generation)
	// The same report again belongs to an earlier life now.
	acked, err := w.Reports.Observe(t.Context(), "a1", w.Epoch("a1"), false, nil,
		[]cluster.KernelObservation{{Kernel: v.MainKernel().ID, Generation: 1, Phase: cluster.PhaseEnded, Failed: true}})
	require.NoError(t, err)
	require.Len(t, acked, 1)
	require.Equal(t, cluster.Pending, w.Session(id).Status)

	w.Place(id, "a2")
	w.Report(id, "a2", cluster.PhaseEnded, failed(false))
	v = w.Session(id)
	require.Equal(t, cluster.Error, v.Status)
	require.Equal(t, string(cluster.ReasonFailedToCreate), v.StatusInfo)
	require.Equal(t, "no space left on device", v.StatusData["error"].(map[string]any)["repr"])
	w.Clean()
}

// TestAnAgentThatComesAndGoesKeepsNothingLost: the grace of a lost kernel is not begun anew by an agent that returns and is gone again
// before it has spoken of the kernel.
func TestAnAgentThatComesAndGoesKeepsNothingLost(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	ctx := t.Context()
	id, other := w.Running("unspoken", "a1"), w.Running("spoken", "a1")
	lose := func() {
		w.Exec(`UPDATE agents SET last_seen = now() - interval '1 hour' WHERE id = 'a1'`)
		lost, err := w.Reports.LoseSilent(ctx, 30*time.Second)
		require.NoError(t, err)
		require.Len(t, lost, 1)
	}
	lose()
	w.Exec(`UPDATE kernels SET lost_since = now() - interval '6 minutes' WHERE status = 'LOST'`)
	w.Reconnect("a1")
	w.Report(other, "a1", cluster.PhaseRunning)
	n, err := w.Reports.ExpireLost(ctx, 5*time.Minute)
	require.NoError(t, err)
	require.Zero(t, n, "the agent is there and may still speak of it")
	lose()
	n, err = w.Reports.ExpireLost(ctx, 5*time.Minute)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, cluster.Error, w.Session(id).Status)
	require.Equal(t, cluster.Running, w.Session(other).Status)
	w.Clean()
}

func TestLostAgentsReturnOrExpire(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Agent("a2", 8, 16*managertest.GiB)
	ctx := t.Context()
	run := w.Running("lost-run", "a1")
	stop := w.Running("lost-stop", "a1")
	_, err := w.Sessions.Destroy(ctx, w.Admin, string(stop), session.DestroyOptions{})
	require.NoError(t, err)
	early := w.Create("lost-early").ID
	w.Place(early, "a1")
	kernel := func(id cluster.SessionID) *session.Kernel { return w.Session(id).MainKernel() }
	silence := func(what string) {
		w.Exec(`UPDATE agents SET last_seen = now() - interval '1 hour', lost_at = CASE WHEN status = 'LOST' THEN now() - interval '1 hour' `+
			`END WHERE id = $1`, what)
	}
	lose := func() {
		silence("a1")
		lost, err := w.Reports.LoseSilent(ctx, 30*time.Second)
		require.NoError(t, err)
		require.Equal(t, []cluster.AgentID{"a1"}, lost)
	}
	lose()
	require.Equal(t, cluster.Lost, kernel(run).Status)
	require.Equal(t, cluster.Lost, kernel(early).Status)
	require.Equal(t, cluster.Terminating, kernel(stop).Status)
	require.Equal(t, cluster.Running, w.Session(run).Status, "a session keeps its status beside lost kernels")
	require.Equal(t, cluster.Scheduled, w.Session(early).Status)
	w.Clean()
	require.NotEmpty(t, w.Session(run).OccupyingSlots, "lost kernels hold their slots")
	again, err := w.Reports.LoseSilent(ctx, 30*time.Second)
	require.NoError(t, err)
	require.Empty(t, again)

	// It comes back on the same stream.
	require.NoError(t, w.Reports.Touch(ctx, []cluster.AgentID{"a1"}))
	require.Equal(t, cluster.Running, kernel(run).Status)
	require.Equal(t, cluster.Scheduled, kernel(early).Status)

	// It comes back as a new process that reports what it has.
	lose()
	w.Reconnect("a1")
	w.Report(run, "a1", cluster.PhaseRunning)
	require.Equal(t, cluster.Running, kernel(run).Status)
	_, err = w.Reports.Observe(ctx, "a1", w.Epoch("a1")-1, false, nil, nil)
	require.Equal(t, "stale-epoch", fault.ReasonOf(err))

	// It does not come back.
	lose()
	silence("a1")
	n, err := w.Reports.ExpireLost(ctx, 5*time.Minute)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, cluster.Error, w.Session(run).Status)
	require.Equal(t, string(cluster.ReasonAgentLost), w.Session(run).StatusInfo)
	require.Equal(t, cluster.Terminated, w.Session(stop).Status)
	require.Equal(t, string(cluster.ReasonUserRequested), w.Session(stop).StatusInfo, "the first final reason wins")
	require.Equal(t, cluster.Pending, w.Session(early).Status, "what never ran is placed again")

	// Late it returns with everything: it is told to remove all of it, and then nothing is left.
	w.Reconnect("a1")
	desired, err := w.Reports.Desired(ctx, "a1", nil)
	require.NoError(t, err)
	require.Len(t, desired, 3)
	var tombs []cluster.KernelObservation
	for _, d := range desired {
		require.True(t, d.Stop && d.Force)
		tombs = append(tombs, cluster.KernelObservation{Kernel: d.Kernel, Session: d.Session, Generation: d.Generation, Phase: cluster.PhaseEnded,
			LogTail: "last words"})
	}
	told := map[cluster.KernelID]int64{}
	for _, d := range desired {
		told[d.Kernel] = d.Generation
	}
	acked, err := w.Reports.Observe(ctx, "a1", w.Epoch("a1"), true, told, tombs)
	require.NoError(t, err)
	require.Len(t, acked, 3)
	desired, err = w.Reports.Desired(ctx, "a1", nil)
	require.NoError(t, err)
	require.Empty(t, desired)
	require.Equal(t, cluster.Error, w.Session(run).Status)
	w.Place(early, "a2")
	w.Report(early, "a2", cluster.PhaseRunning)
	require.Equal(t, cluster.Running, w.Session(early).Status)
	w.Clean()
}

// TestAStartEndsTheTrialOfALostAgent: the lease of an agent in quarantine may end while it starts the session that it is tried with.
func TestAStartEndsTheTrialOfALostAgent(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	trial := func() (raw string) {
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(), "SELECT trial::text FROM agents WHERE id = 'a1'").Scan(&raw))
		return raw
	}
	lose := func() {
		t.Helper()
		w.Exec("UPDATE agents SET last_seen = now() - interval '1 hour' WHERE id = 'a1'")
		lost, err := w.Reports.LoseSilent(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Len(t, lost, 1)
		w.Reconnect("a1")
	}
	id := w.Create("tried").ID
	w.Place(id, "a1")
	w.Exec(`UPDATE agents SET trial = '{"probes": 1}' WHERE id = 'a1'`)
	lose()
	require.Equal(t, cluster.Lost, w.Session(id).MainKernel().Status)
	w.Report(id, "a1", cluster.PhaseRunning)
	require.Equal(t, cluster.Running, w.Session(id).Status)
	require.Equal(t, "{}", trial())

	w.Exec(`UPDATE agents SET trial = '{"probes": 1}' WHERE id = 'a1'`)
	lose()
	w.Report(id, "a1", cluster.PhaseRunning)
	require.NotEqual(t, "{}", trial(), "what ran before has not started now")
}

// TestRestartsThatFailAreNotTheAgents: what a session left in its home may keep it from starting again. Its owner could close agents so.
func TestRestartsThatFailAreNotTheAgents(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	trial := func() (raw string) {
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(), "SELECT trial::text FROM agents WHERE id = 'a1'").Scan(&raw))
		return raw
	}
	fail := func(name string, agents bool) {
		t.Helper()
		id := w.Running(name, "a1")
		_, err := w.Sessions.Restart(t.Context(), w.Admin, string(id), "")
		require.NoError(t, err)
		w.Report(id, "a1", cluster.PhaseEnded, func(o *cluster.KernelObservation) {
			o.Failed, o.RetryElsewhere, o.AgentsFault, o.Detail = true, true, agents, "strange"
		})
		require.Equal(t, cluster.Error, w.Session(id).Status)
	}
	for i := range cluster.QuarantineAfter {
		fail(fmt.Sprintf("again-%d", i), false)
	}
	require.Equal(t, "{}", trial())
	fail("disk-full", true)
	require.Contains(t, trial(), "certain", "its agent says so itself")
}

// TestWhoWaitsForRemovalsIsTold: requests that wait for the end of containers do not ask the database again and again.
func TestWhoWaitsForRemovalsIsTold(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	waits, held := session.OnHints(t, w.Sessions)
	id := w.Running("removed", "a1")
	_, err := w.Sessions.Destroy(t.Context(), w.Admin, string(id), session.DestroyOptions{Forced: true})
	require.NoError(t, err)
	_, timedOut, err := waits.Wait(t.Context(), w.Admin, id, session.UntilRemoved, time.Millisecond)
	require.NoError(t, err)
	require.True(t, timedOut)
	await.Value(t, held)
	done := make(chan bool, 1)
	go func() {
		_, timedOut, err := waits.Wait(t.Context(), w.Admin, id, session.UntilRemoved, 0)
		done <- err == nil && !timedOut
	}()
	await.Value(t, held)
	w.Report(id, "a1", cluster.PhaseEnded, managertest.Ended(0, ""))
	require.True(t, await.Value(t, done))
}

func TestKernelsMissingFromTwoFullReportsAreGone(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	ctx := t.Context()
	id := w.Running("gone1", "a1")
	kept := w.Running("kept1", "a1")
	k := w.Session(kept).MainKernel()
	told := map[cluster.KernelID]int64{k.ID: 1, w.Session(id).MainKernel().ID: 1}
	report := func(told map[cluster.KernelID]int64) {
		_, err := w.Reports.Observe(ctx, "a1", w.Epoch("a1"), true, told,
			[]cluster.KernelObservation{{Kernel: k.ID, Generation: 1, Phase: cluster.PhaseRunning}})
		require.NoError(t, err)
	}
	for range 2 {
		report(nil)
		report(map[cluster.KernelID]int64{k.ID: 1})
	}
	require.Equal(t, cluster.Running, w.Session(id).Status, "the agent had not been told of it when it reported")
	report(told)
	require.Equal(t, cluster.Running, w.Session(id).Status)
	w.Report(id, "a1", cluster.PhaseRunning) // seen after all: counting begins anew
	report(told)
	require.Equal(t, cluster.Running, w.Session(id).Status)
	report(told)
	v := w.Session(id)
	require.Equal(t, cluster.Error, v.Status)
	require.Equal(t, string(cluster.ReasonNotFound), v.StatusInfo)
	require.Equal(t, cluster.Running, w.Session(kept).Status)
	acked, err := w.Reports.Observe(ctx, "a1", w.Epoch("a1"), false, nil,
		[]cluster.KernelObservation{{Kernel: "00000000-0000-0000-0000-00000000dead", Generation: 7, Phase: cluster.PhaseEnded},
			{Kernel: "junk", Generation: 7, Phase: cluster.PhaseEnded}})
	require.NoError(t, err)
	require.Len(t, acked, 2, "tombstones of unknown kernels are acknowledged")
}

func TestMissedDeadlines(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	ctx := t.Context()
	overdue := func() {
		w.Exec(`UPDATE kernels SET deadline = now() - interval '1 second' WHERE deadline IS NOT NULL`)
		_, err := w.Reports.MissDeadlines(ctx)
		require.NoError(t, err)
	}
	id := w.Create("stuck").ID
	for range cluster.MaxPlacements {
		require.Equal(t, cluster.Pending, w.Session(id).Status)
		w.Place(id, "a1")
		w.Report(id, "a1", cluster.PhasePulling)
		overdue()
	}
	v := w.Session(id)
	require.Equal(t, cluster.Error, v.Status)
	require.Equal(t, string(cluster.ReasonPullTimeout), v.StatusInfo)

	id = w.Running("mute1", "a1")
	_, err := w.Sessions.Destroy(ctx, w.Admin, "mute1", session.DestroyOptions{})
	require.NoError(t, err)
	overdue()
	require.Equal(t, cluster.Terminating, w.Session(id).Status)
	overdue()
	v = w.Session(id)
	require.Equal(t, cluster.Terminated, v.Status)
	require.Equal(t, string(cluster.ReasonUserRequested), v.StatusInfo)
	desired, err := w.Reports.Desired(ctx, "a1", nil)
	require.NoError(t, err)
	require.Len(t, desired, 2, "the last placement and the stop are still to be removed; older placements were replaced")
}

// TestWhatAnAgentWasNeverToldIsNoAttempt: a kernel that its agent was not told of goes back into the queue as often as need be.
func TestWhatAnAgentWasNeverToldIsNoAttempt(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	ctx := t.Context()
	overdue := func() {
		w.Exec(`UPDATE kernels SET deadline = now() - interval '1 second', status_changed = now() - interval '1 minute' ` +
			`WHERE deadline IS NOT NULL`)
		w.Exec(`UPDATE agents SET orders_at = orders_at - interval '2 minutes'`)
	}
	miss := func() {
		_, err := w.Reports.MissDeadlines(ctx)
		require.NoError(t, err)
	}
	id := w.Create("untold").ID
	for range cluster.MaxPlacements + 2 {
		w.Place(id, "a1")
		overdue()
		a, err := w.Nodes.Get(ctx, w.Admin, "a1")
		require.NoError(t, err)
		require.NotNil(t, a.NotDeliveredSince)
		require.Len(t, a.Warnings, 1)
		miss()
		v := w.Session(id)
		require.Equal(t, cluster.Pending, v.Status)
	}
	// An agent that was told and says nothing uses up the attempts.
	for i := range cluster.MaxPlacements {
		require.Equal(t, cluster.Pending, w.Session(id).Status, i)
		w.Place(id, "a1")
		overdue()
		require.NoError(t, w.Reports.Delivered(ctx, []cluster.OrdersAge{{Agent: "a1"}}))
		a, err := w.Nodes.Get(ctx, w.Admin, "a1")
		require.NoError(t, err)
		require.Nil(t, a.NotDeliveredSince)
		miss()
	}
	v := w.Session(id)
	require.Equal(t, cluster.Error, v.Status)
	require.Equal(t, string(cluster.ReasonCreateTimeout), v.StatusInfo)
}

func TestRestartMakesTheNextGeneration(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	ctx := t.Context()
	id := w.Running("again", "a1")
	_, err := w.Sessions.Restart(ctx, w.Admin, "again", "")
	require.NoError(t, err)
	v := w.Session(id)
	require.Equal(t, cluster.Restarting, v.Status)
	require.EqualValues(t, 2, v.MainKernel().Generation)
	// The old container's end is no end of the session.
	acked, err := w.Reports.Observe(ctx, "a1", w.Epoch("a1"), false, nil,
		[]cluster.KernelObservation{{Kernel: v.MainKernel().ID, Generation: 1, Phase: cluster.PhaseEnded}})
	require.NoError(t, err)
	require.Len(t, acked, 1)
	w.Report(id, "a1", cluster.PhaseCreating)
	w.Report(id, "a1", cluster.PhaseRunning)
	require.Equal(t, cluster.Running, w.Session(id).Status)
	require.NoError(t, w.Sessions.Rename(ctx, w.Admin, "again", "", "anew"))
	other := w.Create("other").ID
	err = w.Sessions.Rename(ctx, w.Admin, "anew", "", "other")
	require.Equal(t, "session-already-exists", fault.ReasonOf(err))
	err = w.Sessions.Rename(ctx, w.Admin, string(other), "", "pending1")
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

func TestDestroyRules(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	ctx := t.Context()
	destroy := func(id cluster.SessionID, o session.DestroyOptions) (cluster.Status, error) {
		out, err := w.Sessions.Destroy(ctx, w.Admin, string(id), o)
		if err != nil {
			return "", err
		}
		return out[0].Status, nil
	}
	id := w.Create("wait1").ID
	st, err := destroy(id, session.DestroyOptions{})
	require.NoError(t, err)
	require.Equal(t, cluster.Cancelled, st)
	_, err = destroy(id, session.DestroyOptions{Forced: true})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)

	for _, p := range []cluster.Phase{0, cluster.PhasePreparing, cluster.PhasePulling} {
		id := w.Create("mid-" + string(rune('a'+p))).ID
		w.Place(id, "a1")
		if p != 0 {
			w.Report(id, "a1", p)
		}
		_, err := destroy(id, session.DestroyOptions{})
		require.True(t, fault.Is(err, fault.Denied), "%v", err)
		st, err := destroy(id, session.DestroyOptions{Forced: true})
		require.NoError(t, err)
		require.Equal(t, cluster.Terminated, st)
		require.Equal(t, string(cluster.ReasonForced), w.Session(id).StatusInfo)
		// The late end is stored although the row is final.
		require.Len(t, w.Report(id, "a1", cluster.PhaseEnded, managertest.Ended(9, "last")), 1)
	}
	first := w.Running("first", "a1", managertest.Batch("true"))
	second := w.Create("second", managertest.Batch("true"), func(r *request.Session) { r.Dependencies = []string{"first"} }).ID
	third := w.Create("third", managertest.Batch("true"), func(r *request.Session) { r.Dependencies = []string{string(second)} }).ID
	g, err := w.Sessions.DependencyGraph(ctx, w.Admin, "third", "")
	require.NoError(t, err)
	require.Equal(t, first, g.DependsOn[0].DependsOn[0].ID)
	out, err := w.Sessions.Destroy(ctx, w.Admin, "first", session.DestroyOptions{Recursive: true})
	require.NoError(t, err)
	require.Len(t, out, 3)
	require.Equal(t, first, out[0].ID)
	require.Equal(t, cluster.Terminating, out[0].Status)
	require.Equal(t, cluster.Cancelled, w.Session(third).Status)
	require.Len(t, w.Report(first, "a1", cluster.PhaseEnded), 1)
	require.Equal(t, cluster.ResultFailure, w.Session(first).Result)
	w.Clean()
}
