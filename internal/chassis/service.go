package chassis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// State is how far a service got. Moves: New -> Starting -> Running -> Stopping ->
// Terminated, and from any of the middle three to Failed. A service is never reused.
type State int

// The states in their order.
const (
	New State = iota
	Starting
	Running
	Stopping
	Terminated
	Failed
)

var stateNames = [...]string{"new", "starting", "running", "stopping", "terminated", "failed"}

// States returns all states in order, for metrics.
func States() []State { return []State{New, Starting, Running, Stopping, Terminated, Failed} }

func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("state(%d)", int(s))
	}
	return stateNames[s]
}

// Final reports whether no further move is possible.
func (s State) Final() bool { return s == Terminated || s == Failed }

// Defaults of Hooks.
const (
	DefaultStartTimeout = 60 * time.Second
	DefaultStopTimeout  = 15 * time.Second
)

// Hooks are the three parts of a service; any may be nil.
type Hooks struct {
	// Start makes the service usable and returns; its context ends after StartTimeout. When it
	// returns an error it has cleaned up after itself: Stop is not called.
	Start func(ctx context.Context) error
	// Run works until its context ends and then returns nil or the context's error. Returning
	// earlier, even with nil, is a failure of the service.
	Run func(ctx context.Context) error
	// Stop releases what Start made, after Run has returned; its context ends after StopTimeout.
	Stop func(ctx context.Context) error
	// StartTimeout and StopTimeout default to the constants above.
	StartTimeout, StopTimeout time.Duration
}

// Service is one part of a process with a life of its own.
type Service struct {
	name  string
	hooks Hooks
	after []string

	mu      sync.Mutex
	state   State
	err     error
	changed chan struct{} // closed and replaced at every move
	done    chan struct{} // closed in a final state
	cancel  context.CancelFunc
	runEnd  chan struct{} // closed when Run has returned
	runErr  error         // what Run returned; valid once runEnd is closed
}

// NewService makes a service in state New. Names are lower-case words joined by dashes and
// unique within a group.
func NewService(name string, h Hooks) *Service {
	if h.StartTimeout == 0 {
		h.StartTimeout = DefaultStartTimeout
	}
	if h.StopTimeout == 0 {
		h.StopTimeout = DefaultStopTimeout
	}
	return &Service{name: name, hooks: h, changed: make(chan struct{}), done: make(chan struct{})}
}

// After declares that this service starts after the named ones of its group run, and stops
// before they do. It returns the service itself. Call it before the group is made.
func (s *Service) After(names ...string) *Service {
	for _, n := range names {
		if !slices.Contains(s.after, n) {
			s.after = append(s.after, n)
		}
	}
	return s
}

// Name returns the service's name.
func (s *Service) Name() string { return s.name }

// State returns the present state.
func (s *Service) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Err returns why the service failed, nil unless its state is Failed.
func (s *Service) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Done is closed once the service is Terminated or Failed.
func (s *Service) Done() <-chan struct{} { return s.done }

// Await returns nil once the service is in the wanted state, and an error when it can no
// longer get there or ctx ends first.
func (s *Service) Await(ctx context.Context, want State) error {
	for {
		s.mu.Lock()
		state, err, changed := s.state, s.err, s.changed
		s.mu.Unlock()
		switch {
		case state == want:
			return nil
		case err != nil:
			return fmt.Errorf("service %s failed: %w", s.name, err)
		case state > want || state.Final():
			return fmt.Errorf("service %s is %s, it will not be %s again", s.name, state, want)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for service %s to be %s, it is %s: %w", s.name, want, state, context.Cause(ctx))
		}
	}
}

// move sets the state; the caller holds no lock. It is refused (false) when from is not the present state.
func (s *Service) move(from, to State, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != from {
		return false
	}
	s.state, s.err = to, err
	close(s.changed)
	s.changed = make(chan struct{})
	if to.Final() {
		close(s.done)
	}
	return true
}

// Start brings a New service to Running and returns, or to Failed with the reason. The
// context bounds starting only; the service then runs until Stop or its own failure.
func (s *Service) Start(ctx context.Context) error {
	if !s.move(New, Starting, nil) {
		return fmt.Errorf("start service %s: it is %s already", s.name, s.State())
	}
	if s.hooks.Start != nil {
		startCtx, cancel := context.WithTimeoutCause(ctx, s.hooks.StartTimeout,
			fmt.Errorf("not started within %s: %w", s.hooks.StartTimeout, context.DeadlineExceeded))
		err := s.hooks.Start(startCtx)
		cancel()
		if err != nil {
			s.move(Starting, Failed, err)
			return fmt.Errorf("start %s: %w", s.name, err)
		}
	}
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	s.cancel, s.runEnd = cancel, make(chan struct{})
	s.mu.Unlock()
	s.move(Starting, Running, nil)
	if s.hooks.Run == nil {
		close(s.runEnd)
		return nil
	}
	go s.run(runCtx)
	return nil
}

func (s *Service) run(ctx context.Context) {
	err := s.hooks.Run(ctx)
	stopping := ctx.Err() != nil
	if stopping && errors.Is(err, context.Canceled) {
		err = nil
	}
	if err == nil && !stopping {
		err = errors.New("it ended by itself")
	}
	s.mu.Lock()
	s.runErr = err
	s.mu.Unlock()
	close(s.runEnd)
	// Where Stop came first it finishes the move. Otherwise the service died: release what it
	// holds before the failure becomes visible, so that whoever waits for a final state knows
	// that nothing is left behind.
	if !stopping && s.move(Running, Stopping, nil) {
		s.finish(context.WithoutCancel(ctx), err)
	}
}

// finish calls the Stop hook and makes the final move from Stopping.
func (s *Service) finish(ctx context.Context, err error) {
	s.cancel()
	if s.hooks.Stop != nil {
		stopCtx, cancel := context.WithTimeout(ctx, s.hooks.StopTimeout)
		err = errors.Join(err, s.hooks.Stop(stopCtx))
		cancel()
	}
	if err != nil {
		s.move(Stopping, Failed, err)
		return
	}
	s.move(Stopping, Terminated, nil)
}

// Stop brings a Running service to Terminated and waits for it; a New one is Terminated at
// once, a final one stays as it is. It returns the failure of the service, if any. The
// service gets the smaller of the context's time and its own StopTimeout.
func (s *Service) Stop(ctx context.Context) error {
	if s.move(New, Terminated, nil) {
		return nil
	}
	if err := s.Await(ctx, Running); err != nil && !s.State().Final() && s.State() != Stopping {
		return err
	}
	if !s.move(Running, Stopping, nil) {
		select { // another Stop, or the service's own end, is under way
		case <-s.done:
			return s.Err()
		case <-ctx.Done():
			return fmt.Errorf("stop %s: %w", s.name, context.Cause(ctx))
		}
	}
	s.cancel()
	limit := time.NewTimer(s.hooks.StopTimeout)
	defer limit.Stop()
	select {
	case <-s.runEnd:
	case <-limit.C:
		err := fmt.Errorf("stop %s: still running after %s", s.name, s.hooks.StopTimeout)
		s.finish(ctx, err)
		return err
	case <-ctx.Done():
		err := fmt.Errorf("stop %s: %w", s.name, context.Cause(ctx))
		s.finish(context.WithoutCancel(ctx), err)
		return err
	}
	s.mu.Lock()
	err := s.runErr
	s.mu.Unlock()
	s.finish(ctx, err)
	return s.Err()
}
