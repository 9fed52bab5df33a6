package diskguard_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/diskguard"
	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/diskspace"
)

const gib = int64(1 << 30)

// world is a host whose disks and kernels a test sets.
type world struct {
	chassis.Clock
	now     time.Time
	dir     string
	usage   diskspace.Usage
	kernels []keeper.Kernel
	homes   map[cluster.KernelID]diskspace.Usage
	layers  map[cluster.KernelID]runtime.LayerUse
	looks   int // at layers
	ended   map[cluster.KernelID]string
	notes   map[cluster.KernelID]string
	told    int
	slow    map[cluster.KernelID]bool // whose layers take longer to measure than there is time
}

func newWorld(t *testing.T, change ...func(*diskguard.Options)) (*world, *diskguard.Guard) {
	w := &world{Clock: chassis.RealClock(), now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), dir: t.TempDir(),
		usage: diskspace.Usage{Total: 100 * gib, Free: 50 * gib}, homes: map[cluster.KernelID]diskspace.Usage{},
		layers: map[cluster.KernelID]runtime.LayerUse{}, ended: map[cluster.KernelID]string{}, notes: map[cluster.KernelID]string{}}
	o := diskguard.Options{
		Agent: "a", Dirs: []string{w.dir, w.dir}, Disks: w, Scratch: w, Keeper: w, Interval: time.Second, Clock: w,
		Limits: diskguard.Limits{Low: diskspace.Mark{Bytes: 10 * gib}, Full: diskspace.Mark{Bytes: 4 * gib}, Layer: 10 * gib},
		Log:    slog.New(slog.DiscardHandler), Changed: func() { w.told++ },
		Of: func(string) (diskspace.Usage, error) { return w.usage, nil },
	}
	for _, f := range change {
		f(&o)
	}
	g := diskguard.New(o)
	return w, g
}

func (w *world) Now() time.Time                  { return w.now }
func (w *world) Running() []keeper.Kernel        { return w.kernels }
func (w *world) DataDir(context.Context) string  { return w.dir }
func (w *world) Homes(cluster.KernelID) []string { return []string{filepath.Join(w.dir, "home")} }
func (w *world) pass(d time.Duration)            { w.now = w.now.Add(d) }
func (w *world) run(id cluster.KernelID, u int64) {
	w.kernels = append(w.kernels, keeper.Kernel{ID: id, Generation: 1})
	w.home(id, u)
}
func (w *world) home(id cluster.KernelID, used int64) {
	w.homes[id] = diskspace.Usage{Total: 10 * gib, Free: 10*gib - used}
}

func (w *world) Usage(id cluster.KernelID) (diskspace.Usage, bool) {
	u, ok := w.homes[id]
	return u, ok
}

func (w *world) Layer(ctx context.Context, o runtime.Observed, _ int) (runtime.LayerUse, error) {
	w.looks++
	if w.slow[o.Identity.Kernel] || ctx.Err() != nil {
		<-ctx.Done()
		return runtime.LayerUse{Dir: w.dir}, ctx.Err()
	}
	l, ok := w.layers[o.Identity.Kernel]
	if !ok {
		return l, os.ErrNotExist
	}
	return l, nil
}

func (w *world) Evict(id cluster.KernelID, _ int64, reason cluster.Reason, detail string) bool {
	if reason != cluster.ReasonDiskFull {
		panic(reason)
	}
	w.ended[id] = detail
	return true
}

func (w *world) Note(id cluster.KernelID, _ int64, text string) { w.notes[id] = text }

func TestOneAfterTheOther(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t)
	w.run("first", 0)
	w.run("second", 0)
	w.run("quiet", 9*gib)
	require.False(t, g.Look(t.Context()))
	w.pass(time.Minute)
	w.home("first", 9*gib)
	w.home("second", 8*gib)
	w.usage.Free = 3 * gib
	require.True(t, g.Look(t.Context()))
	require.Contains(t, w.ended["first"], "this session had written 9.0 GiB")
	require.Len(t, w.ended, 1)
	w.pass(time.Second)
	g.Look(t.Context())
	require.Len(t, w.ended, 1, "its space comes back yet")
	w.pass(5 * time.Second)
	g.Look(t.Context())
	require.Contains(t, w.ended, cluster.KernelID("second"), "it did not help")
	w.pass(5 * time.Second)
	g.Look(t.Context())
	require.NotContains(t, w.ended, cluster.KernelID("quiet"), "it wrote nothing")
}

func TestWhenNoKernelsShouldCome(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t)
	g.Look(t.Context())
	require.Empty(t, g.Problem())
	w.usage.Free = 10*gib - 1
	require.True(t, g.Look(t.Context()))
	require.Contains(t, g.Problem(), "has less than 10 GiB free; no kernels are started here")
	w.usage.Free = 11*gib - 1
	require.False(t, g.Look(t.Context()))
	require.False(t, g.Look(t.Context()))
	require.NotEmpty(t, g.Problem(), "a little more than the mark is not enough")
	w.usage.Free = 11 * gib
	g.Look(t.Context())
	require.Empty(t, g.Problem())
	require.Equal(t, 2, w.told)
	w.usage.Inodes, w.usage.FreeInodes = 1000, 1
	g.Look(t.Context())
	require.Contains(t, g.Problem(), "no room for new files")
}

func TestOwnersAreTold(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t)
	w.run("k", 9*gib)
	g.Look(t.Context())
	require.Empty(t, w.notes)
	w.home("k", 10*gib)
	w.pass(5 * time.Second)
	g.Look(t.Context())
	require.Contains(t, w.notes["k"], "own disk of 10 GiB (home, /tmp and /var/tmp) is full")
	w.home("k", 5*gib)
	w.pass(5 * time.Second)
	g.Look(t.Context())
	require.Equal(t, "the session's own disk has room again", w.notes["k"])
	require.Empty(t, w.ended)
}

func TestLayersAreMeasuredNowAndThen(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t)
	w.run("k", 0)
	w.layers[""] = runtime.LayerUse{Dir: w.dir, Bytes: gib, Complete: true}
	g.Look(t.Context())
	g.Look(t.Context())
	require.Equal(t, 1, w.looks)
	w.layers[""] = runtime.LayerUse{Dir: w.dir, Bytes: 11 * gib, Complete: true}
	w.pass(31 * time.Second)
	g.Look(t.Context())
	require.Equal(t, 2, w.looks)
	require.Contains(t, w.ended["k"], "wrote 11 GiB outside of its home")
	w.usage.Free = 5 * gib
	w.pass(time.Second)
	g.Look(t.Context())
	require.Equal(t, 3, w.looks, "at every look while a disk is low")
}

func TestRunEnds(t *testing.T) {
	t.Parallel()
	_, g := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, g.Run(ctx), context.Canceled)
}

// TestARestartIsNoRefuge: a session that is restarted while it is told to end is judged again.
func TestARestartIsNoRefuge(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t)
	w.kernels = []keeper.Kernel{{ID: "evil", Generation: 1, Container: runtime.Observed{Identity: runtime.Identity{Kernel: "evil"}}}}
	w.layers["evil"] = runtime.LayerUse{Bytes: 11 * gib, Complete: true, Dir: w.dir}
	g.Look(t.Context())
	g.Look(t.Context())
	require.Contains(t, w.ended["evil"], "10 GiB are allowed")

	// It is being stopped for a restart already, so it goes on as another generation.
	delete(w.ended, "evil")
	w.kernels[0].Generation = 2
	w.pass(time.Hour)
	g.Look(t.Context())
	require.Contains(t, w.ended["evil"], "10 GiB are allowed")
}

// TestManyFilesHideNobody: a session whose files take all the time there is to count keeps no other from being measured.
func TestManyFilesHideNobody(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, func(o *diskguard.Options) { o.Patience = 20 * time.Millisecond })
	for _, id := range []cluster.KernelID{"a-slow", "b-evil"} {
		w.kernels = append(w.kernels, keeper.Kernel{ID: id, Generation: 1, Container: runtime.Observed{Identity: runtime.Identity{Kernel: id}}})
	}
	w.slow = map[cluster.KernelID]bool{"a-slow": true}
	w.layers["b-evil"] = runtime.LayerUse{Bytes: 11 * gib, Complete: true, Dir: w.dir}
	for tries := 0; w.ended["b-evil"] == "" && tries < 50; tries++ {
		g.Look(t.Context())
		w.pass(time.Hour)
	}
	require.Contains(t, w.ended["b-evil"], "10 GiB are allowed")
}
