package storage

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/storage"
)

// watched is a source of epochs in memory.
type watched struct {
	mu      sync.Mutex
	all     map[string]int64
	pending map[string]int64
	c       chan struct{}
}

func newWatched(all map[string]int64) *watched {
	return &watched{all: all, pending: maps.Clone(all), c: make(chan struct{}, 1)}
}

func (w *watched) Changed() <-chan struct{} { return w.c }
func (w *watched) Close()                   {}

func (w *watched) Restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = maps.Clone(w.all)
}

func (w *watched) Take(int) (map[string]int64, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.pending
	w.pending = map[string]int64{}
	return out, time.Now()
}

func (w *watched) set(subject string, n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[subject], w.pending[subject] = n, n
	w.c <- struct{}{}
}

// TestRightsReachEveryLifeOfANode pushes to a node that is started again.
func TestRightsReachEveryLifeOfANode(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	boot, fails := "first", 1
	requests := make(chan storage.RightsRequest, 100)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if fails > 0 {
			fails--
			fail(w, 503, storage.Problem{Kind: "unavailable", Msg: "not now"})
			return
		}
		var q storage.RightsRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.URL.Path != storage.PathRights {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		requests <- q
		_ = json.NewEncoder(w).Encode(storage.RightsReply{Boot: boot, Again: q.Boot != "" && q.Boot != boot})
	})
	l := newLink(t)
	l.take("p/old", storage.Presence{Proxy: "p", Node: "old", ManagerURL: "http://127.0.0.1:1", Protocol: 1})
	l.take("p/a", storage.Presence{Proxy: "p", Node: "a", ManagerURL: s.URL, Protocol: storage.Version})
	w := newWatched(map[string]int64{"user:ada": 1})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.PushRights(ctx, func() RightsWatch { return w }) }()
	// complete waits for the request that completes the node's copy and returns what it was told on the way. Requests without news, which
	// come every few seconds, do not count.
	complete := func() map[string]int64 {
		t.Helper()
		told := map[string]int64{}
		for end := time.Now().Add(time.Minute); ; {
			require.True(t, time.Now().Before(end), "nothing new was told")
			q := await.Value(t, requests)
			maps.Copy(told, q.Epochs)
			if q.Complete && q.Boot == boot && len(told) > 0 {
				return told
			}
		}
	}
	require.Equal(t, map[string]int64{"user:ada": 1}, complete())
	w.set("user:bob", 2)
	require.Equal(t, map[string]int64{"user:bob": 2}, complete())
	mu.Lock()
	boot = "second"
	w.set("user:eve", 3)
	mu.Unlock()
	require.Equal(t, map[string]int64{"user:ada": 1, "user:bob": 2, "user:eve": 3}, complete(), "a new life hears everything")
	l.drop("p/a")
	cancel()
	require.NoError(t, await.Value(t, done))
}
