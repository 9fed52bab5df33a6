package cli

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

// goal is what a wait is for.
type goal int

const (
	goalRunning goal = iota
	goalEnded
)

// watch follows a session until it reaches the goal. A session that ends without having
// reached it comes with an error that says why.
func (a *app) watch(ctx context.Context, c *api.Client, id string, g goal, p *progress) (api.SessionInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer cancel()
	wake := make(chan struct{}, 1)
	var started bool
	defer p.clear()
	for {
		info, err := c.SessionInfo(ctx, id)
		if err != nil {
			return info, hint(err, "berth session info %s", id)
		}
		p.show(info)
		switch {
		case g == goalRunning && info.Status == api.StatusRunning, g == goalEnded && api.Ended(info.Status):
			return info, nil
		case info.Result != "" && info.Result != api.ResultUndefined && (g == goalRunning || api.Ended(info.Status)):
			// A batch session has run before we looked.
			return info, nil
		case api.Ended(info.Status), g == goalRunning && info.Status == api.StatusTerminating && !strings.EqualFold(info.Type, api.TypeBatch):
			return info, endedEarly(id, info)
		}
		if !started {
			started = true
			reader.Go(func() { pokeOnEvents(ctx, c, id, wake) })
		}
		pause := a.look
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
	return hint(err, "berth session info %s, berth session logs %s", id, id)
}

// untilSignal ends a context at the first signal. stop must be called.
func untilSignal(ctx context.Context, signals <-chan os.Signal) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var w sync.WaitGroup
	w.Go(func() {
		select {
		case <-ctx.Done():
		case <-signals:
			cancel(errInterrupted)
		}
	})
	return ctx, func() {
		cancel(context.Canceled)
		w.Wait()
	}
}

// within bounds a context; 0 means no bound.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("not done after %s: %w", d, errTimeout))
}
