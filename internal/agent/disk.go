package agent

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/agent/diskguard"
	"berth.dev/berth/internal/agent/loopdisk"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/scratch"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// disks are the agent's parts that bound what kernels write.
type disks struct {
	pool  *loopdisk.Pool // nil: kernels have no disks of their own
	guard *diskguard.Guard
	// without says why there is no pool although one is wanted.
	without string
}

// openDisks gives kernels disks of their own where the configuration wants it and the host can. Only root makes mounts, and only an
// engine on this host sees them.
func (a *Agent) openDisks(engine func(context.Context) (int, error)) error {
	c := a.c.Disk
	if c.Scratch == 0 || c.Method == DiskWatch {
		return nil
	}
	_, local := a.d.Runtime.(runtime.Disks)
	if !local && c.Method == DiskAuto {
		return nil
	}
	o := loopdisk.Options{Dir: scratch.PoolDir(a.c.scratchDir()), Size: int64(c.Scratch), Ahead: c.Ahead, Log: a.d.Log, Clock: a.d.Clock}
	if engine != nil {
		o.Unseen = func(ctx context.Context, path string) string { return mount.Unseen(ctx, engine, path) }
	}
	pool, err := loopdisk.OpenPool(context.Background(), o) // every disk has a deadline of its own
	switch {
	case err == nil:
		a.disks.pool = pool
		a.scratch.Limit(pool)
	case c.Method == DiskLoop:
		return fault.Unavailablef("kernels cannot have disks of their own on this host").WithCause(err).
			WithNext("install e2fsprogs and run the agent as root on a kernel with loop devices, or set agent.disk.method to %q", DiskAuto)
	default:
		a.disks.without = err.Error()
	}
	return nil
}

// guardDisks makes what watches the disks.
func (a *Agent) guardDisks() {
	o := diskguard.Options{
		Agent: cluster.AgentID(a.c.ID), Dirs: []string{a.c.scratchDir(), a.c.StateDir}, Scratch: a.scratch, Keeper: a.keeper,
		Limits: a.c.Disk.limits(), Interval: a.c.Disk.Interval, Log: a.d.Log, Clock: a.d.Clock, Changed: a.facts.look,
	}
	o.Disks, _ = a.d.Runtime.(runtime.Disks)
	a.disks.guard = diskguard.New(o)
	a.facts.disks = func() (string, []string) { return a.disks.guard.Problem(), a.disks.warnings(a.scratch.Unlimited()) }
}

// warnings describe, in words, what bounds kernels less than it should.
func (d *disks) warnings(unlimited string) []string {
	why := d.without
	if why == "" {
		why = unlimited
	}
	var out []string
	if why != "" {
		out = append(out, fmt.Sprintf("homes of sessions have no file system of their own, so their size is watched and not held: %s", why))
	}
	if problem := d.guard.Problem(); problem != "" {
		out = append(out, problem)
	}
	return out
}

// close removes what was made ahead.
func (d *disks) close() error {
	if d.pool == nil {
		return nil
	}
	return d.pool.Close()
}

// diskFindings are what doctor is told about the disks of an agent that runs.
func (a *Agent) diskFindings() []Finding {
	var out []Finding
	problem := a.disks.guard.Problem()
	for _, w := range a.disks.warnings(a.scratch.Unlimited()) {
		f := Finding{Kind: "disk", Object: a.c.scratchDir(), Problem: w, Next: "free space, or end sessions"}
		if w != problem {
			f.Kind, f.Next = "disk-bounds", "install e2fsprogs and run the agent as root, or set agent.disk.method to \"watch\""
		}
		out = append(out, f)
	}
	return out
}
