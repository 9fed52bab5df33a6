// Package diskguard watches how full the disks of an agent's host are. It ends kernels that exceed a bound which no file system
// holds them to, and, when a disk is nearly full, those that filled it; and it says when no new kernels should come.
//
// The home and the temporary directories of a kernel have a file system of their own (package loopdisk) where the host can have such:
// that bound needs no watching, the kernel's disk is only looked at to tell its owner that it is full. What a container writes
// elsewhere, into its layer, is watched: an engine on a file system without quotas of directories cannot bound it.
//
// The decisions (decide.go) are pure. Nothing here writes to a disk.
package diskguard

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/hoststats"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/diskspace"
)

// Scratch measures the files of kernels.
type Scratch interface {
	// Usage is how full the disk of a kernel is; ok is false for a kernel without one.
	Usage(kernel cluster.KernelID) (u diskspace.Usage, ok bool)
	// Homes are the directories that the user of a kernel without a disk of its own fills.
	Homes(kernel cluster.KernelID) []string
}

// Keeper has the kernels; *keeper.Keeper satisfies it.
type Keeper interface {
	Running() []keeper.Kernel
	Evict(id cluster.KernelID, generation int64, reason cluster.Reason, detail string) bool
	Note(id cluster.KernelID, generation int64, text string)
}

// Options are what a guard needs.
type Options struct {
	Agent cluster.AgentID
	// Dirs are directories of the agent, which is where it looks how full their file systems are.
	Dirs []string
	// Disks measures layers of containers; nil where the runtime cannot tell.
	Disks   runtime.Disks
	Scratch Scratch
	Keeper  Keeper
	Limits  Limits
	// Interval is the time between two looks while there is room.
	Interval time.Duration
	Log      *slog.Logger
	Clock    chassis.Clock
	// Changed is called when Problem has changed.
	Changed func()
	// Patience is how long one measurement of all layers may take; 0 means 2 seconds.
	Patience time.Duration
	// Of asks a file system; nil means the real one.
	Of func(path string) (diskspace.Usage, error)
}

const (
	// pressInterval is the time between two looks while a disk is low.
	pressInterval = 200 * time.Millisecond
	// scratchEvery is the time between two looks at the disks of all kernels while there is room.
	scratchEvery = 5 * time.Second
	// layerEvery is the time between two measurements of all layers while there is room. Measuring takes at most one part in
	// layerShare of the time.
	layerEvery = 30 * time.Second
	layerShare = 20
	// maxFiles bounds how many files of one layer are counted.
	maxFiles = 200_000
	// Samples are kept for window, at most one in each keepEvery.
	window    = 10 * time.Minute
	keepEvery = 15 * time.Second
	// settle is how long the end of one kernel may take to give its space back before the next is ended.
	settle = 3 * time.Second
	// A kernel's own disk is told to be full above fullPercent, and to have room again below roomPercent.
	fullPercent, roomPercent = 99, 95
)

// Guard watches; make it with New.
type Guard struct {
	o Options

	mu      sync.Mutex
	problem string
	last    Sample

	// Owned by Run.
	earlier   []Sample
	layers    map[cluster.KernelID]Use
	after     cluster.KernelID // the last one that was measured
	measured  time.Time
	scratched time.Time
	pause     time.Duration
	ended     map[cluster.KernelID]ending
	full      map[cluster.KernelID]bool
}

// ending is a kernel that was told to end. Its next generation, after a restart, is judged like any other.
type ending struct {
	generation int64
	at         time.Time
}

// of reports whether this is about what now runs as the kernel.
func (e ending) of(u Use, runs bool) bool { return runs && u.Generation == e.generation }

// New returns a guard; Run makes it watch.
func New(o Options) *Guard {
	if o.Of == nil {
		o.Of = diskspace.Of
	}
	o.Patience = cmp.Or(o.Patience, 2*time.Second)
	return &Guard{o: o, layers: map[cluster.KernelID]Use{}, ended: map[cluster.KernelID]ending{}, full: map[cluster.KernelID]bool{}}
}

// Run watches until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	for {
		wait := g.o.Interval
		if g.Look(ctx) {
			wait = min(wait, pressInterval)
		}
		if err := chassis.Wait(ctx, g.o.Clock, wait); err != nil {
			return err
		}
	}
}

// Problem says why this host should get no more kernels; "" when it may.
func (g *Guard) Problem() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.problem
}

// Last is the newest look, for doctor.
func (g *Guard) Last() Sample {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// Look looks once and acts. It reports whether a disk is low.
func (g *Guard) Look(ctx context.Context) (low bool) {
	now := Sample{At: g.o.Clock.Now(), Disks: g.disks(ctx), Kernels: map[cluster.KernelID]Use{}}
	for _, d := range now.Disks {
		low = low || d.Usage.Below(g.o.Limits.Low)
	}
	running := g.o.Keeper.Running()
	again := low || now.At.Sub(g.scratched) >= scratchEvery
	if again {
		g.scratched = now.At
	}
	for _, k := range running {
		u, known := g.Last().Kernels[k.ID]
		if again || !known || u.Generation != k.Generation {
			u = g.scratch(k)
		}
		now.Kernels[k.ID] = u
	}
	// A disk that fills quickly leaves no time to measure layers when it is plain who fills it.
	if !g.judge(now, true) {
		g.measure(ctx, &now, running, low)
		g.judge(now, false)
	}
	g.tell(now, running)
	g.remember(now)
	g.say(now)
	return low
}

// disks looks at the file systems of the agent's directories and of the engine, each once.
func (g *Guard) disks(ctx context.Context) []Disk {
	dirs := slices.Clone(g.o.Dirs)
	if g.o.Disks != nil {
		if dir := g.o.Disks.DataDir(ctx); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	var out []Disk
	for _, dir := range dirs {
		id, ok := diskOf(dir)
		if !ok || slices.ContainsFunc(out, func(d Disk) bool { return d.ID == id }) {
			continue
		}
		u, err := g.o.Of(dir)
		if err != nil {
			g.o.Log.Debug("a disk does not tell how full it is", "dir", dir, "err", err)
			continue
		}
		out = append(out, Disk{ID: id, Path: dir, Usage: u})
	}
	return out
}

// diskOf tells file systems apart.
func diskOf(path string) (uint64, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, false
	}
	return st.Dev, true
}

func (g *Guard) scratch(k keeper.Kernel) Use {
	u := Use{Session: k.Session, Generation: k.Generation, Written: -1}
	if old, known := g.layers[k.ID]; known && old.Generation == k.Generation {
		u = old // what only a measurement tells
	}
	u.ScratchDisk, _ = diskOf(g.o.Dirs[0])
	if own, ok := g.o.Scratch.Usage(k.ID); ok {
		u.Scratch, u.Size, u.Limited = own.Used(), own.Total, true
	}
	return u
}

// measure looks at layers, and at homes without a disk of their own: now and then, and at each look while a disk is low. It begins
// where the last measurement ended, so that kernels with many files do not keep others from being measured; those that it does not
// come to keep what was measured before.
func (g *Guard) measure(ctx context.Context, now *Sample, running []keeper.Kernel, low bool) {
	if passed := now.At.Sub(g.measured); passed < g.pause || !low && passed < layerEvery {
		return
	}
	began := g.o.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, g.o.Patience)
	defer cancel()
	before := g.layers
	g.layers = make(map[cluster.KernelID]Use, len(running))
	first := max(0, slices.IndexFunc(running, func(k keeper.Kernel) bool { return k.ID > g.after }))
	for _, k := range slices.Concat(running[first:], running[:first]) {
		if ctx.Err() != nil {
			if u, known := before[k.ID]; known {
				g.layers[k.ID] = u
			}
			continue
		}
		g.after = k.ID
		u := now.Kernels[k.ID]
		if !u.Limited {
			u.Scratch = 0
			for _, home := range g.o.Scratch.Homes(k.ID) {
				n, _ := hoststats.Measure(ctx, home, maxFiles)
				u.Scratch += n
			}
		}
		if g.o.Disks != nil {
			if l, err := g.o.Disks.Layer(ctx, k.Container, maxFiles); err == nil || ctx.Err() != nil && l.Dir != "" {
				u.Layer, u.LayerKnown, u.TooMany, u.Written = l.Bytes, true, !l.Complete && ctx.Err() == nil, l.Written
				u.LayerDisk, _ = diskOf(l.Dir)
			}
		}
		now.Kernels[k.ID], g.layers[k.ID] = u, u
	}
	g.measured = now.At
	g.pause = g.o.Clock.Now().Sub(began) * layerShare
}

// tell lets owners know that the disk of their kernel is full.
func (g *Guard) tell(now Sample, running []keeper.Kernel) {
	live := map[cluster.KernelID]bool{}
	for _, k := range running {
		u := now.Kernels[k.ID]
		live[k.ID] = true
		if !u.Limited || u.Size <= 0 {
			continue
		}
		percent := u.Scratch / max(1, u.Size/100)
		switch {
		case percent >= fullPercent && !g.full[k.ID]:
			g.full[k.ID] = true
			g.o.Keeper.Note(k.ID, k.Generation, fmt.Sprintf("the session's own disk of %s (home, /tmp and /var/tmp) is full: writing fails with "+
				"\"no space left on device\"; delete files, or keep large ones in a folder", diskspace.Text(u.Size)))
		case percent < roomPercent && g.full[k.ID]:
			delete(g.full, k.ID)
			g.o.Keeper.Note(k.ID, k.Generation, "the session's own disk has room again")
		}
	}
	for id := range g.full {
		if !live[id] {
			delete(g.full, id)
		}
	}
}

// judge ends who is over a bound, and, on a disk that is full, the one that grew most. It reports whether it ended one of these.
func (g *Guard) judge(now Sample, certain bool) bool {
	for id, e := range g.ended {
		if u, runs := now.Kernels[id]; !e.of(u, runs) && now.At.Sub(e.at) > settle {
			delete(g.ended, id)
		}
	}
	for _, v := range over(g.o.Agent, g.o.Limits, now) {
		g.end(now, v)
	}
	spared, waiting := map[cluster.KernelID]bool{}, false
	for id, e := range g.ended {
		u, runs := now.Kernels[id]
		spared[id] = e.of(u, runs)
		waiting = waiting || now.At.Sub(e.at) < settle
	}
	for _, d := range now.Disks {
		if !d.Usage.Below(g.o.Limits.Full) || waiting {
			continue
		}
		if v, ok := largest(g.o.Agent, g.o.Limits, now, d.ID, g.earlier, spared, certain); ok {
			g.end(now, v)
			return true // and see what that brings
		}
	}
	return false
}

func (g *Guard) end(now Sample, v Verdict) {
	if e, already := g.ended[v.Kernel]; already && e.generation == v.Generation {
		return
	}
	g.ended[v.Kernel] = ending{v.Generation, now.At}
	if g.o.Keeper.Evict(v.Kernel, v.Generation, cluster.ReasonDiskFull, v.Detail) {
		g.o.Log.Error("a kernel is ended because of what it wrote to disk", "kernel", v.Kernel, "session", now.Kernels[v.Kernel].Session,
			"why", v.Detail)
	}
}

// remember keeps samples to compare with, oldest first.
func (g *Guard) remember(now Sample) {
	if n := len(g.earlier); n > 0 && now.At.Sub(g.earlier[n-1].At) < keepEvery {
		return
	}
	g.earlier = append(g.earlier, now)
	old := 0
	for old < len(g.earlier)-1 && now.At.Sub(g.earlier[old].At) > window {
		old++
	}
	g.earlier = slices.Delete(g.earlier, 0, old)
}

// say publishes the look. A disk is well again only when it has a tenth more than the mark, so that kernels do not come and go.
func (g *Guard) say(now Sample) {
	problem, was := "", g.Problem() != ""
	for _, d := range now.Disks {
		mark := g.o.Limits.Low.Of(d.Usage.Total)
		if d.Usage.OutOfInodes() {
			problem = fmt.Sprintf("the disk at %s has nearly no room for new files; no kernels are started here", d.Path)
		} else if d.Usage.Free < mark || was && d.Usage.Free < mark+mark/10 {
			problem = fmt.Sprintf("the disk at %s has less than %s free; no kernels are started here", d.Path, diskspace.Text(mark))
		}
	}
	g.mu.Lock()
	changed := g.problem != problem
	g.problem, g.last = problem, now
	g.mu.Unlock()
	if !changed {
		return
	}
	if problem != "" {
		g.o.Log.Warn(problem, "next", "free space, or end sessions")
	} else {
		g.o.Log.Info("the disks of this agent have room again")
	}
	if g.o.Changed != nil {
		g.o.Changed()
	}
}
