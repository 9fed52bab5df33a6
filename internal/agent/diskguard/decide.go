package diskguard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/diskspace"
)

// Use is what one kernel has on this host's disks.
type Use struct {
	Session    cluster.SessionID
	Generation int64
	// Scratch are the bytes of its home and temporary directories, on the file system ScratchDisk. Limited: they cannot exceed Size.
	Scratch, Size int64
	ScratchDisk   uint64
	Limited       bool
	// Layer are the bytes that it wrote into its container's own file system, on LayerDisk; LayerKnown: they were measured. TooMany:
	// there are more files than are counted.
	Layer      int64
	LayerDisk  uint64
	LayerKnown bool
	TooMany    bool
	// Written is what it wrote to all file systems since it began; below zero when that is unknown.
	Written int64
}

// on is what the kernel has on one file system.
func (u Use) on(disk uint64) int64 {
	n := int64(0)
	if u.ScratchDisk == disk {
		n += u.Scratch
	}
	if u.LayerKnown && u.LayerDisk == disk {
		n += u.Layer
	}
	return n
}

// Disk is one file system of this host that kernels write to.
type Disk struct {
	ID    uint64
	Path  string // a directory on it, for people
	Usage diskspace.Usage
}

// Sample is one look at everything.
type Sample struct {
	At      time.Time
	Disks   []Disk
	Kernels map[cluster.KernelID]Use
}

// disk finds a file system; the zero value when there is none.
func (s Sample) disk(id uint64) Disk {
	for _, d := range s.Disks {
		if d.ID == id {
			return d
		}
	}
	return Disk{}
}

// Limits are what the guard holds kernels to.
type Limits struct {
	// Low stops new kernels, Full ends the largest growers.
	Low, Full diskspace.Mark
	// Scratch and Layer bound what one kernel may have; 0 means no bound. Scratch is for kernels that have no disk of their own.
	Scratch, Layer int64
}

// Verdict is a kernel that is to end, and why, in words.
type Verdict struct {
	Kernel     cluster.KernelID
	Generation int64
	Detail     string
}

const (
	// minGrowth is what a kernel must have grown by to be ended for it, minShare the part, in percent, of what the disk lost and of the
	// mark Full: who fills the disk slowly and then waits must not have others ended for the little that they write.
	minGrowth = 16 << 20
	minShare  = 10
	// minHold is the part of the disk, in percent, that a kernel must have to be ended when nobody grew.
	minHold = 5
	// criticalPart of the mark Full is where no more is asked about who grew: the largest goes.
	criticalPart = 4
)

const nextStep = "; next: keep large files in a folder, and start the session again"

// over returns the kernels that exceed a bound of their own.
func over(agent cluster.AgentID, l Limits, now Sample) []Verdict {
	var out []Verdict
	for _, id := range slices.Sorted(maps.Keys(now.Kernels)) {
		u := now.Kernels[id]
		v := Verdict{Kernel: id, Generation: u.Generation}
		switch {
		case l.Scratch > 0 && !u.Limited && u.Scratch > l.Scratch:
			v.Detail = fmt.Sprintf("ended by agent %s: this session had %s in its home, %s are allowed", agent,
				diskspace.Text(u.Scratch), diskspace.Text(l.Scratch))
		case l.Layer > 0 && u.LayerKnown && u.Layer > l.Layer:
			v.Detail = fmt.Sprintf("ended by agent %s: this session wrote %s outside of its home, /tmp and /var/tmp, %s are allowed", agent,
				diskspace.Text(u.Layer), diskspace.Text(l.Layer))
		case l.Layer > 0 && u.TooMany:
			v.Detail = fmt.Sprintf("ended by agent %s: this session made more than %d files outside of its home, /tmp and /var/tmp", agent, maxFiles)
		default:
			continue
		}
		v.Detail += nextStep
		out = append(out, v)
	}
	return out
}

// largest returns the kernel to end on a file system that is full: the one that grew most since the oldest of the earlier samples. A
// kernel that grew by little, or by little of what the disk lost, is not to blame; it is ended only when the disk is all but full.
// ok is false when nobody is to blame. certain asks for a verdict before layers are measured anew: it is given only when nobody else
// can have grown more, because all that is not explained by files is less.
func largest(agent cluster.AgentID, l Limits, now Sample, disk uint64, earlier []Sample,
	spared map[cluster.KernelID]bool, certain bool) (v Verdict, ok bool) {
	d := now.disk(disk)
	type candidate struct {
		id            cluster.KernelID
		growth, total int64
		written       int64
	}
	var all []candidate
	since, lost, explained := now.At, int64(0), int64(0)
	if len(earlier) > 0 {
		since = earlier[0].At
		if before := earlier[0].disk(disk).Usage; before.Total > 0 {
			lost = max(0, before.Free-d.Usage.Free)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now.Kernels)) {
		u := now.Kernels[id]
		if spared[id] {
			continue
		}
		c := candidate{id: id, total: u.on(disk)}
		c.growth, c.written = grown(id, u, disk, earlier)
		all = append(all, c)
		explained += c.growth
	}
	blame := max(minGrowth, lost/100*minShare, l.Full.Of(d.Usage.Total)/100*minShare)
	pick := func(of func(candidate) int64, least int64) (candidate, bool) {
		if len(all) == 0 {
			return candidate{}, false
		}
		c := slices.MaxFunc(all, func(a, b candidate) int { return cmp.Compare(of(a), of(b)) })
		return c, of(c) >= least
	}
	minutes := max(1, int(now.At.Sub(since).Round(time.Minute)/time.Minute))
	verdict := func(c candidate, how string) (Verdict, bool) {
		return Verdict{Kernel: c.id, Generation: now.Kernels[c.id].Generation,
			Detail: fmt.Sprintf("ended by agent %s: the disk of the agent was full (%s of %s free), this session %s%s", agent,
				diskspace.Text(d.Usage.Free), diskspace.Text(d.Usage.Total), how, nextStep)}, true
	}
	if c, ok := pick(func(c candidate) int64 { return c.growth }, blame); ok && (!certain || c.growth >= lost-explained) {
		return verdict(c, fmt.Sprintf("had written %s in the last %d min", diskspace.Text(c.growth), minutes))
	}
	if certain {
		return Verdict{}, false
	}
	// Files in folders on this disk, and files without a name, show in what processes wrote only.
	if c, ok := pick(func(c candidate) int64 { return c.written }, blame); ok {
		return verdict(c, fmt.Sprintf("had written %s in the last %d min, much of it into folders or deleted files",
			diskspace.Text(c.written), minutes))
	}
	if d.Usage.Free < l.Full.Of(d.Usage.Total)/criticalPart || d.Usage.OutOfInodes() {
		if c, ok := pick(func(c candidate) int64 { return c.total }, max(minGrowth, d.Usage.Total/100*minHold)); ok {
			return verdict(c, "had the most there: "+diskspace.Text(c.total))
		}
	}
	return Verdict{}, false
}

// grown is by how much a kernel's files and what it wrote grew since the oldest sample that tells. What a kernel has that began
// since then is all growth. Without earlier samples nothing is known to have grown.
func grown(id cluster.KernelID, u Use, disk uint64, earlier []Sample) (growth, written int64) {
	if len(earlier) == 0 {
		return 0, 0
	}
	var before Use
	scratch, layer, wrote := false, false, false
	for _, s := range earlier {
		old, known := s.Kernels[id]
		if !known || old.Generation != u.Generation {
			continue
		}
		if !scratch {
			before.Scratch, scratch = old.Scratch, true
		}
		if !layer && old.LayerKnown {
			before.Layer, layer = old.Layer, true
		}
		if !wrote && old.Written >= 0 {
			before.Written, wrote = old.Written, true
		}
	}
	if u.ScratchDisk == disk {
		growth += max(0, u.Scratch-before.Scratch)
	}
	if u.LayerKnown && u.LayerDisk == disk {
		growth += max(0, u.Layer-before.Layer)
	}
	return growth, max(0, u.Written-before.Written)
}
