package keeper_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// plainImage has no user of the shared number, as images usually have not.
const plainImage = "berth/plain:latest"

func newUsersRig(t *testing.T, count int) *rig {
	r := newRig(t)
	r.users = keeper.Users{First: 50_000, Count: count}
	r.engine.AddImage(runtime.Image{References: []string{plainImage}}, map[string][]byte{
		"/etc/passwd": []byte("root:x:0:0:root:/root:/bin/sh\n"), "/etc/group": []byte("root:x:0:\n"),
	})
	r.start()
	return r
}

func plain(d *cluster.DesiredKernel) { d.Spec.Image = plainImage }

// user is the number that the runner of a kernel is told to run commands as.
func (r *rig) user(n int) int {
	r.t.Helper()
	conf, err := r.host.Runner(kernelID(n))
	require.NoError(r.t, err)
	passwd, err := os.ReadFile(r.host.Path(kernelID(n), "etc", "passwd"))
	require.NoError(r.t, err)
	require.Contains(r.t, string(passwd), "work:x:"+strconv.Itoa(conf.User.UID)+":9001:", "the user has a name")
	return conf.User.UID
}

// TestKernelsHaveUserNumbersOfTheirOwn: no two live kernels have one number, also when the agent is killed and its ledger lost, and a
// kernel keeps its own over restarts.
func TestKernelsHaveUserNumbersOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newUsersRig(t, 4)
	r.want(true, desired(1, plain), desired(2, plain))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	one, two := r.user(1), r.user(2)
	numbers := map[int]bool{50_000: true, 50_001: true, 50_002: true, 50_003: true}
	take := func(uids ...int) {
		t.Helper()
		for _, uid := range uids {
			require.True(t, numbers[uid], "%d is another's, or not of the range", uid)
			delete(numbers, uid)
		}
	}
	take(one, two)

	r.kill()
	r.start()
	again := func(d *cluster.DesiredKernel) { d.Generation = 2 }
	r.want(true, desired(1, plain), desired(2, plain, again), desired(3, plain))
	r.awaitPhase(kernelID(2), 2, cluster.PhaseRunning)
	r.awaitPhase(kernelID(3), 1, cluster.PhaseRunning)
	require.Equal(t, []int{one, two}, []int{r.user(1), r.user(2)}, "after kill -9")
	take(r.user(3))

	// The ledger is lost: what runs says itself which number it has.
	r.kill()
	require.NoError(t, os.Remove(r.dir+"/ledger.db"))
	r.start()
	r.want(true, desired(1, plain), desired(2, plain, again), desired(3, plain), desired(4, plain), desired(5, plain))
	r.awaitPhase(kernelID(4), 1, cluster.PhaseRunning)
	r.awaitPhase(kernelID(5), 1, cluster.PhaseRunning)
	last := []int{r.user(4), r.user(5)}
	slices.Sort(last)
	require.Equal(t, 9001, last[0], "all are taken: the last one shares")
	take(last[1])
	require.Len(t, r.keeper.Shared(), 1)
	require.Contains(t, r.keeper.Shared()[0], "1 kernels share the user number 9001, and with it limits of this host's kernel: all user")

	// A number is free when nothing of its kernel is left.
	r.want(false, stopped(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	r.want(false, desired(6, plain))
	r.awaitPhase(kernelID(6), 1, cluster.PhaseRunning)
	require.Equal(t, 9001, r.user(6), "its end is not acknowledged yet")
	r.keeper.Ack([]cluster.Tombstone{{Kernel: kernelID(1), Generation: 1}})
	require.Eventually(t, func() bool { return len(r.ledger.Records()) == 5 }, time.Minute, time.Millisecond)
	r.want(false, desired(7, plain))
	r.awaitPhase(kernelID(7), 1, cluster.PhaseRunning)
	require.Equal(t, one, r.user(7))
}

// TestWhoCannotHaveAUserNumberOfItsOwn runs as the shared one, and the agent says why.
func TestWhoCannotHaveAUserNumberOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newUsersRig(t, 10)
	r.want(true, desired(1, plain, withFolder), desired(2), desired(3, plain, func(d *cluster.DesiredKernel) { d.Spec.UID = 4321 }))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	r.awaitPhase(kernelID(3), 1, cluster.PhaseRunning)
	require.True(t, r.host.Owners()[0].Own)
	require.Equal(t, r.host.Owners()[0].UID, r.user(1))
	require.Equal(t, 9001, r.user(2), "its image has a user of that number")
	require.Equal(t, 4321, r.user(3), "the manager named one")
	require.Len(t, r.keeper.Shared(), 1)
	require.Contains(t, r.keeper.Shared()[0], "their image has a user of the number 9001")

	r.host.KeepOwners()
	r.want(false, desired(4, plain, withFolder))
	r.awaitPhase(kernelID(4), 1, cluster.PhaseRunning)
	require.Equal(t, 9001, r.user(4))
	owners := r.host.Owners()
	require.False(t, owners[len(owners)-1].Own)
	require.Contains(t, strings.Join(r.keeper.Shared(), "\n"), "the files of volume local:volume1 keep their owner")
}
