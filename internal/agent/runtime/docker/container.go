package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// observedCache keeps the last look at containers whose phase cannot have changed unnoticed:
// an exited one is never started again, and of a running one only the pid is kept, which
// lives as long as the phase. List then needs one call however many containers there are.
type observedCache struct {
	mu   sync.Mutex
	byID map[string]runtime.Observed
}

func (c *observedCache) get(id string, phase runtime.Phase) (runtime.Observed, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.byID[id]
	return o, ok && o.Phase == phase && phase != runtime.PhaseCreated
}

func (c *observedCache) put(o runtime.Observed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		c.byID = map[string]runtime.Observed{}
	}
	c.byID[o.ID] = o
}

func (c *observedCache) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, id)
}

// keep forgets all but the given ids.
func (c *observedCache) keep(ids map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.byID {
		if !ids[id] {
			delete(c.byID, id)
		}
	}
}

// Inspect returns one container.
func (r *Runtime) Inspect(ctx context.Context, kernel cluster.KernelID) (runtime.Observed, error) {
	name, err := r.name(kernel)
	if err != nil {
		return runtime.Observed{}, err
	}
	return r.inspect(ctx, name, kernel)
}

// inspect looks at a container by name or id.
func (r *Runtime) inspect(ctx context.Context, ref string, kernel cluster.KernelID) (runtime.Observed, error) {
	ctx, cancel := context.WithTimeout(ctx, shortCall)
	defer cancel()
	res, err := r.api.ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
	if err != nil {
		return runtime.Observed{}, r.containerFailure(err, kernel, "inspect")
	}
	c := res.Container
	if c.Config == nil || c.State == nil || !r.owns(c.Config.Labels) {
		return runtime.Observed{}, absent(kernel)
	}
	o := observe(c)
	if o.Signal == 9 && !o.OOMKilled {
		o.OOMKilled = r.ranOut(ctx, o)
	}
	r.seen.put(o)
	return o, nil
}

// ranOut asks the engine's record of recent events whether a killed container ran out of memory: when a container's end overtakes
// that news, the engine never puts it into the container's state. An engine that does not tell in time has told nothing; a hint may.
func (r *Runtime) ranOut(ctx context.Context, o runtime.Observed) bool {
	ctx, cancel := context.WithTimeout(ctx, shortCall/8)
	defer cancel() // ends the reader of the client
	at := func(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }
	stream := r.api.Events(ctx, client.EventsListOptions{
		Since: at(o.StartedAt), Until: at(time.Now()),
		Filters: make(client.Filters).Add("container", o.ID).Add("event", string(events.ActionOOM)),
	})
	select {
	case <-stream.Messages:
		return true
	case err := <-stream.Err:
		if !errors.Is(err, io.EOF) {
			r.log.Debug("the engine did not tell its recent events", "container", o.ID, "error", err)
		}
		return false
	}
}

func absent(kernel cluster.KernelID) error {
	return fault.NotFoundf("kernel %s has no container on this host", kernel).WithReason(runtime.ReasonContainer)
}

// containerFailure is failure for calls about one existing container.
func (r *Runtime) containerFailure(err error, kernel cluster.KernelID, verb string) error {
	if cerrdefs.IsNotFound(err) {
		return absent(kernel)
	}
	return r.failure(err, "%s the container of kernel %s", verb, kernel)
}

// observe translates the engine's report. The engine gives signals only as exit codes above 128.
func observe(c container.InspectResponse) runtime.Observed {
	s := c.State
	o := runtime.Observed{Identity: identityOf(c.Config.Labels), ID: c.ID, Phase: phaseOf(s.Status), Error: stateWords(s.Error)}
	o.StartedAt = engineTime(s.StartedAt)
	switch o.Phase {
	case runtime.PhaseRunning:
		o.Pid = s.Pid
	case runtime.PhaseExited:
		o.FinishedAt = engineTime(s.FinishedAt)
		// The engine notes the start only after the fact: a container that ended at once can have ended before.
		if o.FinishedAt.Before(o.StartedAt) {
			o.StartedAt = o.FinishedAt
		}
		o.ExitCode, o.OOMKilled = s.ExitCode, s.OOMKilled
		if n := s.ExitCode - 128; n > 0 && n <= 64 {
			o.Signal = n
		}
	}
	return o
}

func phaseOf(s container.ContainerState) runtime.Phase {
	switch s {
	case container.StateCreated:
		return runtime.PhaseCreated
	case container.StateRunning, container.StatePaused, container.StateRestarting:
		return runtime.PhaseRunning
	default: // exited, dead, removing: over, and still to be removed
		return runtime.PhaseExited
	}
}

// engineTime reads the engine's time; its zero ("0001-01-01...") and nonsense are the zero time.
func engineTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() < 1971 {
		return time.Time{}
	}
	return t
}

// List returns every container of this cluster and agent, exited ones too.
func (r *Runtime) List(ctx context.Context) ([]runtime.Observed, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*shortCall)
	defer cancel()
	res, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.mine()})
	if err != nil {
		return nil, r.failure(err, "list containers")
	}
	found := make([]*runtime.Observed, len(res.Items))
	ids := make(map[string]bool, len(res.Items))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, c := range res.Items {
		ids[c.ID] = true
		if !r.owns(c.Labels) {
			continue
		}
		if o, ok := r.seen.get(c.ID, phaseOf(c.State)); ok {
			found[i] = &o
			continue
		}
		g.Go(func() error {
			o, err := r.inspect(gctx, c.ID, cluster.KernelID(c.Labels[labelKernel]))
			if fault.Is(err, fault.NotFound) {
				return nil // removed since the listing
			}
			found[i] = &o
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	r.seen.keep(ids)
	out := make([]runtime.Observed, 0, len(found))
	for _, o := range found {
		if o != nil {
			out = append(out, *o)
		}
	}
	return out, nil
}

// Stop asks PID 1 to end and kills the container after grace. Without a grace it kills at once.
func (r *Runtime) Stop(ctx context.Context, kernel cluster.KernelID, grace time.Duration) error {
	name, err := r.name(kernel)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, max(grace, 0)+stopMargin)
	defer cancel()
	if grace <= 0 {
		_, err := r.api.ContainerKill(ctx, name, client.ContainerKillOptions{Signal: "SIGKILL"})
		switch {
		case err == nil:
			return r.waitStopped(ctx, name, kernel)
		case cerrdefs.IsConflict(err): // not running
			return nil
		default:
			return r.containerFailure(err, kernel, "kill")
		}
	}
	t := seconds(grace)
	if _, err := r.api.ContainerStop(ctx, name, client.ContainerStopOptions{Timeout: &t}); err != nil && !cerrdefs.IsNotModified(err) {
		return r.containerFailure(err, kernel, "stop")
	}
	return nil
}

// waitStopped returns when the container no longer runs.
func (r *Runtime) waitStopped(ctx context.Context, name string, kernel cluster.KernelID) error {
	w := r.api.ContainerWait(ctx, name, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-w.Result:
		return nil
	case err := <-w.Error:
		if err == nil || cerrdefs.IsNotFound(err) {
			return nil
		}
		return r.containerFailure(err, kernel, "wait for the end of")
	}
}

// Remove deletes the container by force with its anonymous volumes; an absent one is no error.
func (r *Runtime) Remove(ctx context.Context, kernel cluster.KernelID) error {
	name, err := r.name(kernel)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeCall)
	defer cancel()
	err = r.remove(ctx, name)
	if err != nil {
		return r.containerFailure(err, kernel, "remove")
	}
	return nil
}

func (r *Runtime) remove(ctx context.Context, ref string) error {
	_, err := r.api.ContainerRemove(ctx, ref, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	if !cerrdefs.IsConflict(err) {
		return err
	}
	// Somebody else is removing it already: wait for that to end.
	w := r.api.ContainerWait(ctx, ref, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	select {
	case <-w.Result:
		return nil
	case werr := <-w.Error:
		if werr == nil || cerrdefs.IsNotFound(werr) {
			return nil
		}
		return errors.Join(err, werr)
	}
}

// Stats reads the container's counters from this host's cgroups and /proc.
func (r *Runtime) Stats(ctx context.Context, o runtime.Observed) (runtime.Stats, error) {
	if err := ctx.Err(); err != nil {
		return runtime.Stats{}, err
	}
	if o.Phase != runtime.PhaseRunning || o.Pid <= 0 {
		return runtime.Stats{}, fault.Conflictf("kernel %s has no running container to measure", o.Identity.Kernel)
	}
	if !r.local() {
		return runtime.Stats{At: time.Now()}, nil // everything unknown
	}
	s, err := r.stats.Read(o.ID, o.Pid)
	if o.Identity.HostNetwork { // what is counted there is all of the host's
		s.NetRxBytes, s.NetTxBytes = nil, nil
	}
	return s, err
}
