package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

const (
	// healthEvery is the time between two looks at a volume, healthPatience how long one may take.
	healthEvery    = 5 * time.Second
	healthPatience = 3 * time.Second
	// callPatience bounds one request of a manager to a volume, callsAtOnce how many may be under way: on a
	// volume that hangs they stay under way until it answers again.
	callPatience = 30 * time.Second
	callsAtOnce  = 128
	// After reopenAfter failed looks in a row a volume is opened anew, as a file server that was replaced needs.
	reopenAfter = 3
)

// mounted is one configured volume: open or not, well or not.
type mounted struct {
	name   string
	config VolumeConfig
	open   func() (volume.Volume, error)
	clock  chassis.Clock
	log    *slog.Logger
	calls  chan struct{}
	// changed is told when the health is another than before.
	changed func()

	mu       sync.Mutex
	vol      volume.Volume // nil while it could not be opened
	problem  error         // nil while it is well
	space    volume.Space
	checked  time.Time
	failures int
	looking  bool          // a look is under way, perhaps for long
	sick     chan struct{} // closed when the volume stops answering; made anew when it is back
}

func newMounted(name string, c VolumeConfig, open func() (volume.Volume, error), clock chassis.Clock, log *slog.Logger,
	changed func()) *mounted {
	return &mounted{
		name: name, config: c, open: open, clock: clock, log: log, changed: changed, calls: make(chan struct{}, callsAtOnce),
		problem: fault.Unavailablef("volume %s is being opened", name).WithReason("volume-unavailable").WithNext("try again in a moment"),
		sick:    make(chan struct{}),
	}
}

// watch looks at the volume until ctx ends.
func (m *mounted) watch(ctx context.Context) {
	tick := m.clock.NewTicker(healthEvery)
	defer tick.Stop()
	for {
		m.look(ctx)
		select {
		case <-tick.C():
		case <-ctx.Done():
			return
		}
	}
}

// look asks the volume how it is, for a bounded time. A question that hangs stays the only one.
func (m *mounted) look(ctx context.Context) {
	m.mu.Lock()
	if m.looking {
		m.mu.Unlock()
		m.note(nil, volume.Space{}, m.hangs())
		return
	}
	m.looking = true
	v, reopen := m.vol, m.failures >= reopenAfter
	m.mu.Unlock()
	type answer struct {
		v     volume.Volume
		space volume.Space
		err   error
	}
	done := make(chan answer, 1)
	go func() { // ends when the file system answers, or never
		a := answer{v: v}
		if a.v == nil || reopen {
			if a.v, a.err = m.open(); a.err != nil {
				a.v = nil
			}
		}
		if a.err == nil {
			sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthPatience)
			a.space, a.err = a.v.Space(sctx)
			cancel()
		}
		m.mu.Lock()
		m.looking = false
		m.mu.Unlock()
		done <- a
	}()
	patience := m.clock.NewTimer(healthPatience)
	defer patience.Stop()
	select {
	case a := <-done:
		m.note(a.v, a.space, a.err)
	case <-patience.C():
		m.note(nil, volume.Space{}, m.hangs())
		// The answer is taken at the next look; a volume that was opened too late is kept then.
		go func() {
			if a := <-done; a.err == nil {
				m.note(a.v, a.space, nil)
			}
		}()
	case <-ctx.Done():
	}
}

func (m *mounted) hangs() error {
	return fault.Unavailablef("volume %s does not answer", m.name).WithReason("volume-unavailable").
		WithNext("look at the file server behind %s; the proxy tries again by itself", m.config.Path)
}

// note records what a look saw.
func (m *mounted) note(v volume.Volume, space volume.Space, err error) {
	m.mu.Lock()
	before := m.problem
	var old volume.Volume
	if v != nil && v != m.vol {
		old, m.vol = m.vol, v
	}
	m.problem = err
	m.checked = m.clock.Now().UTC()
	switch {
	case err == nil:
		m.space, m.failures = space, 0
		if before != nil {
			m.sick = make(chan struct{})
		}
	default:
		// One that hangs is not opened anew: it goes on where it was when its server is back.
		if fault.ReasonOf(err) != "volume-unavailable" && !errors.Is(err, context.DeadlineExceeded) {
			m.failures++
		}
		if before == nil {
			close(m.sick)
		}
	}
	different := (err == nil) != (before == nil) || err != nil && err.Error() != before.Error()
	m.mu.Unlock()
	if old != nil {
		go func() { // waits for its work, which may hang
			if err := old.Close(); err != nil {
				m.log.Warn("close a volume that was opened anew", "volume", m.name, "error", err)
			}
		}()
	}
	if !different {
		return
	}
	if err == nil {
		m.log.Info("volume is well", "volume", m.name)
	} else {
		m.log.Warn("volume has a problem", "volume", m.name, "error", err, "next", fault.NextOf(err))
	}
	m.changed()
}

// get is the volume, or Unavailable with the reason.
func (m *mounted) get() (volume.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.problem != nil {
		err := fault.Unavailablef("volume %s cannot be used now: %s", m.name, m.problem.Error()).WithReason("volume-unavailable")
		return nil, err.WithNext("%s", fault.NextOf(m.problem))
	}
	return m.vol, nil
}

// state is the volume as it is announced.
func (m *mounted) state(uid, gid int) wire.Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := wire.Volume{
		Name: m.name, Backend: m.config.Backend, Path: m.config.Path, OwnerUID: uid, OwnerGID: gid, Capabilities: []string{},
		CheckedAt: m.checked, CapacityBytes: m.space.CapacityBytes, UsedBytes: m.space.UsedBytes,
	}
	if m.problem != nil {
		out.Problem = m.problem.Error()
		if next := fault.NextOf(m.problem); next != "" {
			out.Problem += "; " + next
		}
	}
	if m.vol != nil {
		info := m.vol.Info()
		out.Backend, out.Path, out.OwnerUID, out.OwnerGID = info.Backend, info.Path, info.OwnerUID, info.OwnerGID
		for _, c := range info.Capabilities {
			out.Capabilities = append(out.Capabilities, string(c))
		}
	}
	return out
}

func (m *mounted) close() error {
	m.mu.Lock()
	v := m.vol
	m.mu.Unlock()
	if v == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- v.Close() }()
	patience := time.NewTimer(healthPatience)
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
		return fmt.Errorf("volume %s does not answer while it is closed", m.name)
	}
}

// ask does something with the volume for a bounded time. Where the volume stops answering meanwhile the caller is
// told at once and f goes on alone; what it returns is given to drop, which may be nil.
func ask[T any](ctx context.Context, m *mounted, f func(ctx context.Context, v volume.Volume) (T, error), drop func(T)) (T, error) {
	var zero T
	v, err := m.get()
	if err != nil {
		return zero, err
	}
	m.mu.Lock()
	sick := m.sick
	m.mu.Unlock()
	select {
	case m.calls <- struct{}{}:
	default:
		return zero, fault.Unavailablef("volume %s is busy with %d requests", m.name, callsAtOnce).WithReason("volume-unavailable").
			WithNext("try again in a moment")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callPatience, fault.New(fault.Timeout, "volume %s took longer than %s", m.name, callPatience).
		WithNext("try again"))
	type answer struct {
		value T
		err   error
	}
	done, gone := make(chan answer), make(chan struct{})
	go func() {
		defer func() { <-m.calls }()
		defer cancel()
		value, err := f(ctx, v)
		select {
		case done <- answer{value, err}:
		case <-gone:
			if drop != nil && err == nil {
				drop(value)
			}
		}
	}()
	defer close(gone)
	select {
	case a := <-done:
		return a.value, a.err
	case <-sick:
		return zero, m.hangs()
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	}
}

// volumes are all volumes of a proxy; the set never changes.
type volumes map[string]*mounted

// Names implements task.Volumes.
func (v volumes) Names() []string { return slices.Sorted(maps.Keys(v)) }

// Volume implements task.Volumes.
func (v volumes) Volume(name string) (volume.Volume, error) {
	m, err := v.find(name)
	if err != nil {
		return nil, err
	}
	return m.get()
}

func (v volumes) find(name string) (*mounted, error) {
	m := v[name]
	if m == nil {
		return nil, fault.NotFoundf("there is no volume %q on this storage proxy", fault.Clip(name, maxEcho)).WithReason("volume-not-found").
			WithNext("see `berth folder hosts`")
	}
	return m, nil
}

// opener opens a volume on disk, once its marker was found to be the right one.
func opener(name string, c VolumeConfig, all Config, seen *memory, newID func() string, clock chassis.Clock,
	log *slog.Logger) func() (volume.Volume, error) {
	open := drivers[c.Backend]
	return func() (volume.Volume, error) {
		path := filepath.Clean(c.Path)
		id, err := readMarker(path)
		if err == nil {
			err = seen.check(name, path, id)
		}
		if err != nil {
			return nil, err
		}
		v, err := open(opening{name: name, config: c, uid: all.UID, gid: all.GID, reserve: int64(all.Reserve),
			log: log.With("volume", name)})
		if err != nil {
			return nil, err
		}
		if id == "" {
			id, err = mark(v, name, path, newID, clock)
		}
		if err == nil {
			err = seen.remember(name, id)
		}
		if err != nil {
			if cerr := v.Close(); cerr != nil {
				log.Warn("close a volume that cannot be used", "volume", name, "error", cerr)
			}
			return nil, err
		}
		return v, nil
	}
}

// mark marks a volume that has no marker. Of several nodes that do so one writes, and the others read.
func mark(v volume.Volume, name, path string, newID func() string, clock chassis.Clock) (string, error) {
	release, ok, err := v.Tasks().Claim("marker")
	if err != nil {
		return "", err
	}
	if !ok {
		return "", fault.Unavailablef("volume %s is being marked by another node", name).WithNext("try again in a moment")
	}
	defer release()
	if id, err := readMarker(path); err != nil || id != "" {
		return id, err
	}
	m := marker{ID: newID(), Volume: name, Created: clock.Now().UTC()}
	return m.ID, writeMarker(path, m)
}

// ref parses the folder of a request.
func ref(vfid string) (cluster.FolderRef, error) { return cluster.ParseFolderRef(vfid) }

// maxEcho bounds what is repeated of text that others sent.
const maxEcho = 120
