package node_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
)

// desired is what agents are told of a session's kernels, by their names.
func desired(t *testing.T, w *managertest.World, set *nouns.Set, agent cluster.AgentID, id cluster.SessionID) []cluster.DesiredKernel {
	all, err := set.Reports.Desired(t.Context(), agent, nil)
	require.NoError(t, err)
	var out []cluster.DesiredKernel
	for _, d := range all {
		if d.Session == id {
			out = append(out, d)
		}
	}
	return out
}

func two(r *request.Session) { r.ClusterSize, r.ClusterMode = 2, "multi-node" }

// TestSessionsOfSeveralKernelsHaveASecret: one for all of its kernels, on whatever agent and by whichever manager it is asked for first;
// another session has another, and one of a single kernel has none. It is stored sealed.
func TestSessionsOfSeveralKernelsHaveASecret(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	w.Agent("a2", 64, 64*managertest.GiB)
	first, second, alone := w.Create("first", two).ID, w.Create("second", two).ID, w.Create("alone").ID
	w.Place(first, "a1", "a2")
	w.Place(second, "a1", "a2")
	w.Place(alone, "a1")
	other, err := nouns.New(w.Deps) // of another manager
	require.NoError(t, err)
	var wait sync.WaitGroup
	secrets := make([][]string, 4)
	for i, set := range []*nouns.Set{w.Set, other, w.Set, other} {
		wait.Go(func() {
			for _, id := range []cluster.SessionID{first, second} {
				for _, d := range desired(t, w, set, []cluster.AgentID{"a1", "a2"}[i/2], id) {
					secrets[i] = append(secrets[i], d.Spec.PeerSecret)
				}
			}
		})
	}
	wait.Wait()
	require.Len(t, secrets[0], 2)
	require.Len(t, secrets[0][0], 64)
	require.NotEqual(t, secrets[0][0], secrets[0][1])
	for _, s := range secrets[1:] {
		require.Equal(t, secrets[0], s)
	}
	d := desired(t, w, w.Set, "a1", alone)
	require.Len(t, d, 1)
	require.Empty(t, d[0].Spec.PeerSecret)
	var n, plain int
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE position($1::bytea IN sealed) > 0)
		FROM session_secrets`, []byte(secrets[0][0])).Scan(&n, &plain))
	require.Equal(t, []int{2, 0}, []int{n, plain})
}

// TestAgentsLearnThatAllRun: all agents of a session, and each is woken for it. It is not said of a session's only kernel.
func TestAgentsLearnThatAllRun(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	w.Agent("a2", 64, 64*managertest.GiB)
	id, alone := w.Create("several", two).ID, w.Running("alone", "a1")
	w.Place(id, "a1", "a2")
	of := func(agent cluster.AgentID) bool {
		d := desired(t, w, w.Set, agent, id)
		require.Len(t, d, 1)
		return d[0].AllRun
	}
	report := func(i int, agent cluster.AgentID) {
		k := w.Session(id).Kernels[i]
		_, err := w.Reports.Observe(t.Context(), agent, w.Epoch(agent), false, nil, []cluster.KernelObservation{{Kernel: k.ID, Session: id,
			Generation: k.Generation, Phase: cluster.PhaseRunning, ContainerID: "c-" + string(k.ID)}})
		require.NoError(t, err)
	}
	require.False(t, of("a1"))
	report(0, "a1")
	require.False(t, of("a1"), "the other one does not run yet")
	wakes := w.Store.Wakes(func(topic string) bool {
		return topic == store.AgentTopic("a1") || topic == store.AgentTopic("a2")
	})
	defer wakes.Close()
	report(1, "a2")
	require.Equal(t, cluster.Running, w.Session(id).Status)
	require.True(t, of("a1"))
	require.True(t, of("a2"))
	woken := slices.DeleteFunc(wakes.Take(), func(topic string) bool { return topic == store.TopicAll }) // of a connection that was made late
	require.ElementsMatch(t, []string{store.AgentTopic("a1"), store.AgentTopic("a2")}, woken)
	require.False(t, desired(t, w, w.Set, "a1", alone)[0].AllRun)
}

// TestTheKernelThatFailedIsNamed: when one kernel ends by itself, the others are stopped because of it, and the history says which
// one it was and why.
func TestTheKernelThatFailedIsNamed(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	id := w.Create("several", two).ID
	w.Place(id, "a1", "a1")
	report := func(i int, o cluster.KernelObservation) {
		k := w.Session(id).Kernels[i]
		o.Kernel, o.Session, o.Generation = k.ID, id, k.Generation
		_, err := w.Reports.Observe(t.Context(), "a1", w.Epoch("a1"), false, nil, []cluster.KernelObservation{o})
		require.NoError(t, err)
	}
	for i := range 2 {
		report(i, cluster.KernelObservation{Phase: cluster.PhaseRunning, ContainerID: "c"})
	}
	code := 137
	report(1, cluster.KernelObservation{Phase: cluster.PhaseEnded, Reason: cluster.ReasonOutOfMemory, Detail: "killed: out of memory",
		ExitCode: &code})
	s := w.Session(id)
	require.Equal(t, cluster.Terminating, s.Status)
	var detail string
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT detail FROM session_events WHERE session_id = $1 AND kernel_id IS NULL
		AND to_status = 'TERMINATING'`, string(id)).Scan(&detail))
	require.Equal(t, "kernel sub1 ended: killed: out of memory", detail)
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT detail FROM session_events WHERE kernel_id = $1
		AND to_status = 'TERMINATING'`, string(s.Kernels[0].ID)).Scan(&detail))
	require.Equal(t, "kernel sub1 ended: killed: out of memory", detail)
}
