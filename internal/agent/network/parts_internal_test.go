package network

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// kernel takes tables as the test says.
type kernel struct {
	rules
	noBridges bool
	err       error // of every call
	last      []table
}

func (k *kernel) put(list []table) error {
	if k.err != nil {
		return fmt.Errorf("set the rules: %w", k.err)
	}
	if k.noBridges && len(list) == 2 && list[1].table.Family == nftables.TableFamilyBridge {
		return unix.EAFNOSUPPORT
	}
	k.last = list
	return nil
}

// TestAPassingErrorDropsNothing: tables lose a part where the kernel lacks it, and for no other reason. It comes back when the kernel has
// it, and what a kernel took once it does not lack.
func TestAPassingErrorDropsNothing(t *testing.T) {
	t.Parallel()
	n, err := New(Options{Config: DefaultConfig(), Scope: "s", Agent: "a1", Log: slog.New(slog.DiscardHandler),
		Clock: chassis.RealClock(), Changed: func() {}})
	require.NoError(t, err)
	n.subnet, n.share = netip.MustParsePrefix("10.222.0.0/22"), 100
	k := &kernel{}
	for _, passing := range []error{unix.ENOBUFS, unix.EBUSY, unix.ENOMEM, unix.EINTR, unix.EAGAIN} {
		k.err = passing
		require.ErrorIs(t, n.put(k), passing, "the caller says so and tries again")
		require.True(t, n.bridged && n.counted, "%v", passing)
	}
	k.err, k.noBridges = nil, true
	require.NoError(t, n.put(k))
	require.False(t, n.bridged)
	require.Len(t, k.last, 1)
	for n.rounds = 1; n.rounds < engineRounds; n.rounds++ {
		n.complete(k)
		require.False(t, n.bridged)
	}
	n.complete(k)
	require.False(t, n.bridged, "it is not there yet")
	k.noBridges = false
	n.complete(k)
	require.True(t, n.bridged && n.counted, "it is there now")
	require.Len(t, k.last, 2)

	k.noBridges = true
	require.ErrorIs(t, n.put(k), unix.EAFNOSUPPORT, "it was there")
	require.True(t, n.bridged && n.counted)
}

// TestConnectBeforeTheNetworkIsThere: after a restart the agent knows its containers before it has looked at the network.
func TestConnectBeforeTheNetworkIsThere(t *testing.T) {
	t.Parallel()
	n := &Network{guarded: true, members: map[cluster.KernelID]*session{"k": {address: netip.MustParseAddr("10.0.0.2")}}}
	require.True(t, fault.Is(n.Connect("k", os.Getpid()), fault.Unavailable))
	n.problem = fault.Unavailablef("the engine is away")
	require.ErrorIs(t, n.Connect("k", os.Getpid()), n.problem)
}
