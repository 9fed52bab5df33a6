package ledger_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/loopdisk"
	"berth.dev/berth/internal/cluster"
)

// TestAFullDiskTakesRecords: the ledger has its space from the start, so that ends are recorded on a disk that others filled.
func TestAFullDiskTakesRecords(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/loop-control"); err != nil || os.Geteuid() != 0 {
		t.Skip("only root may mount a small file system, and the kernel needs loop devices")
	}
	disk := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, loopdisk.Make(t.Context(), disk, loopdisk.MinSize))
	t.Cleanup(func() { require.NoError(t, loopdisk.Remove(disk)) })
	l, err := ledger.Open(filepath.Join(loopdisk.Mount(disk), "ledger.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	fill, err := os.Create(filepath.Join(loopdisk.Mount(disk), "fill"))
	require.NoError(t, err)
	for block := make([]byte, 4096); err == nil; _, err = fill.Write(block) {
	}
	require.ErrorContains(t, err, "no space left on device")
	require.NoError(t, fill.Close())
	for i := range 500 {
		id := cluster.KernelID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
		final := &cluster.KernelObservation{Kernel: id, Phase: cluster.PhaseEnded, Detail: "the disk was full"}
		require.NoError(t, l.Put(&ledger.Record{Kernel: id, Generation: 1, Final: final}), "record %d", i)
	}
}
