package task

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

const (
	// reapEvery is how long trash that nobody spoke of waits, expireEvery is for unfinished uploads. Looking into the
	// trash of very many scopes takes long: then it waits reapShare times as long as that, up to reapMost.
	reapEvery   = 5 * time.Second
	reapShare   = 20
	reapMost    = 5 * time.Minute
	expireEvery = 10 * time.Minute
	// stuckAfter is how long a reaper may fail before an operator should know.
	stuckAfter = 10 * time.Minute
)

// reaperState is what this process knows of the removal of trash from one volume.
type reaperState struct {
	removed      int64     // entries, since the process started
	expired      int64     // unfinished uploads
	failingSince time.Time // zero while it works
	problem      string
	nextExpiry   time.Time
}

// serveTrash empties the volume's trash at the configured rate, in whichever process holds the claim.
func (l *lane) serveTrash(ctx context.Context) {
	for {
		var looked time.Duration
		if v, err := l.e.o.Volumes.Volume(l.name); err == nil {
			looked, err = l.reapOnce(ctx, v)
			if ctx.Err() == nil {
				l.noteReaper(err)
			}
		}
		if !l.idle(ctx, l.reap, min(max(reapEvery, reapShare*looked), reapMost)) {
			return
		}
	}
}

func (l *lane) noteReaper(err error) {
	now := l.e.o.Clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.reaper.failingSince, l.reaper.problem = time.Time{}, ""
	case l.reaper.failingSince.IsZero():
		l.e.o.Log.Warn("could not empty the trash; trying again", "volume", l.name, "error", err)
		l.reaper.failingSince = now
		fallthrough
	default:
		l.reaper.problem = err.Error()
	}
}

// reapOnce works until nothing is left, if no other process does, and says how long it took to see that.
func (l *lane) reapOnce(ctx context.Context, v volume.Volume) (looked time.Duration, err error) {
	release, ok, err := v.Tasks().Claim(reaperClaim)
	switch {
	case fault.Is(err, fault.Exhausted):
		// Not even a claim fits on the disk, and what would make room is in the trash. Two that empty it do no harm.
	case err != nil || !ok:
		return 0, err
	default:
		defer release()
	}
	rate := l.e.o.ReapRate
	batch := min(max(rate/10, 1), 2000)
	for ctx.Err() == nil {
		if err := l.expire(ctx, v); err != nil {
			return 0, err
		}
		began := l.e.o.Clock.Now()
		n, err := v.Reap(ctx, batch)
		l.mu.Lock()
		l.reaper.removed += int64(n)
		l.mu.Unlock()
		if err != nil || n == 0 {
			return l.e.o.Clock.Now().Sub(began), err
		}
		// Never faster than the rate, however quick the disk.
		if err := l.e.o.Clock.Wait(ctx, time.Duration(n)*time.Second/time.Duration(rate)); err != nil {
			return 0, nil
		}
		l.noteReaper(nil)
	}
	return 0, nil
}

// expire removes uploads that nobody goes on with.
func (l *lane) expire(ctx context.Context, v volume.Volume) error {
	now := l.e.o.Clock.Now()
	l.mu.Lock()
	due := !now.Before(l.reaper.nextExpiry)
	if due {
		l.reaper.nextExpiry = now.Add(expireEvery)
	}
	l.mu.Unlock()
	if !due {
		return nil
	}
	n, err := v.ExpireStaged(ctx, now.Add(-l.e.o.UploadExpiry))
	l.mu.Lock()
	l.reaper.expired += int64(n)
	l.mu.Unlock()
	if n > 0 {
		l.e.o.Log.Info("unfinished uploads have expired", "volume", l.name, "count", n)
	}
	if err != nil {
		return fmt.Errorf("expire unfinished uploads: %w", err)
	}
	return nil
}

// Finding is something about tasks or trash that an operator should look at.
type Finding struct{ Volume, Kind, Object, Problem, Next string }

// Findings names documents that nobody can read, tasks whose holder is silent and trash that does not shrink.
func (e *Engine) Findings() []Finding {
	var out []Finding
	now := e.o.Clock.Now()
	for name, l := range e.lanes {
		l.mu.Lock()
		for id, why := range l.broken {
			out = append(out, Finding{name, "task", id, why, "delete .berth/tasks of volume " + name + " for this id when nobody needs it"})
		}
		for id, since := range l.orphans {
			out = append(out, Finding{name, "task", id, "it is claimed, but nobody has reported about it since " + since.Format(time.RFC3339),
				"restart the proxy that holds it"})
		}
		if r := l.reaper; !r.failingSince.IsZero() && now.Sub(r.failingSince) > stuckAfter {
			out = append(out, Finding{name, "trash", name, "it does not shrink since " + r.failingSince.Format(time.RFC3339) + ": " + r.problem,
				"look at the file system of this volume"})
		}
		l.mu.Unlock()
	}
	return out
}

// Figures are counts since the process started.
type Figures struct {
	Running, Waiting int
	Reaped, Expired  int64
}

// Figures of a volume.
func (e *Engine) Figures(name string) Figures {
	l := e.lanes[name]
	if l == nil {
		return Figures{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := 0
	for _, n := range l.unfinished {
		all += n
	}
	return Figures{len(l.active), max(all-len(l.active), 0), l.reaper.removed, l.reaper.expired}
}
