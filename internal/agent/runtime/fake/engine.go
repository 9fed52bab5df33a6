// Package fake is a container engine in memory: it runs no process, but keeps the whole
// contract of runtime.Runtime, with faults that can be injected and time that can be handed in.
//
// Tests use it for everything above the runtime; an agent may use it to try a cluster of any
// size on one machine. The Engine is the host's part: it outlives its Runtimes, as
// containers outlive an agent that is killed.
package fake

import (
	"context"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// Options configure an Engine. The zero value is usable.
type Options struct {
	// Now and After are the clock; nil means the real one. After calls f in a goroutine of its own
	// once d has passed and returns what keeps it from that.
	Now   func() time.Time
	After func(d time.Duration, f func()) (stop func() bool)
	// Delays is how long each method takes.
	Delays map[Method]time.Duration
	// Program says how the container of a spec behaves; nil means DefaultProgram.
	Program func(spec runtime.Spec) Program
	// App says what answers for an app (one that the container's image declares, or an intrinsic one), nil that the image
	// lacks its program; a nil App means DefaultApp. Engine.Listen adds others.
	App func(spec runtime.Spec, app run.AppPort) Serve
	// Sockets makes the connections to runners and apps real sockets, which can be handed over.
	Sockets bool
	// MaxLog bounds the log of one container in bytes; 0 means 256 KiB. The oldest output is dropped.
	MaxLog int
	// HasDevice and HasNetwork say what the host has: paths of device files, names of CDI devices, names of networks. Nil
	// means every device, and every network.
	HasDevice, HasNetwork func(name string) bool
	// Info is what Runtime.Info answers; a zero value is filled in.
	Info runtime.Info
}

// Method names a call, for delays and faults. Ensure consists of Create and Start, so that it can be
// interrupted in the middle.
type Method string

// The methods.
const (
	Info    Method = "info"
	Create  Method = "create"
	Start   Method = "start"
	Stop    Method = "stop"
	Remove  Method = "remove"
	Inspect Method = "inspect"
	List    Method = "list"
	Logs    Method = "logs"
	Commit  Method = "commit"
	Pull    Method = "pull"
	Images  Method = "images" // also Image and ReadImageFile
	Stats   Method = "stats"
	Dial    Method = "dial"
	// Withhold takes folders out of a container.
	Withhold Method = "withhold"
)

// Engine is the host: containers, images and faults. It is safe for concurrent use.
type Engine struct {
	opt    Options
	runner *runnerServer

	mu         sync.Mutex
	lost       bool
	containers map[key]*container
	images     map[string]*image // by id
	remote     map[string]Remote // by reference
	faults     []*injected
	watchers   map[*watcher]bool
	nextPid    int
	nextImage  int
	starts     map[key]int
	runs       map[key]int // of batch commands
}

// key identifies a container. Two clusters may have a kernel of the same id.
type key struct {
	cluster string
	agent   cluster.AgentID
	kernel  cluster.KernelID
}

// NewEngine returns an engine without containers and images.
func NewEngine(opt Options) *Engine {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.After == nil {
		opt.After = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	everything := func(string) bool { return true }
	if opt.HasDevice == nil {
		opt.HasDevice = everything
	}
	if opt.HasNetwork == nil {
		opt.HasNetwork = everything
	}
	if opt.Program == nil {
		opt.Program = DefaultProgram
	}
	if opt.App == nil {
		opt.App = DefaultApp
	}
	if opt.MaxLog == 0 {
		opt.MaxLog = 256 << 10
	}
	if opt.Info.Name == "" {
		opt.Info = runtime.Info{Name: "fake", Version: "1", APIVersion: "1", CgroupVersion: 2, Architecture: "x86_64", StorageDriver: "memory"}
	}
	e := &Engine{
		opt: opt, containers: map[key]*container{}, images: map[string]*image{}, remote: map[string]Remote{},
		watchers: map[*watcher]bool{}, nextPid: 1000, starts: map[key]int{}, runs: map[key]int{},
	}
	e.runner = newRunnerServer(e)
	return e
}

// Close ends the runners' connections. Containers have no goroutines, so there is nothing else to end.
func (e *Engine) Close() {
	e.mu.Lock()
	for _, c := range e.containers {
		if c.runner != nil {
			c.runner.hangUp(0)
		}
	}
	e.mu.Unlock()
	e.runner.close()
}

// Fault is what happens to matching calls instead of, or before, their work.
type Fault struct {
	Method Method
	Kernel cluster.KernelID // empty: every kernel
	Err    error            // returned when set; the work is not done
	// After says that the work is done first and then Err returned: a lost answer.
	After bool
	// Hang blocks the call until its context ends or the fault is taken back.
	Hang  bool
	Delay time.Duration
	Times int // how many calls; 0 means until taken back
}

type injected struct {
	Fault
	left int // -1: no end
	gone chan struct{}
}

// Inject adds a fault and returns what takes it back.
func (e *Engine) Inject(f Fault) (takeBack func()) {
	in := &injected{Fault: f, left: f.Times, gone: make(chan struct{})}
	if f.Times == 0 {
		in.left = -1
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, in)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for i, x := range e.faults {
			if x == in {
				e.faults = append(e.faults[:i:i], e.faults[i+1:]...)
			}
		}
		select {
		case <-in.gone:
		default:
			close(in.gone)
		}
	}
}

// Lose makes the engine stop answering: every call and every watch breaks, containers go on.
func (e *Engine) Lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = true
}

// Restore makes a lost engine answer again; watchers are told to look at everything.
func (e *Engine) Restore() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = false
	e.hint(nil, runtime.Hint{})
}

func errLost() error {
	return fault.Unavailablef("the container engine does not answer at fake://").WithReason(runtime.ReasonEngine).
		WithNext("restore the fake engine")
}

// enter is the beginning of every call: it is lost, delayed, hung or failed here. done must be
// applied to the call's result.
func (e *Engine) enter(ctx context.Context, m Method, k cluster.KernelID) (done func(error) error, err error) {
	done = func(err error) error { return err }
	if err := ctx.Err(); err != nil {
		return done, err
	}
	e.mu.Lock()
	if e.lost {
		e.mu.Unlock()
		return done, errLost()
	}
	delay := e.opt.Delays[m]
	var hit *injected
	for _, f := range e.faults {
		if f.Method == m && (f.Kernel == "" || f.Kernel == k) && f.left != 0 {
			hit = f
			if f.left > 0 {
				f.left--
			}
			break
		}
	}
	e.mu.Unlock()
	if hit != nil {
		delay += hit.Delay
	}
	if err := e.wait(ctx, delay); err != nil {
		return done, err
	}
	if hit == nil {
		return done, nil
	}
	if hit.Hang {
		select {
		case <-ctx.Done():
			return done, ctx.Err()
		case <-hit.gone:
		}
	}
	if hit.Err == nil {
		return done, nil
	}
	if !hit.After {
		return done, hit.Err
	}
	return func(err error) error {
		if err != nil {
			return err
		}
		return hit.Err
	}, nil
}

// wait lets d pass on the engine's clock.
func (e *Engine) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	passed := make(chan struct{})
	stop := e.opt.After(d, func() { close(passed) })
	defer stop()
	select {
	case <-passed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxStarts bounds the number of counts that are remembered. Beyond it all counts start again at zero.
const maxStarts = 1 << 16

// Starts returns how often the container of a kernel was started, over all its generations: a
// test that expects "nothing runs twice" asks here.
func (e *Engine) Starts(clusterID string, agent cluster.AgentID, kernel cluster.KernelID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.starts[key{clusterID, agent, kernel}]
}

// Runs returns how often the batch command of a kernel was executed, over all its generations.
func (e *Engine) Runs(clusterID string, agent cluster.AgentID, kernel cluster.KernelID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[key{clusterID, agent, kernel}]
}

// Spec returns what the container of a kernel was made from, its mounts above all: the fake keeps no files for them.
func (e *Engine) Spec(clusterID string, agent cluster.AgentID, kernel cluster.KernelID) (runtime.Spec, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containers[key{clusterID, agent, kernel}]
	if c == nil {
		return runtime.Spec{}, false
	}
	return cloneSpec(c.spec), true
}

// Containers returns every container of all clusters and agents, in no order. No fault keeps a test from seeing them.
func (e *Engine) Containers() []runtime.Observed {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]runtime.Observed, 0, len(e.containers))
	for _, c := range e.containers {
		out = append(out, c.observed())
	}
	return out
}

// Count returns how many containers exist, of all clusters.
func (e *Engine) Count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.containers)
}

// end finds the running containers of a kernel and ends them.
func (e *Engine) end(kernel cluster.KernelID, how outcome) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	hit := false
	for k, c := range e.containers {
		if k.kernel == kernel && c.phase == runtime.PhaseRunning {
			hit = true
			e.exit(c, how)
		}
	}
	if !hit {
		return fault.NotFoundf("kernel %s has no running container", kernel).WithReason(runtime.ReasonContainer)
	}
	return nil
}

// Exit ends the running container of a kernel with a code.
func (e *Engine) Exit(kernel cluster.KernelID, code int) error {
	return e.end(kernel, outcome{code: code})
}

// Crash ends the running container of a kernel as a crash of the engine's shim does: with exit code 0 and without the runner's marker.
func (e *Engine) Crash(kernel cluster.KernelID) error {
	return e.end(kernel, outcome{crash: true})
}

// Kill ends the running container of a kernel with a signal.
func (e *Engine) Kill(kernel cluster.KernelID, signal int) error {
	return e.end(kernel, outcome{code: 128 + signal, signal: signal})
}

// OOM ends the running container of a kernel as the kernel's memory killer does.
func (e *Engine) OOM(kernel cluster.KernelID) error {
	return e.end(kernel, outcome{code: 137, signal: 9, oom: true})
}
