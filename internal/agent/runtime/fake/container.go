package fake

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// Program is how a container behaves.
type Program struct {
	// Runs ends the container by itself after that time with ExitCode; 0 means until it is asked to end.
	// A negative value ends it at once.
	Runs     time.Duration
	ExitCode int
	Signal   int
	OOM      bool
	// Stubborn ignores the request to end and is killed after the grace.
	Stubborn bool
	// StopCode is the exit code after a request to end.
	StopCode int
	// Output is printed at the start, Farewell when it is asked to end.
	Output, Farewell string
	// StartError makes the start fail, as a missing entrypoint does.
	StartError string
	// Files are written into the container's file system at the start.
	Files map[string]string
	// Memory is what Stats reports in bytes; 0 means 16 MiB.
	Memory int64
}

// outcome is how a container ended.
type outcome struct {
	code, signal int
	oom          bool
	crash        bool // the runner had no time to leave its marker
}

// container is one container. Its fields are guarded by the engine's mutex.
type container struct {
	key      key
	id       string
	spec     runtime.Spec
	image    *image
	program  Program
	phase    runtime.Phase
	pid      int
	how      outcome
	failed   string
	started  time.Time
	finished time.Time
	files    map[string]string
	log      log
	timer    func() bool   // stops the pending end
	ended    chan struct{} // closed when it no longer runs; made on demand
	withheld []cluster.Withheld
	keys     []string // SSH keys that the runner was told after its start
	runner   *runner  // made when somebody talks to it, or for a batch command
}

func (c *container) observed() runtime.Observed {
	o := runtime.Observed{Identity: c.spec.Identity, ID: c.id, Phase: c.phase, Error: c.failed, StartedAt: c.started}
	switch c.phase {
	case runtime.PhaseRunning:
		o.Pid = c.pid
	case runtime.PhaseExited:
		o.FinishedAt, o.ExitCode, o.Signal, o.OOMKilled = c.finished, c.how.code, c.how.signal, c.how.oom
	}
	return o
}

// done returns a channel that is closed when the container no longer runs.
func (c *container) done() <-chan struct{} {
	if c.ended == nil {
		c.ended = make(chan struct{})
		if c.phase != runtime.PhaseRunning {
			close(c.ended)
		}
	}
	return c.ended
}

var containerSerial atomic.Int64

func (e *Engine) newContainer(k key, spec runtime.Spec, img *image) *container {
	return &container{
		key: k, id: fmt.Sprintf("%064x", containerSerial.Add(1)), spec: cloneSpec(spec), image: img,
		phase: runtime.PhaseCreated, program: e.opt.Program(spec), log: log{max: e.opt.MaxLog},
	}
}

// cloneSpec keeps what the fake needs and shares nothing with the caller.
func cloneSpec(s runtime.Spec) runtime.Spec {
	s.Entry, s.Env, s.Mounts = slices.Clone(s.Entry), slices.Clone(s.Env), slices.Clone(s.Mounts)
	s.Tmpfs = maps.Clone(s.Tmpfs)
	s.Devices, s.CDI, s.Networks = slices.Clone(s.Devices), slices.Clone(s.CDI), slices.Clone(s.Networks)
	s.Groups = slices.Clone(s.Groups)
	return s
}

// start runs the container; the engine's mutex is held.
func (e *Engine) start(c *container) error {
	if c.phase != runtime.PhaseCreated {
		return nil
	}
	if c.program.StartError != "" {
		c.failed = c.program.StartError
		return fmt.Errorf("%s", c.program.StartError)
	}
	e.nextPid++
	c.pid, c.phase, c.failed = e.nextPid, runtime.PhaseRunning, ""
	c.started = e.opt.Now()
	c.files = maps.Clone(c.program.Files)
	c.log.write(c.started, c.program.Output)
	if len(e.starts) >= maxStarts {
		clear(e.starts)
		clear(e.runs)
	}
	e.starts[c.key]++
	e.hint(c, runtime.Hint{Kernel: c.key.kernel})
	p := c.program
	how := outcome{code: p.ExitCode, signal: p.Signal, oom: p.OOM}
	if p.Signal != 0 {
		how.code = 128 + p.Signal
	}
	switch {
	case p.Runs < 0:
		e.exit(c, how)
	case p.Runs > 0:
		c.timer = e.opt.After(p.Runs, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.exit(c, how)
		})
	}
	return nil
}

// exit ends a running container; the engine's mutex is held. Only the first end counts.
func (e *Engine) exit(c *container, how outcome) {
	if c.phase != runtime.PhaseRunning {
		return
	}
	if c.timer != nil {
		c.timer()
		c.timer = nil
	}
	c.phase, c.how, c.finished = runtime.PhaseExited, how, e.opt.Now()
	if c.ended != nil {
		close(c.ended)
	}
	c.log.finish()
	if how.signal != 9 && !how.crash && len(c.spec.Mounts) > 0 {
		if r := e.runnerOf(c); r.ended != "" {
			_ = os.WriteFile(r.ended, nil, 0o644) // as the runner does: nothing depends on it
		}
	}
	if c.runner != nil {
		c.runner.end()
	}
	if how.oom {
		e.hint(c, runtime.Hint{Kernel: c.key.kernel, OOM: true})
	}
	e.hint(c, runtime.Hint{Kernel: c.key.kernel})
}

// hint tells watchers; the engine's mutex is held. Without a container all are told.
func (e *Engine) hint(c *container, h runtime.Hint) {
	for w := range e.watchers {
		if c == nil || w.cluster == c.key.cluster && w.agent == c.key.agent {
			w.add(h)
		}
	}
}
