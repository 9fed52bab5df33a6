package cluster_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestAmountsAsText(t *testing.T) {
	t.Parallel()
	for amount, want := range map[cluster.Amount]string{
		0: "0", 1: "0.001", 10: "0.01", 500: "0.5", 999: "0.999", 1000: "1", 1010: "1.01", 10_000: "10", 2_500: "2.5",
		-1: "-0.001", -2500: "-2.5", -3000: "-3",
	} {
		require.Equal(t, want, amount.String())
	}
	require.Equal(t, cluster.Amount(3000), cluster.Whole(3))
	require.EqualValues(t, 2, cluster.Amount(2999).Units())
	require.EqualValues(t, 3, cluster.Whole(3).Units())
}

func TestParseAmountAccepts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]cluster.Amount{
		"0": 0, "2": 2000, " 2 ": 2000, "1_000": 1_000_000, "0.001": 1, "1.250": 1250, "010": 10_000, ".5": 500,
		"00000000000000000002": 2000, "9223372036854775.807": 9223372036854775807,
	} {
		got, err := cluster.ParseAmount(cluster.SlotCount, text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		got, err = cluster.ParseAmount(cluster.SlotUnique, text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	got, err := cluster.ParseAmount(cluster.SlotBytes, "1.5g")
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(3<<29), got)
	_, err = cluster.ParseAmount(cluster.SlotCount, "1g")
	require.Error(t, err, "units belong to bytes")
	_, err = cluster.ParseAmount(cluster.SlotBytes, "0.3")
	require.Equal(t, fault.Invalid, fault.KindOf(err), "bytes are whole")
}

// Decimal digits alone: the library that does the arithmetic knows other bases, exponents and fractions as well.
func TestParseAmountRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"0x10", "0b11", "0o17", "0x1p3", "0x.8", "inf", "NaN", "1e3", "1E3", "1/3", "+1", "-1", ".", "0.1.2", "1 0", "٣",
		"000000000000000000002", "9223372036854775.808", "9223372036854776",
	} {
		got, err := cluster.ParseAmount(cluster.SlotCount, text)
		require.Equal(t, fault.Invalid, fault.KindOf(err), text)
		require.NotEmpty(t, fault.NextOf(err), text)
		require.Zero(t, got, text)
	}
}

func TestParseBytesUnits(t *testing.T) {
	t.Parallel()
	for i, unit := range []string{"k", "m", "g", "t", "p"} {
		want := int64(1) << (10 * (i + 1))
		for _, suffix := range []string{"", "b", "ib", "byte", "bytes", "ibyte", "ibytes", "B", "iB"} {
			for _, text := range []string{"1" + unit + suffix, "1 " + strings.ToUpper(unit) + suffix} {
				got, err := cluster.ParseBytes(text)
				require.NoError(t, err, text)
				require.Equal(t, want, got, text)
			}
		}
	}
	for text, want := range map[string]int64{
		"0.0078125e": 1 << 53, "8p": 1 << 53, "9223372036854775": 9223372036854775, "5b": 5, "5byte": 5, "0.5 KiB": 512, "9": 9, "1.": 1,
		"00000000000000000000000" + "1": 1,
	} {
		got, err := cluster.ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"9223372036854776", "9p", "1e", "5i", "5ibytes", "1kk", "1ki", "1kbit", ".", "1:", "1;k", "0x10", "1/2", "000000000000000000000000" + "1",
	} {
		got, err := cluster.ParseBytes(text)
		require.Equal(t, fault.Invalid, fault.KindOf(err), text)
		require.Zero(t, got, text)
	}
}

func TestSlotsArithmeticLeavesItsOperandsAlone(t *testing.T) {
	t.Parallel()
	a, b := cluster.Slots{"cpu": 2000, "mem": 500}, cluster.Slots{"cpu": 500, "cuda.device": 1000}
	require.Equal(t, cluster.Slots{"cpu": 2500, "mem": 500, "cuda.device": 1000}, a.Add(b))
	require.Equal(t, cluster.Slots{"cpu": 1500, "mem": 500, "cuda.device": -1000}, a.Sub(b))
	require.Equal(t, cluster.Slots{"cuda.device": 1000}, a.Shortfall(b))
	require.Equal(t, cluster.Slots{}, a.Shortfall(cluster.Slots{"cpu": 2000}), "as much as there is")
	require.True(t, a.Covers(cluster.Slots{"cpu": 2000, "mem": 500, "other": 0}))
	require.False(t, a.Covers(cluster.Slots{"cpu": 2001}))
	require.Equal(t, []cluster.SlotName{"cpu", "mem"}, a.Names())
	require.Equal(t, map[string]string{"cpu": "2", "mem": "0.5"}, a.Wire())
	c := a.Clone()
	c["cpu"] = 1
	require.Equal(t, cluster.Slots{"cpu": 2000, "mem": 500}, a)
	require.Equal(t, cluster.Slots{"cpu": 500, "cuda.device": 1000}, b)
}
