package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestParseBytes(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]int64{
		"0": 0, "1073741824": 1 << 30, "1g": 1 << 30, "1.5g": 3 << 29, "512m": 512 << 20, "512MiB": 512 << 20,
		"64 kb": 64 << 10, "1_000": 1000, "2GB": 2 << 30, "0.5k": 512, "7 bytes": 7, " 1T ": 1 << 40,
	} {
		got, err := cluster.ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "g", "-1", "1.5", "0.3k", "1x", "1gx", "1e9", "1/2g", "1..2g", "9999p", "ib", "1ib", "99999999999999999999999999",
	} {
		_, err := cluster.ParseBytes(text)
		require.Error(t, err, text)
		require.Equal(t, fault.Invalid, fault.KindOf(err), text)
		require.NotEmpty(t, fault.NextOf(err), text)
	}
}

func TestParseAmount(t *testing.T) {
	t.Parallel()

	got, err := cluster.ParseAmount(cluster.SlotCount, "0.5")
	require.NoError(t, err)
	require.Equal(t, cluster.Amount(500), got)
	for _, text := range []string{"", "-1", "1e3", "0.0001", "one", "1/3", "+1", "999999999999999999"} {
		_, err := cluster.ParseAmount(cluster.SlotCount, text)
		require.Equal(t, fault.Invalid, fault.KindOf(err), text)
	}
}

func TestAmountTextRoundTrips(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		a := cluster.Amount(rapid.Int64Range(0, 1<<53).Draw(t, "amount"))
		back, err := cluster.ParseAmount(cluster.SlotCount, a.String())
		require.NoError(t, err)
		require.Equal(t, a, back)
	})
}

func TestSlotsShortfallIsWhatIsMissing(t *testing.T) {
	t.Parallel()

	names := rapid.SampledFrom([]cluster.SlotName{"cpu", "mem", "cuda.device"})
	slots := rapid.MapOf(names, rapid.Custom(func(t *rapid.T) cluster.Amount {
		return cluster.Amount(rapid.Int64Range(0, 1e6).Draw(t, "a"))
	}))
	rapid.Check(t, func(t *rapid.T) {
		have := cluster.Slots(slots.Draw(t, "have"))
		want := cluster.Slots(slots.Draw(t, "want"))
		short := have.Shortfall(want)
		require.Equal(t, len(short) == 0, have.Covers(want))
		require.True(t, have.Add(short).Covers(want), "with the shortfall added it fits")
		for name, v := range short {
			require.Positive(t, v)
			require.Equal(t, want[name], have[name]+v)
		}
	})
}

func TestSessionNames(t *testing.T) {
	t.Parallel()

	for _, ok := range []string{"abcd", "my-session", "a.b.c", "____", "pysdk-0123456789", "A9_z"} {
		require.NoError(t, cluster.CheckSessionName(ok), ok)
	}
	for _, bad := range []string{"", "abc", "-abc", "abc-", ".abcd", "has space", "naïve", "a/b/c", "abcd\n", string(make([]byte, 65))} {
		require.Equal(t, fault.Invalid, fault.KindOf(cluster.CheckSessionName(bad)), bad)
	}
}

func TestCanonicalUUID(t *testing.T) {
	t.Parallel()

	const dashed = "0123abcd-4567-89ef-0123-456789abcdef"
	for _, text := range []string{dashed, "0123ABCD-4567-89EF-0123-456789ABCDEF", "0123abcd456789ef0123456789abcdef"} {
		got, ok := cluster.CanonicalUUID(text)
		require.True(t, ok, text)
		require.Equal(t, dashed, got)
	}
	for _, text := range []string{"", "demo", "0123abcd-4567-89ef-0123456789abcdef-", "0123abcd456789ef0123456789abcdeg", "{" + dashed + "}"} {
		_, ok := cluster.CanonicalUUID(text)
		require.False(t, ok, text)
	}
}

// One agent that lies about how a slot is counted changes nothing for the others, wherever it stands in the list.
func TestAgreedKinds(t *testing.T) {
	t.Parallel()
	honest := map[string]string{"cpu": "count", "mem": "bytes", "npu.mem": "bytes"}
	liar := map[string]string{"cpu": "bytes", "mem": "count", "npu.mem": "count", "own": "unique"}
	for _, list := range [][]map[string]string{{liar, honest, honest}, {honest, liar, honest}, {honest, honest, liar}} {
		require.Equal(t, map[cluster.SlotName]cluster.SlotKind{
			"cpu": cluster.SlotCount, "mem": cluster.SlotBytes, "npu.mem": cluster.SlotBytes, "own": cluster.SlotUnique,
		}, cluster.AgreedKinds(list))
	}
	require.Equal(t, cluster.SlotBytes, cluster.KindOf("mem", map[cluster.SlotName]cluster.SlotKind{"mem": cluster.SlotCount}))
	require.Equal(t, cluster.AgreedKinds([]map[string]string{honest, liar}), cluster.AgreedKinds([]map[string]string{liar, honest}))
	require.Len(t, cluster.AgreedKinds[map[string]string](nil), 2)
}
