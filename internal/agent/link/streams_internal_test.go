package link

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/node"
)

// dialled is a stream connection that runStreams opened; what is sent on end is its end.
type dialled struct {
	addr string
	end  chan error
}

func runningStreams(t *testing.T) (l *Link, dials chan dialled) {
	t.Helper()
	l = &Link{o: Options{Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock()}, opened: make(chan struct{}),
		wished: make(chan struct{}, 1), managers: membership.NewManagers([]string{"m1"}, 0)}
	dials = make(chan dialled)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	t.Cleanup(cancel)
	work.Go(func() {
		_ = l.runStreams(ctx, func(ctx context.Context, addr string) error {
			d := dialled{addr, make(chan error)}
			select {
			case dials <- d:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			select {
			case err := <-d.end:
				return err
			case <-ctx.Done():
				return errEnded // as when the connection breaks
			}
		})
	})
	return l, dials
}

// TestStreamsAreDialledWhenTheManagerAsks: once for each time that it asks, again while that does not work, and again when it asks
// although the last connection is not known to be over.
func TestStreamsAreDialledWhenTheManagerAsks(t *testing.T) {
	t.Parallel()
	l, dials := runningStreams(t)
	l.wish()
	l.settle("m1", node.VersionStreams) // what was asked before is forgotten
	l.wish()
	first := await.Value(t, dials)
	require.Equal(t, "m1", first.addr)
	first.end <- errors.New("refused")
	second := await.Value(t, dials)
	l.wish() // the manager closed the connection, and wants another one already
	second.end <- errEnded
	third := await.Value(t, dials)
	third.end <- errEnded
	select {
	case <-dials:
		require.Fail(t, "nobody asked")
	default:
	}
	l.settle("m2", node.VersionStreams)
	l.wish()
	require.Equal(t, "m2", await.Value(t, dials).addr)
	// That one is open still when the agent goes elsewhere.
	l.settle("m3", node.VersionStreams)
	l.wish()
	require.Equal(t, "m3", await.Value(t, dials).addr)
}

// TestStreamsStayOpenWithOlderManagers: they do not know that they may ask.
func TestStreamsStayOpenWithOlderManagers(t *testing.T) {
	t.Parallel()
	l, dials := runningStreams(t)
	l.settle("m1", node.VersionStreams-1)
	await.Value(t, dials).end <- errEnded
	require.Equal(t, "m1", await.Value(t, dials).addr)
	l.settle("m2", node.VersionStreams)
	l.wish()
	require.Equal(t, "m2", await.Value(t, dials).addr)
}
