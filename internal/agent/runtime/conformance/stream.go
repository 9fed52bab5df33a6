package conformance

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// split sorts combined output into its two streams.
func split(text string) (out, err []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "out ") {
			out = append(out, line)
		} else {
			err = append(err, line)
		}
	}
	return out, err
}

func numbered(prefix string, n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("%s %d\n", prefix, i)
	}
	return lines
}

const printed = 300

func logsComplete(w *world) {
	k := w.ensure("print", fmt.Sprint(printed)).Identity.Kernel
	w.untilLine(k, fmt.Sprintf("out %d", printed-1))
	w.untilLine(k, fmt.Sprintf("err %d", printed-1))
	out, errs := split(w.wholeLog(k, runtime.LogOptions{}))
	require.Equal(w, numbered("out", printed), out)
	require.Equal(w, numbered("err", printed), errs)
}

func logsTail(w *world) {
	k := w.ensure("print", fmt.Sprint(printed)).Identity.Kernel
	w.untilLine(k, fmt.Sprintf("out %d", printed-1))
	w.untilLine(k, fmt.Sprintf("err %d", printed-1))
	all := strings.SplitAfter(w.wholeLog(k, runtime.LogOptions{}), "\n")
	last := strings.SplitAfter(w.wholeLog(k, runtime.LogOptions{Tail: 5}), "\n")
	require.Equal(w, all[len(all)-6:], last, "five lines and the empty rest")
}

func logsFollow(w *world) {
	k := w.ensure("wait").Identity.Kernel
	log, err := w.rt.Logs(w.ctx, k, runtime.LogOptions{Follow: true})
	require.NoError(w, err)
	defer log.Close()
	lineOf(w, log, "waiting") // arrives while the container runs
	require.NoError(w, w.rt.Stop(w.ctx, k, patience))
	rest, err := io.ReadAll(log)
	require.NoError(w, err, "the end of the container is the end of the stream")
	require.Equal(w, "asked to end\n", string(rest))
}

func logsCancel(w *world) {
	k := w.ensure("wait").Identity.Kernel
	ctx, cancel := context.WithCancel(w.ctx)
	log, err := w.rt.Logs(ctx, k, runtime.LogOptions{Follow: true})
	require.NoError(w, err)
	lineOf(w, log, "waiting")
	cancel()
	_, err = io.ReadAll(log)
	require.Error(w, err)
	require.NoError(w, log.Close())

	log, err = w.rt.Logs(w.ctx, k, runtime.LogOptions{Follow: true})
	require.NoError(w, err)
	lineOf(w, log, "waiting")
	require.NoError(w, log.Close())
	_, err = io.ReadAll(log)
	require.Error(w, err)
}

func logsAbsent(w *world) {
	_, err := w.rt.Logs(w.ctx, cluster.KernelID(uuid.NewString()), runtime.LogOptions{})
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
}

func stats(w *world) {
	o := w.ensure("print", "1")
	w.untilLine(o.Identity.Kernel, "out 0")
	s, err := w.rt.Stats(w.ctx, o)
	require.NoError(w, err)
	require.False(w, s.At.IsZero())
	for name, v := range map[string]*int64{"cpu": s.CPUUsedNs, "memory": s.MemoryBytes, "pids": s.Pids} {
		require.NotNil(w, v, name)
		require.Positive(w, *v, name)
	}
	require.LessOrEqual(w, *s.MemoryBytes, int64(64<<20), "within its limit")
	for name, v := range map[string]*int64{"rx": s.NetRxBytes, "tx": s.NetTxBytes, "oom": s.OOMKills} {
		require.NotNil(w, v, name)
		require.GreaterOrEqual(w, *v, int64(0), name)
	}
	require.Zero(w, *s.OOMKills)
	again, err := w.rt.Stats(w.ctx, o)
	require.NoError(w, err)
	require.GreaterOrEqual(w, *again.CPUUsedNs, *s.CPUUsedNs, "counters only grow")
}

func statsStopped(w *world) {
	o := w.ensure("wait")
	_, err := w.rt.Stats(w.ctx, o)
	require.NoError(w, err)
	require.NoError(w, w.rt.Stop(w.ctx, o.Identity.Kernel, 0))
	_, err = w.rt.Stats(w.ctx, o)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "gone since it was observed: %v", err)
	ended, err := w.rt.Inspect(w.ctx, o.Identity.Kernel)
	require.NoError(w, err)
	_, err = w.rt.Stats(w.ctx, ended)
	require.Equal(w, fault.Conflict, fault.KindOf(err), "%v", err)
}

// awaitHint reads hints until one is for the kernel, or for all.
func (w *world) awaitHint(hints <-chan runtime.Hint, k cluster.KernelID) {
	w.Helper()
	for {
		select {
		case h, ok := <-hints:
			require.True(w, ok, "the watch ended")
			if h.Kernel == k {
				return
			}
		case <-w.ctx.Done():
			require.FailNow(w, "no hint came", "kernel %q", k)
		}
	}
}

func watch(w *world) {
	hints := w.rt.Watch(w.ctx)
	w.awaitHint(hints, "") // connected
	k := w.ensure("wait").Identity.Kernel
	w.awaitHint(hints, k)
	require.NoError(w, w.rt.Stop(w.ctx, k, patience))
	w.awaitHint(hints, k)
	require.NoError(w, w.rt.Remove(w.ctx, k))
	w.awaitHint(hints, k)
}

func watchEnds(w *world) {
	ctx, cancel := context.WithCancel(w.ctx)
	hints := w.rt.Watch(ctx)
	w.awaitHint(hints, "")
	cancel()
	for range hints { // must be closed
	}
}

func watchReconnects(w *world) {
	hints := w.rt.Watch(w.ctx)
	w.awaitHint(hints, "")
	restore := w.fix.Lose()
	restore()
	w.awaitHint(hints, "")
	k := w.ensure("wait").Identity.Kernel
	w.awaitHint(hints, k)
}
