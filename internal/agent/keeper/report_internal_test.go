package keeper

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"berth.dev/berth/internal/cluster"
)

// TestPressing: what somebody waits for is said at once. A session is RUNNING only when all its kernels are, so the news of the first of
// them can wait for the others.
func TestPressing(t *testing.T) {
	type is struct {
		session cluster.SessionID
		phase   cluster.Phase
		stop    bool
		unknown bool // nothing is wanted of it: the manager has not said, or no longer says, anything of it
		dirty   bool
	}
	for _, c := range []struct {
		name    string
		kernels map[cluster.KernelID]is
		want    bool
	}{
		{"nothing changed", map[cluster.KernelID]is{"k1": {session: "s", phase: cluster.PhaseRunning}}, false},
		{"it is created", map[cluster.KernelID]is{"k1": {session: "s", phase: cluster.PhaseCreating, dirty: true}}, false},
		{"it runs", map[cluster.KernelID]is{"k1": {session: "s", phase: cluster.PhaseRunning, dirty: true}}, true},
		{"it ended", map[cluster.KernelID]is{"k1": {session: "s", phase: cluster.PhaseEnded, dirty: true}}, true},
		{"it runs, another of its session does not yet", map[cluster.KernelID]is{
			"k1": {session: "s", phase: cluster.PhaseRunning, dirty: true}, "k2": {session: "s", phase: cluster.PhaseCreating}}, false},
		{"it runs, another of its session was ordered just now", map[cluster.KernelID]is{
			"k1": {session: "s", phase: cluster.PhaseRunning, dirty: true}, "k2": {session: "s", phase: cluster.PhaseUnknown}}, false},
		{"it runs, another of its session shall end before it runs", map[cluster.KernelID]is{
			"k1": {session: "s", phase: cluster.PhaseRunning, dirty: true}, "k2": {session: "s", phase: cluster.PhaseCreating, stop: true}}, true},
		{"it runs, one of another session does not yet", map[cluster.KernelID]is{
			"k1": {session: "s", phase: cluster.PhaseRunning, dirty: true}, "k2": {session: "other", phase: cluster.PhaseCreating}}, true},
		{"it runs, another that nobody wants any more does not", map[cluster.KernelID]is{
			"k1": {session: "s", phase: cluster.PhaseRunning, dirty: true},
			"k2": {session: "s", phase: cluster.PhaseCreating, unknown: true}}, true},
		{"two sessions run, of one another kernel does not yet", map[cluster.KernelID]is{
			"k1": {session: "s", phase: cluster.PhaseRunning, dirty: true}, "k2": {session: "s", phase: cluster.PhaseCreating},
			"k3": {session: "other", phase: cluster.PhaseRunning, dirty: true}}, true},
		{"it runs as all of its session", map[cluster.KernelID]is{
			"k1": {session: "s", phase: cluster.PhaseRunning, dirty: true}, "k2": {session: "s", phase: cluster.PhaseRunning}}, true},
		{"one failed while another is created", map[cluster.KernelID]is{
			"k1": {session: "s", phase: cluster.PhaseEnded, dirty: true}, "k2": {session: "s", phase: cluster.PhaseCreating}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := &Keeper{kernels: map[cluster.KernelID]*kernel{}, report: newReport()}
			for id, is := range c.kernels {
				n := &kernel{id: id, k: k, obs: cluster.KernelObservation{Kernel: id, Session: is.session, Phase: is.phase}}
				if !is.unknown {
					n.desired = &cluster.DesiredKernel{Kernel: id, Session: is.session, Stop: is.stop}
				}
				k.kernels[id] = n
				if is.dirty {
					k.report.dirty[id] = true
				}
			}
			assert.Equal(t, c.want, k.Pressing())
		})
	}
}
