package keeper_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/cluster"
)

func (r *rig) recorded(id cluster.KernelID) *ledger.Record {
	for _, rec := range r.ledger.Records() {
		if rec.Kernel == id {
			return rec
		}
	}
	return nil
}

// TestAFullDiskKeepsNobody: the record of an end follows when there is room, the end itself needs none.
func TestAFullDiskKeepsNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true)
	r.want(false, desired(1), desired(2), desired(3))
	for i := 1; i <= 3; i++ {
		r.awaitPhase(kernelID(i), 1, cluster.PhaseRunning)
	}
	r.eventually("they are recorded", func() bool {
		return r.recorded(kernelID(1)).Running && r.recorded(kernelID(2)).Running && r.recorded(kernelID(3)).Running
	})
	r.full.Store(true)
	r.want(false, stopped(1))
	require.Equal(t, cluster.ReasonUserRequested, r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded).Reason)

	require.False(t, r.keeper.Evict(kernelID(2), 7, cluster.ReasonDiskFull, "of another generation"))
	require.True(t, r.keeper.Evict(kernelID(2), 1, cluster.ReasonDiskFull, "the disk was full"))
	require.False(t, r.keeper.Evict(kernelID(2), 1, cluster.ReasonDiskFull, "again"))
	o := r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonDiskFull, o.Reason)
	require.Equal(t, "the disk was full", o.Detail)
	require.False(t, o.Failed)

	require.NoError(t, r.engine.Exit(kernelID(3), 5))
	require.Equal(t, cluster.ReasonSelfTerminated, r.awaitPhase(kernelID(3), 1, cluster.PhaseEnded).Reason)

	r.eventually("their containers and files are gone", func() bool { return r.engine.Count() == 0 })
	for i := 1; i <= 3; i++ {
		require.Nil(t, r.recorded(kernelID(i)).Final, "nothing could be written")
		require.False(t, r.keeper.Evict(kernelID(i), 1, cluster.ReasonDiskFull, "it has ended"))
	}
	r.full.Store(false)
	for i := 1; i <= 3; i++ {
		r.eventually("the record follows", func() bool { return r.recorded(kernelID(i)).Final != nil })
	}
	require.Equal(t, "the disk was full", r.recorded(kernelID(2)).Final.Detail)
	for i := 1; i <= 3; i++ {
		r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(i), Generation: 1}})
	}
	for i := 1; i <= 3; i++ {
		r.gone(kernelID(i))
	}
}

func TestNotesReachTheOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true)
	r.want(false, desired(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	r.keeper.Note(kernelID(1), 2, "of another generation")
	r.keeper.Note(kernelID(9), 1, "of another kernel")
	r.keeper.Note(kernelID(1), 1, "the home is full")
	r.await(kernelID(1), "noted", func(o cluster.KernelObservation) bool {
		return o.Phase == cluster.PhaseRunning && o.Detail == "the home is full"
	})
}

func TestAKernelShortOfMemoryIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true)
	r.want(false, desired(1))
	require.False(t, r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning).OOMKilled)
	r.keeper.OutOfMemory(kernelID(1), 2)
	r.keeper.OutOfMemory(kernelID(1), 1)
	o := r.await(kernelID(1), "the news", func(o cluster.KernelObservation) bool { return o.OOMKilled })
	require.Equal(t, cluster.PhaseRunning, o.Phase)
	require.Contains(t, o.Detail, "a process was killed: out of memory")
	require.NoError(t, r.engine.Exit(kernelID(1), 0))
	o = r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonSelfTerminated, o.Reason, "it went on, and ended for another reason")
}
