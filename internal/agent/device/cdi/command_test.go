package cdi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/device/cdi"
)

func (h *host) pipe(name string) { require.NoError(h.t, unix.Mkfifo(h.dir+"/"+name, 0o600)) }

func TestRunIsBounded(t *testing.T) {
	t.Parallel()
	out, err := cdi.Run(t.Context(), []string{"/bin/sh", "-c", "echo $LC_ALL $HOME; pwd; cat"})
	require.NoError(t, err)
	require.Equal(t, "C\n/\n", string(out), "it inherits nothing and reads nothing")
	_, err = cdi.Run(t.Context(), []string{"/bin/sh", "-c", "exit 3"})
	require.ErrorContains(t, err, "exit status 3")
	_, err = cdi.Run(t.Context(), []string{"/nonexistent/program"})
	require.Error(t, err)
	_, err = cdi.Run(t.Context(), []string{"/bin/sh", "-c", "while :; do echo 0123456789012345678901234567890123456789; done"})
	require.Error(t, err, "it prints without end")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = cdi.Run(ctx, []string{"/bin/sh", "-c", "sleep 600 & sleep 600"})
	require.ErrorIs(t, err, context.DeadlineExceeded, "with everything that it started")
}

func TestParseMetrics(t *testing.T) {
	t.Parallel()
	got := cdi.ParseMetrics([]byte(strings.Join([]string{
		"a util 5", "a util 7.5", " a  mem  1e3 ", "a colour 3", "a util", "a util many", "b power -1", "b power NaN", "b power +Inf", "",
		`{"device":"c","util":3,"mem_total":8,"name":"x","temperature":null}`, `{"util":3}`, `{"device":7,"util":3}`, `{"device":`,
	}, "\n")))
	require.Equal(t, map[string]map[string]float64{"a": {"util": 7.5, "mem": 1000}, "c": {"util": 3, "mem_total": 8}}, got)
}

func TestParseHealth(t *testing.T) {
	t.Parallel()
	got := cdi.ParseHealth([]byte("a ok\nb is\tgone\nc\n\n d ok\ne " + strings.Repeat("ü", 200) + "\n"))
	require.Equal(t, map[string]string{"a": "", "b": "is gone", "d": "", "e": strings.Repeat("ü", 128)}, got)
}
