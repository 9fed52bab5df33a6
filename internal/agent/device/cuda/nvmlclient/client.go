// Package nvmlclient starts berth-nvml, the helper process for NVIDIA GPUs, asks it and starts it again when it ends. It keeps
// nothing and decides nothing about cards: the device driver in package cuda does, which calls it. A helper that hangs in the
// driver costs the agent nothing but its answers.
package nvmlclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// The limits of a helper.
const (
	// helloLimit is how long a helper may take to say its version.
	helloLimit = 10 * time.Second
	// startLimit is how long a question waits for the first helper.
	startLimit = 30 * time.Second
	// answerLimit is how long it may take to answer. The driver takes seconds for each card when nothing else keeps it awake.
	answerLimit = time.Minute
	// endLimit is how long it may take to end when it is asked to, and to vanish when it is killed.
	endLimit = 5 * time.Second
	// wordsLimit is how long its standard error is read after its end, where another process holds it open.
	wordsLimit = 500 * time.Millisecond
)

// Options are what a client needs.
type Options struct {
	// Path is the program, as Find finds it.
	Path  string
	Log   *slog.Logger
	Clock chassis.Clock

	env  []string                // for tests: variables of the helper
	kill func(*os.Process) error // for tests
}

// Client is the helper of one agent. All methods may be called at the same time.
type Client struct {
	o      Options
	queue  *backlog
	events chan nvmlwire.Event
	// runs says that Run was called.
	runs atomic.Bool
	// alarmed says that the log was told of a crash loop.
	alarmed atomic.Bool

	mu      sync.Mutex
	life    *life         // the helper that answers; nil: none
	why     error         // why none answers; nil before the first was started
	changed chan struct{} // closed and replaced when life or why changes
}

// New makes a client; it starts nothing.
func New(o Options) *Client {
	if o.kill == nil {
		o.kill = (*os.Process).Kill
	}
	return &Client{o: o, queue: newBacklog(), events: make(chan nvmlwire.Event), changed: make(chan struct{})}
}

// Find looks for the program beside the running one, then in PATH.
func Find() (string, error) {
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), nvmlwire.Program)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(nvmlwire.Program)
	if err != nil {
		return "", fault.NotFoundf("the program %s is neither beside this one nor in PATH", nvmlwire.Program).WithCause(err).
			WithNext("build it with make nvml and install it beside berth")
	}
	return filepath.Abs(path)
}

// Look asks for the GPUs of this host. An agent looks at its host before its services run: until Run is called, a helper is started
// for each look and ended after it.
func (c *Client) Look(ctx context.Context) (nvmlwire.Facts, error) {
	if c.runs.Load() {
		return c.look(ctx)
	}
	first := New(c.o)
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	defer group.Wait() // at most twice endLimit and wordsLimit
	defer stop()
	group.Go(func() { _ = first.Run(running) }) // it returns the end of its context; what fails is told by look
	return first.look(ctx)
}

func (c *Client) look(ctx context.Context) (nvmlwire.Facts, error) {
	m, err := c.ask(ctx, nvmlwire.MethodLook)
	if err != nil {
		return nvmlwire.Facts{}, err
	}
	if m.Facts == nil {
		return nvmlwire.Facts{}, nothing(nvmlwire.MethodLook)
	}
	if err := check(*m.Facts); err != nil {
		return nvmlwire.Facts{}, err
	}
	return *m.Facts, nil
}

// Sample asks how busy they are. It needs Run.
func (c *Client) Sample(ctx context.Context) (nvmlwire.Sample, error) {
	m, err := c.ask(ctx, nvmlwire.MethodSample)
	if err != nil {
		return nvmlwire.Sample{}, err
	}
	if m.Sample == nil {
		return nvmlwire.Sample{}, nothing(nvmlwire.MethodSample)
	}
	return *m.Sample, nil
}

// Events gives what the driver reported of cards, while Run runs. What nobody takes is kept to a bound: of each card the oldest,
// because the first error is the cause of those that follow.
func (c *Client) Events() <-chan nvmlwire.Event { return c.events }

func nothing(method string) error {
	return fault.Unavailablef("the helper for NVIDIA GPUs answered %s with nothing", method).
		WithNext("install the %s of this agent's release", nvmlwire.Program)
}

// check refuses facts that cannot be true.
func check(f nvmlwire.Facts) error {
	if len(f.GPUs) > nvmlwire.MaxGPUs {
		return fault.Invalidf("the helper for NVIDIA GPUs found %d cards, at most %d can be used", len(f.GPUs), nvmlwire.MaxGPUs)
	}
	seen := map[string]bool{}
	once := func(id string) error {
		if id == "" || len(id) > 128 || seen[id] {
			return fault.Invalidf("the helper for NVIDIA GPUs found a card or instance whose UUID is missing, too long or not its own: %q",
				fault.Clip(id, 128))
		}
		seen[id] = true
		return nil
	}
	for _, g := range f.GPUs {
		if err := once(g.UUID); err != nil {
			return err
		}
		for _, i := range g.Instances {
			if err := once(i.UUID); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask sends a request and waits for its answer. Callers of the same method share one request. When ctx ends before the helper
// has answered, the request goes on: a helper that never answers it is killed all the same.
func (c *Client) ask(ctx context.Context, method string) (nvmlwire.Message, error) {
	l, err := c.alive(ctx)
	if err != nil {
		return nvmlwire.Message{}, err
	}
	call := l.send(method)
	select {
	case <-call.done:
	case <-ctx.Done():
		return nvmlwire.Message{}, late(ctx)
	}
	if call.err != nil {
		return nvmlwire.Message{}, call.err
	}
	if call.answer.Error != "" {
		return nvmlwire.Message{}, unavailable(call.answer.Error)
	}
	if l.clock().Now().Sub(l.began) >= steady && c.alarmed.CompareAndSwap(true, false) {
		c.o.Log.Info("the helper for NVIDIA GPUs works again", "process", l.pid)
	}
	return call.answer, nil
}

func late(ctx context.Context) error {
	return fault.New(fault.Timeout, "the helper for NVIDIA GPUs has not answered yet").WithCause(context.Cause(ctx)).
		WithNext("wait; when it stays so, see dmesg for errors of the NVIDIA driver")
}

func unavailable(reason string) error {
	return fault.Unavailablef("the helper for NVIDIA GPUs: %s", reason).
		WithNext("see the agent's log, and run %s look on its host", nvmlwire.Program)
}

// alive returns the helper that answers. It waits for one that is being started for the first time.
func (c *Client) alive(ctx context.Context) (*life, error) {
	limit := c.o.Clock.NewTimer(startLimit)
	defer limit.Stop()
	for {
		c.mu.Lock()
		l, why, changed := c.life, c.why, c.changed
		c.mu.Unlock()
		if l != nil || why != nil {
			return l, why
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, late(ctx)
		case <-limit.C():
			return nil, unavailable("it was not started")
		}
	}
}

func (c *Client) set(l *life, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life, c.why = l, why
	close(c.changed)
	c.changed = make(chan struct{})
}

// Run keeps a helper running until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	c.runs.Store(true)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { c.queue.forward(ctx, c.events) })
	var s streak
	for {
		began := c.o.Clock.Now()
		l, err := c.spawn()
		if err == nil {
			err = l.run(ctx)
		}
		c.set(nil, unavailable(reasonOf(ctx, err)))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait, alarm := s.ended(c.o.Clock.Now().Sub(began))
		c.report(err, wait, s.n, alarm)
		if stuck, ok := errors.AsType[*stuckError](err); ok {
			// At most one helper is left behind: another would hang in the same driver.
			select {
			case <-stuck.exited:
				c.o.Log.Info("the helper for NVIDIA GPUs that could not be killed has ended", "process", stuck.pid)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := chassis.Wait(ctx, c.o.Clock, wait); err != nil {
			return err
		}
	}
}

func reasonOf(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "the agent is ending"
	}
	return err.Error()
}

// report tells the log that a helper ended: each of the first few times, then once that it is a loop.
func (c *Client) report(err error, wait time.Duration, times int, alarm bool) {
	if _, stuck := errors.AsType[*stuckError](err); stuck {
		c.o.Log.Error("the helper for NVIDIA GPUs cannot be killed, nothing is known of the GPUs; next: see dmesg for errors of the NVIDIA "+
			"driver, reset the card or restart the host", "err", err)
		return
	}
	switch {
	case alarm:
		c.alarmed.Store(true)
		c.o.Log.Error("the helper for NVIDIA GPUs ends again and again, nothing is known of the GPUs; it is started again at growing "+
			"intervals, which is not said again; next: run "+nvmlwire.Program+" look on this host", "times", times, "err", err)
	case c.alarmed.Load():
		c.o.Log.Debug("the helper for NVIDIA GPUs ended", "err", err, "again_in", wait)
	default:
		c.o.Log.Warn("the helper for NVIDIA GPUs ended", "err", err, "again_in", wait)
	}
}

// The pauses between helpers.
const (
	firstWait = time.Second
	maxWait   = time.Minute
	// steady is how long a helper lives for what came before to be forgotten.
	steady = 2 * time.Minute
	// alarmAfter is how many in a row are a crash loop.
	alarmAfter = 4
)

// streak counts helpers in a row that ended soon. It is pure.
type streak struct{ n int }

// ended takes the end of a helper that lived that long. It returns the pause before the next one, which grows from a second to a
// minute, and whether this one makes it a crash loop.
func (s *streak) ended(lived time.Duration) (wait time.Duration, alarm bool) {
	if lived >= steady {
		s.n = 0
	}
	s.n++
	wait = maxWait
	if s.n < 7 {
		wait = min(firstWait<<(s.n-1), maxWait)
	}
	return wait, s.n == alarmAfter
}

// stuckError is a helper that SIGKILL did not end: it waits in the kernel, for a driver that hangs.
type stuckError struct {
	pid    int
	reason error
	exited <-chan struct{}
}

func (s *stuckError) Error() string {
	return fmt.Sprintf("%v; process %d hangs in the kernel and cannot be killed, and no other one is started before it ends", s.reason, s.pid)
}

func (s *stuckError) Unwrap() error { return s.reason }
