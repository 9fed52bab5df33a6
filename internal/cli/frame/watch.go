package frame

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/api"
)

// How often a waiting client looks by itself. Events wake it at once; looking is the
// safety net and, while an image is pulled, the source of the numbers.
const (
	lookBusy = time.Second
	// lookIdle multiplies the pause while a session runs.
	lookIdle = 5
)

// Goal is what a wait is for.
type Goal int

// The goals.
const (
	GoalRunning Goal = iota
	GoalEnded
)

// Watch follows a session until it reaches the goal, also when the manager is away for a while. A session that ends without having
// reached it comes with an error that says why.
func (a *Frame) Watch(ctx context.Context, c *api.Client, id string, g Goal, p *Progress) (api.SessionInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer cancel()
	wake := make(chan struct{}, 1)
	var started bool
	defer p.Clear()
	outage := a.Outage(p.Out)
	for {
		info, err := c.SessionInfo(ctx, id)
		if err != nil {
			if err = outage.Wait(ctx, err); err != nil {
				return info, Hint(err, "berth session info %s", id)
			}
			continue
		}
		outage.Over()
		p.show(info)
		switch {
		case g == GoalRunning && info.Status == api.StatusRunning, g == GoalEnded && api.Ended(info.Status):
			return info, nil
		case info.Result != "" && info.Result != api.ResultUndefined && (g == GoalRunning || api.Ended(info.Status)):
			// A batch session has run before we looked.
			return info, nil
		case api.Ended(info.Status),
			g == GoalRunning && info.Status == api.StatusTerminating && !strings.EqualFold(info.Type, api.TypeBatch):
			return info, endedEarly(id, info)
		}
		if !started {
			started = true
			reader.Go(func() { pokeOnEvents(ctx, c, id, wake) })
		}
		pause := a.Look
		if info.Status == api.StatusRunning {
			pause *= lookIdle
		}
		select {
		case <-ctx.Done():
			return info, context.Cause(ctx)
		case <-wake:
		case <-time.After(pause):
		}
	}
}

// pokeOnEvents makes the watcher look whenever something happened to the session. It
// replays what is kept, so that nothing between the first look and the subscription is missed.
func pokeOnEvents(ctx context.Context, c *api.Client, id string, wake chan<- struct{}) {
	for _, err := range c.SessionEvents(ctx, api.EventFilter{Session: id, After: "0"}) {
		if err != nil {
			return
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func endedEarly(id string, info api.SessionInfo) error {
	name := info.Name
	if name == "" {
		name = id
	}
	err := fmt.Errorf("session %s did not come to run: it is %s", name, info.Status)
	if why := info.Reason(); why != "" {
		err = fmt.Errorf("%w (%s)", err, why)
	}
	return Hint(err, "berth session info %s, berth session logs %s", id, id)
}

// UntilSignal ends a context at the first signal. stop must be called.
func UntilSignal(ctx context.Context, signals <-chan os.Signal) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var w sync.WaitGroup
	w.Go(func() {
		select {
		case <-ctx.Done():
		case <-signals:
			cancel(ErrInterrupted)
		}
	})
	return ctx, func() {
		cancel(context.Canceled)
		w.Wait()
	}
}

// Within bounds a context; 0 means no bound.
func Within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("not done after %s: %w", d, ErrTimeout))
}
