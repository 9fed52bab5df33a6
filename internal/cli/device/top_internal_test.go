package device

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/device"
	"berth.dev/berth/internal/testkit/await"
)

func someTop(asOf string, read float64) device.Top {
	devices := []device.Held{
		{Slot: "cuda.device", ID: "GPU-0", Model: "A100", Healthy: new(true), Use: map[string]float64{"cuda_util": 80, "cuda_mem": 7 << 30,
			"cuda_mem_total": 80 << 30, "cuda_power": 250.4, "cuda_temperature": 61}},
		{Slot: "cuda.device", ID: "GPU-1", Model: "A100", Healthy: new(false)},
		{Slot: "cpu", ID: "0"}, {Slot: "mem", ID: "root"},
	}
	return device.Top{Total: 3, AsOf: asOf, Sessions: []device.Session{
		{Name: "train", User: "a@x", Status: "RUNNING", Kernels: []device.Kernel{{ID: "k1", Hostname: "main1", Devices: devices,
			Slots: map[string]string{"cpu": "2", "mem": "4294967296", "cuda.device": "2"},
			Use:   map[string]float64{"cpu_util": 150, "mem": 1 << 30, "cuda_util": 80, "cuda_mem": 7 << 30, "io_read": read}}}},
		{Name: "unknown", User: "b@x", Status: "RUNNING", Kernels: []device.Kernel{{ID: "k2", Hostname: "main1"}, {ID: "k3", Hostname: "sub1"}}},
	}}
}

func text(t *testing.T, now device.Top, before *reading, all bool) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, table(now, before, all).Write(&b, false))
	return b.String()
}

func TestTopTable(t *testing.T) {
	t.Parallel()
	before := readingOf(someTop("2026-01-31T08:00:00+00:00", 1<<20), time.Time{})
	got := text(t, someTop("2026-01-31T08:00:02+00:00", 5<<20), before, false) + "\n" +
		text(t, someTop("2026-01-31T08:00:02+00:00", 0), before, true)
	if flag.Lookup("update").Value.String() == "true" { // of the other test file
		require.NoError(t, os.WriteFile("testdata/top.txt", []byte(got), 0o644)) //nolint:gosec // part of the repository
	}
	want, err := os.ReadFile("testdata/top.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), got)

	many := device.Top{Total: 500}
	for i := range 500 {
		many.Sessions = append(many.Sessions, device.Session{Name: strconv.Itoa(i), Status: "RUNNING", Kernels: []device.Kernel{{ID: "k"}}})
	}
	lines := strings.Split(strings.TrimSpace(text(t, many, nil, false)), "\n")
	require.Len(t, lines, topRows+2, "what is printed has a bound")
	require.Contains(t, lines[len(lines)-1], "and 300 lines more")
}

// It looks again at each tick, shows a failure and goes on, and ends when somebody interrupts or it fails too often.
func TestTopLooksAgain(t *testing.T) {
	t.Parallel()
	ticks, interrupts, looks := make(chan time.Time), make(chan struct{}), 0
	fails := map[int]bool{2: true}
	look := func(context.Context) (device.Top, error) {
		looks++
		if fails[looks] {
			return device.Top{}, errors.New("it is\x1b[2J away")
		}
		return someTop("2026-01-31T08:00:0"+strconv.Itoa(looks*2)+"+00:00", float64(looks)*(2<<20)), nil
	}
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- watch(t.Context(), &out, false, false, someTop("2026-01-31T08:00:00+00:00", 0), look, ticks, interrupts)
	}()
	for range 3 {
		ticks <- time.Time{}
	}
	interrupts <- struct{}{}
	require.NoError(t, await.Value(t, done))
	require.Equal(t, 3, looks)
	shown := strings.Split(out.String(), "\x1b[H\x1b[2J")
	require.Len(t, shown, 4, "three tables")
	require.NotContains(t, shown[1], "/s")
	require.Contains(t, shown[2], "1 MiB/s")
	require.Contains(t, shown[2], "it is\ufffd[2J away")
	require.Contains(t, shown[3], "1 MiB/s", "four MiB in four seconds")

	fails = map[int]bool{4: true, 5: true, 6: true, 7: true, 8: true}
	go func() {
		done <- watch(t.Context(), &out, false, false, someTop("2026-01-31T08:00:00+00:00", 0), look, ticks, interrupts)
	}()
	for range topFailures {
		ticks <- time.Time{}
	}
	require.ErrorContains(t, await.Value(t, done), "away")
}
