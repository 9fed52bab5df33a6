package chassis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Group runs services together: each starts after those it is declared to come after, all
// stop in the reverse order, and the failure of one stops all.
type Group struct {
	log      *slog.Logger
	services []*Service // in an order that respects After
	byName   map[string]*Service

	stopOnce sync.Once
	stopErr  error
	stopped  chan struct{}
	watchers sync.WaitGroup
	failOnce sync.Once
	failed   chan struct{}
	failErr  error
}

// NewGroup checks the declarations: names are unique, every After names a member, and
// there is no cycle.
func NewGroup(log *slog.Logger, services ...*Service) (*Group, error) {
	g := &Group{log: log, byName: map[string]*Service{}, failed: make(chan struct{}), stopped: make(chan struct{})}
	for _, s := range services {
		if g.byName[s.name] != nil {
			return nil, fmt.Errorf("two services are named %q", s.name)
		}
		g.byName[s.name] = s
	}
	for _, s := range services {
		for _, dep := range s.after {
			if g.byName[dep] == nil {
				return nil, fmt.Errorf("service %q starts after %q, which is not in its group", s.name, dep)
			}
		}
	}
	order, err := g.sort(services)
	if err != nil {
		return nil, err
	}
	g.services = order
	return g, nil
}

// sort returns the services so that each comes after its dependencies, otherwise keeping their order.
func (g *Group) sort(services []*Service) ([]*Service, error) {
	const visiting, placed = 1, 2
	mark := map[string]int{}
	var order []*Service
	var visit func(s *Service, path []string) error
	visit = func(s *Service, path []string) error {
		path = append(path, s.name)
		switch mark[s.name] {
		case placed:
			return nil
		case visiting:
			return fmt.Errorf("services start after one another in a circle: %s", strings.Join(path[slices.Index(path, s.name):], " after "))
		}
		mark[s.name] = visiting
		for _, dep := range s.after {
			if err := visit(g.byName[dep], path); err != nil {
				return err
			}
		}
		mark[s.name] = placed
		order = append(order, s)
		return nil
	}
	for _, s := range services {
		if err := visit(s, nil); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// Services returns the members in start order.
func (g *Group) Services() []*Service { return slices.Clone(g.services) }

// Service returns the named member, nil when there is none.
func (g *Group) Service(name string) *Service { return g.byName[name] }

// Failed is closed when a member has failed; Err then tells why.
func (g *Group) Failed() <-chan struct{} { return g.failed }

// Err returns the first failure of a member, nil while there is none.
func (g *Group) Err() error {
	select {
	case <-g.failed:
		return g.failErr
	default:
		return nil
	}
}

func (g *Group) fail(err error) {
	g.failOnce.Do(func() {
		g.failErr = err
		close(g.failed)
	})
}

// Start starts all members, independent ones at the same time. When one fails the others
// are stopped and the first failure is returned. Call it once.
func (g *Group) Start(ctx context.Context) error {
	startCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, s := range g.services {
		wg.Go(func() {
			for _, dep := range s.after {
				if err := g.byName[dep].Await(startCtx, Running); err != nil {
					return // the dependency reports its own failure
				}
			}
			if startCtx.Err() != nil {
				return
			}
			began := time.Now()
			g.log.Debug("service starting", "service", s.name)
			if err := s.Start(startCtx); err != nil {
				g.fail(err)
				cancel(err)
				return
			}
			g.log.Debug("service running", "service", s.name, "took", time.Since(began).Round(time.Millisecond))
			g.watchers.Go(func() { g.watch(s) })
		})
	}
	wg.Wait()
	err := g.Err()
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("start services: %w", context.Cause(ctx))
	}
	if err == nil {
		return nil
	}
	return errors.Join(err, g.Stop(context.WithoutCancel(ctx)))
}

// watch reports a member that fails on its own. A member that Stop stops ends the watch too.
func (g *Group) watch(s *Service) {
	select {
	case <-s.Done():
	case <-g.stopped:
		return
	}
	if err := s.Err(); err != nil {
		g.log.Error("service failed", "service", s.name, "error", err)
		g.fail(fmt.Errorf("%s: %w", s.name, err))
	}
}

// Stop stops all members, dependants first, each within its own timeout, and waits. Further
// calls wait for the first and return its result.
func (g *Group) Stop(ctx context.Context) error {
	g.stopOnce.Do(func() {
		dependants := map[string][]*Service{}
		for _, s := range g.services {
			for _, dep := range s.after {
				dependants[dep] = append(dependants[dep], s)
			}
		}
		gone := map[string]chan struct{}{}
		for _, s := range g.services {
			gone[s.name] = make(chan struct{})
		}
		errs := make([]error, len(g.services))
		var wg sync.WaitGroup
		for i, s := range g.services {
			wg.Go(func() {
				defer close(gone[s.name])
				for _, d := range dependants[s.name] {
					<-gone[d.name] // bounded: every member's stop is
				}
				already := s.State().Final()
				if err := s.Stop(ctx); err != nil && !already {
					errs[i] = fmt.Errorf("%s: %w", s.name, err)
				}
				g.log.Debug("service stopped", "service", s.name, "state", s.State().String())
			})
		}
		wg.Wait()
		close(g.stopped)
		g.stopErr = errors.Join(errs...)
	})
	g.watchers.Wait()
	return g.stopErr
}

// Run starts the group, waits until ctx ends or a member fails, and stops it. It returns nil
// after a clean stop that ctx asked for.
func (g *Group) Run(ctx context.Context) error {
	if err := g.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-g.failed:
	}
	stopErr := g.Stop(context.WithoutCancel(ctx))
	return errors.Join(g.Err(), stopErr)
}

// Nest makes one service of a group that can only be built once its turn has come, for
// example because it needs the clients of services before it. Start builds and starts the
// group; the service fails when a member does.
func Nest(name string, startTimeout time.Duration, build func(ctx context.Context) (*Group, error)) *Service {
	var inner *Group
	return NewService(name, Hooks{
		StartTimeout: startTimeout,
		StopTimeout:  time.Minute,
		Start: func(ctx context.Context) error {
			g, err := build(ctx)
			if err != nil {
				return err
			}
			inner = g
			return g.Start(ctx)
		},
		Run: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return nil
			case <-inner.Failed():
				return inner.Err()
			}
		},
		Stop: func(ctx context.Context) error { return inner.Stop(ctx) },
	})
}
