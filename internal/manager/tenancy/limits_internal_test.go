package tenancy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Totals of domains and projects and limits of policies are read alike; what no database can hold is refused with words.
func TestLimitsAreRead(t *testing.T) {
	t.Parallel()
	kinds := map[cluster.SlotName]cluster.SlotKind{cluster.SlotMem: cluster.SlotBytes}
	got, err := readLimits("x", map[string]string{"mem": "1g", "gpu": "2", "cpu": "", "disk": "Infinity"}, kinds)
	require.NoError(t, err)
	require.Equal(t, cluster.Slots{"mem": cluster.Whole(1 << 30), "gpu": cluster.Whole(2)}, got)
	for _, slot := range []string{"", "a\x00b", "\xff", strings.Repeat("a", maxName+1)} {
		_, err := readLimits("x", map[string]string{slot: "1"}, kinds)
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", slot, err)
	}
	_, err = readLimits("x", map[string]string{"cpu": "many"}, kinds)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}
