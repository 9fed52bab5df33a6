package fake

import (
	"context"
	"io"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Runtime is one agent's view of an Engine.
type Runtime struct {
	e       *Engine
	cluster string
	agent   cluster.AgentID
	closing context.Context
	close   context.CancelFunc
	// watches counts the goroutines of Watch.
	watches sync.WaitGroup
}

var (
	_ runtime.Runtime      = (*Runtime)(nil)
	_ runtime.RunnerDialer = (*Runtime)(nil)
)

// Runtime returns the view of one cluster's agent. Making a second one for the same agent is what an
// agent that was killed and started again does.
func (e *Engine) Runtime(clusterID string, agent cluster.AgentID) *Runtime {
	r := &Runtime{e: e, cluster: clusterID, agent: agent}
	r.closing, r.close = context.WithCancel(context.Background())
	return r
}

// Close ends this view's watches; containers are untouched.
func (r *Runtime) Close() error {
	r.close()
	r.watches.Wait()
	return nil
}

// Info describes the engine.
func (r *Runtime) Info(ctx context.Context) (runtime.Info, error) {
	done, err := r.e.enter(ctx, Info, "")
	if err != nil {
		return runtime.Info{}, err
	}
	return r.e.opt.Info, done(nil)
}

func (r *Runtime) key(k cluster.KernelID) key { return key{r.cluster, r.agent, k} }

// find returns a kernel's container; the engine's mutex is held.
func (r *Runtime) find(k cluster.KernelID) (*container, error) {
	c, ok := r.e.containers[r.key(k)]
	if !ok {
		return nil, fault.NotFoundf("kernel %s has no container on this host", k).WithReason(runtime.ReasonContainer)
	}
	return c, nil
}

// Ensure creates and starts the container of spec.Identity; see runtime.Runtime.
func (r *Runtime) Ensure(ctx context.Context, spec runtime.Spec) (runtime.Observed, error) {
	id := spec.Identity
	if err := runtime.CheckKernel(id.Kernel); err != nil {
		return runtime.Observed{}, err
	}
	switch {
	case id.Cluster != r.cluster || id.Agent != r.agent:
		return runtime.Observed{}, fault.Invalidf("kernel %s belongs to cluster %q, agent %q; this runtime serves cluster %q, agent %q",
			id.Kernel, id.Cluster, id.Agent, r.cluster, r.agent)
	case len(spec.Entry) == 0:
		return runtime.Observed{}, fault.Invalidf("kernel %s has no command to start", id.Kernel)
	case spec.MemoryMax < 0 || spec.ShmSize < 0 || spec.PidsLimit < 0:
		return runtime.Observed{}, fault.Invalidf("kernel %s has a negative limit", id.Kernel)
	}
	if err := checkReference(spec.Image); err != nil {
		return runtime.Observed{}, err
	}
	if err := r.e.checkSurroundings(spec); err != nil {
		return runtime.Observed{}, err
	}
	c, err := r.create(ctx, spec)
	if err != nil {
		return runtime.Observed{}, err
	}
	r.e.mu.Lock()
	o := c.observed()
	r.e.mu.Unlock()
	if o.Phase != runtime.PhaseCreated {
		return o, nil
	}
	return r.start(ctx, c)
}

// checkSurroundings finds devices and networks that the host does not have.
func (e *Engine) checkSurroundings(spec runtime.Spec) error {
	for _, d := range spec.Devices {
		if err := runtime.CheckDevice(spec.Identity.Kernel, d); err != nil {
			return err
		}
		if !e.opt.HasDevice(d.Source) {
			return fault.NotFoundf("device %s is not on this host", d.Source).WithReason(runtime.ReasonDevice)
		}
	}
	if err := runtime.CheckNetworks(spec.Identity, spec.Networks); err != nil {
		return err
	}
	if err := runtime.CheckGroups(spec.Identity.Kernel, spec.Groups); err != nil {
		return err
	}
	for _, name := range spec.CDI {
		if !e.opt.HasDevice(name) {
			return fault.NotFoundf("the engine cannot inject the device %s", name).WithReason(runtime.ReasonDevice)
		}
	}
	for _, n := range spec.Networks {
		if n.Name != runtime.NetworkDefault && n.Name != runtime.NetworkHost && !e.opt.HasNetwork(n.Name) {
			return fault.NotFoundf("network %s is not on this host", n.Name).WithReason(runtime.ReasonNetwork)
		}
	}
	return nil
}

// create returns the container of the spec, made now or before.
func (r *Runtime) create(ctx context.Context, spec runtime.Spec) (*container, error) {
	k := spec.Identity.Kernel
	done, err := r.e.enter(ctx, Create, k)
	if err != nil {
		return nil, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if c, ok := r.e.containers[r.key(k)]; ok {
		if c.spec.Identity.Generation != spec.Identity.Generation {
			return nil, fault.Conflictf("kernel %s already has a container of generation %d, wanted is %d",
				k, c.spec.Identity.Generation, spec.Identity.Generation).
				WithReason(runtime.ReasonGeneration).WithNext("remove that container first")
		}
		return c, nil
	}
	img, found := r.e.images[spec.Digest] // what a name means now does not matter where the content is known
	if !found {
		if img, err = r.e.mustFind(spec.Image); err != nil {
			return nil, err
		}
	}
	if err := matchDigest(img.Image, spec.Image, spec.Digest); err != nil {
		return nil, err
	}
	c := r.e.newContainer(r.key(k), spec, img)
	r.e.containers[c.key] = c
	return c, done(nil)
}

func (r *Runtime) start(ctx context.Context, c *container) (runtime.Observed, error) {
	done, err := r.e.enter(ctx, Start, c.key.kernel)
	if err != nil {
		return runtime.Observed{}, err
	}
	r.e.mu.Lock()
	if r.e.containers[c.key] != c {
		r.e.mu.Unlock()
		return runtime.Observed{}, fault.Conflictf("the container of kernel %s was removed while it started", c.key.kernel)
	}
	if err := r.e.start(c); err != nil {
		r.e.mu.Unlock()
		return runtime.Observed{}, fault.Invalidf("start the container of kernel %s", c.key.kernel).WithCause(err)
	}
	o := c.observed()
	job := c.phase == runtime.PhaseRunning && c.program.Runs == 0
	r.e.mu.Unlock()
	if job {
		r.e.startBatch(c)
	}
	return o, done(nil)
}

// Stop asks the container to end and kills it after grace; a stopped one is no error.
func (r *Runtime) Stop(ctx context.Context, k cluster.KernelID, grace time.Duration) error {
	done, err := r.e.enter(ctx, Stop, k)
	if err != nil {
		return err
	}
	r.e.mu.Lock()
	c, err := r.find(k)
	if err != nil {
		r.e.mu.Unlock()
		return err
	}
	killed := outcome{code: 137, signal: 9}
	switch {
	case c.phase != runtime.PhaseRunning:
	case grace <= 0:
		r.e.exit(c, killed)
	case !c.program.Stubborn:
		c.log.write(r.e.opt.Now(), c.program.Farewell)
		how := outcome{code: c.program.StopCode}
		if c.runner != nil {
			how = c.runner.asked(how)
		}
		r.e.exit(c, how)
	default:
		ended := c.done()
		r.e.mu.Unlock()
		late := make(chan struct{})
		stop := r.e.opt.After(grace, func() { close(late) })
		defer stop()
		select {
		case <-ended:
		case <-late:
			r.e.mu.Lock()
			r.e.exit(c, killed)
			r.e.mu.Unlock()
		case <-ctx.Done():
			return ctx.Err()
		}
		return done(nil)
	}
	r.e.mu.Unlock()
	return done(nil)
}

// Remove deletes the container by force; an absent one is no error.
func (r *Runtime) Remove(ctx context.Context, k cluster.KernelID) error {
	done, err := r.e.enter(ctx, Remove, k)
	if err != nil {
		return err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	if c, err := r.find(k); err == nil {
		r.e.exit(c, outcome{code: 137, signal: 9})
		delete(r.e.containers, c.key)
		c.log.finish()
		r.e.hint(c, runtime.Hint{Kernel: k})
	}
	return done(nil)
}

// Inspect returns one container.
func (r *Runtime) Inspect(ctx context.Context, k cluster.KernelID) (runtime.Observed, error) {
	done, err := r.e.enter(ctx, Inspect, k)
	if err != nil {
		return runtime.Observed{}, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	c, err := r.find(k)
	if err != nil {
		return runtime.Observed{}, err
	}
	return c.observed(), done(nil)
}

// List returns every container of this cluster and agent.
func (r *Runtime) List(ctx context.Context) ([]runtime.Observed, error) {
	done, err := r.e.enter(ctx, List, "")
	if err != nil {
		return nil, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	out := []runtime.Observed{}
	for k, c := range r.e.containers {
		if k.cluster == r.cluster && k.agent == r.agent {
			out = append(out, c.observed())
		}
	}
	return out, done(nil)
}

// Logs streams the container's output.
func (r *Runtime) Logs(ctx context.Context, k cluster.KernelID, opt runtime.LogOptions) (io.ReadCloser, error) {
	done, err := r.e.enter(ctx, Logs, k)
	if err != nil {
		return nil, err
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	c, err := r.find(k)
	if err != nil {
		return nil, err
	}
	return r.e.readLog(ctx, c, opt), done(nil)
}

// Print adds text to the log of a kernel's running container, as its program would.
func (e *Engine) Print(kernel cluster.KernelID, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k, c := range e.containers {
		if k.kernel == kernel && c.phase == runtime.PhaseRunning {
			c.log.write(e.opt.Now(), text)
		}
	}
}

// Stats makes counters up: one percent of a core since the start, the program's memory, no input and output.
func (r *Runtime) Stats(ctx context.Context, o runtime.Observed) (runtime.Stats, error) {
	k := o.Identity.Kernel
	done, err := r.e.enter(ctx, Stats, k)
	if err != nil {
		return runtime.Stats{}, err
	}
	if o.Phase != runtime.PhaseRunning {
		return runtime.Stats{}, fault.Conflictf("kernel %s has no running container to measure", k)
	}
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	c, err := r.find(k)
	if err != nil || c.id != o.ID || c.phase != runtime.PhaseRunning {
		return runtime.Stats{}, fault.NotFoundf("the container of kernel %s is gone", k).WithReason(runtime.ReasonContainer)
	}
	now := r.e.opt.Now()
	memory := c.program.Memory
	if memory == 0 {
		memory = 16 << 20
	}
	cpu, zero, one := int64(now.Sub(c.started)/100)+int64(time.Millisecond), int64(0), int64(1)
	return runtime.Stats{
		At: now, CPUUsedNs: &cpu, MemoryBytes: &memory, MemoryPeak: &memory, IOReadBytes: &zero, IOWriteByte: &zero,
		NetRxBytes: &zero, NetTxBytes: &zero, Pids: &one, OOMKills: &zero,
	}, done(nil)
}
