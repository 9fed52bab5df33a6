package announce_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/manager/link/announce"
)

// patience is more than an announcement takes to run out whose owner could not revoke it in time.
const patience = time.Minute

// TestAnnouncementsAreFollowed: who follows learns what is there, what comes, changes and goes; an announcement goes with its owner.
func TestAnnouncementsAreFollowed(t *testing.T) {
	t.Parallel()
	server := embedded.NewEtcd(t.TempDir(), slog.New(slog.DiscardHandler))
	require.NoError(t, server.Service().Start(t.Context()))
	defer func() { require.NoError(t, server.Service().Stop(context.Background())) }()
	etcd := server.Client()
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	keep := func(key, value string) (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- announce.Keep(ctx, etcd, chassis.RealClock(), log, key, value) }()
		return func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	heard := make(chan string, 16)
	next := func(want string) {
		t.Helper()
		select {
		case got := <-heard:
			require.Equal(t, want, got)
		case <-time.After(patience):
			require.FailNow(t, "waited too long", want)
		}
	}
	_, err := etcd.Put(ctx, "/there/old", "1")
	require.NoError(t, err)
	followed := make(chan error, 1)
	go func() {
		followed <- announce.Follow(ctx, etcd, chassis.RealClock(), log, "/there/", 10, announce.Listener{
			All:  func(all map[string][]byte) { heard <- fmt.Sprintf("all %d %s", len(all), all["old"]) },
			Put:  func(name string, value []byte) { heard <- "put " + name + " " + string(value) },
			Gone: func(name string) { heard <- "gone " + name },
		})
	}()
	next("all 1 1")
	stopElsewhere := keep("/elsewhere/x", "1")
	stop := keep("/there/new", "2")
	next("put new 2")
	stop()
	next("gone new")
	stopElsewhere()
	_, err = etcd.Put(ctx, "/there/old", "3")
	require.NoError(t, err)
	next("put old 3")
	cancel()
	require.NoError(t, <-followed)
}
