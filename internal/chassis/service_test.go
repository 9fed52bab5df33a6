package chassis_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/testkit/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// journal records the order of events.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) index(line string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Index(j.lines, line)
}

func (j *journal) service(name string, after ...string) *chassis.Service {
	return chassis.NewService(name, chassis.Hooks{
		Start: func(context.Context) error { j.add("start " + name); return nil },
		Run: func(ctx context.Context) error {
			<-ctx.Done()
			j.add("ran " + name)
			return ctx.Err()
		},
		Stop: func(context.Context) error { j.add("stop " + name); return nil },
	}).After(after...)
}

func untilDone(ctx context.Context) error { <-ctx.Done(); return nil }

func TestGroupStartsInOrderAndStopsInReverse(t *testing.T) {
	t.Parallel()
	var j journal
	g, err := chassis.NewGroup(quiet(), j.service("api", "db", "bus"), j.service("bus"), j.service("db"))
	require.NoError(t, err)
	require.NoError(t, g.Start(t.Context()))
	require.Equal(t, chassis.Running, g.Service("api").State())
	require.NoError(t, g.Stop(t.Context()))
	require.NoError(t, g.Stop(t.Context()))
	for _, dep := range []string{"db", "bus"} {
		require.Less(t, j.index("start "+dep), j.index("start api"))
		require.Less(t, j.index("stop api"), j.index("ran "+dep))
	}
	require.Equal(t, chassis.Terminated, g.Service("db").State())
}

func TestGroupRefusesBadDeclarations(t *testing.T) {
	t.Parallel()
	var j journal
	_, err := chassis.NewGroup(quiet(), j.service("a", "b"), j.service("b", "c"), j.service("c", "a"))
	require.ErrorContains(t, err, "a after b after c after a")
	_, err = chassis.NewGroup(quiet(), j.service("a", "ghost"))
	require.ErrorContains(t, err, `"ghost"`)
	_, err = chassis.NewGroup(quiet(), j.service("a"), j.service("a"))
	require.ErrorContains(t, err, `"a"`)
}

func TestFailedStartStopsTheRest(t *testing.T) {
	t.Parallel()
	var j journal
	boom := errors.New("boom")
	bad := chassis.NewService("bad", chassis.Hooks{Start: func(context.Context) error { return boom }}).After("db")
	g, err := chassis.NewGroup(quiet(), j.service("db"), bad, j.service("api", "bad"))
	require.NoError(t, err)
	require.ErrorIs(t, g.Start(t.Context()), boom)
	require.Equal(t, -1, j.index("start api"))
	require.NotEqual(t, -1, j.index("stop db"))
	require.Equal(t, chassis.Terminated, g.Service("api").State())
	require.Equal(t, chassis.Failed, bad.State())
}

func TestOneFailureStopsTheGroup(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{"error": errors.New("boom"), "nil": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var j journal
			trigger := make(chan struct{})
			bad := chassis.NewService("bad", chassis.Hooks{
				Run:  func(context.Context) error { <-trigger; return result },
				Stop: func(context.Context) error { j.add("stop bad"); return nil },
			})
			g, err := chassis.NewGroup(quiet(), j.service("db"), bad)
			require.NoError(t, err)
			close(trigger)
			require.ErrorContains(t, g.Run(t.Context()), "bad")
			require.NotEqual(t, -1, j.index("stop db"))
			require.NotEqual(t, -1, j.index("stop bad"))
		})
	}
}

func TestStartAndStopAreBounded(t *testing.T) {
	t.Parallel()
	slow := chassis.NewService("slow", chassis.Hooks{
		StartTimeout: time.Millisecond,
		Start:        func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
	})
	require.ErrorContains(t, slow.Start(t.Context()), "not started within")
	release := make(chan struct{})
	stuck := chassis.NewService("stuck", chassis.Hooks{
		StopTimeout: time.Millisecond,
		Run:         func(context.Context) error { <-release; return nil },
	})
	require.NoError(t, stuck.Start(t.Context()))
	require.ErrorContains(t, stuck.Stop(t.Context()), "still running")
	require.Equal(t, chassis.Failed, stuck.State())
	close(release)
}

func TestServiceIsNotReused(t *testing.T) {
	t.Parallel()
	s := chassis.NewService("once", chassis.Hooks{Run: untilDone})
	require.NoError(t, s.Start(t.Context()))
	require.ErrorContains(t, s.Start(t.Context()), "running already")
	require.NoError(t, s.Await(t.Context(), chassis.Running))
	require.NoError(t, s.Stop(t.Context()))
	require.ErrorContains(t, s.Await(t.Context(), chassis.Running), "will not be running again")
	require.ErrorContains(t, s.Start(t.Context()), "terminated already")
}

func TestNestedGroupFailsItsService(t *testing.T) {
	t.Parallel()
	var j journal
	boom := make(chan struct{})
	outer, err := chassis.NewGroup(quiet(), j.service("db"),
		chassis.Nest("role", time.Minute, func(context.Context) (*chassis.Group, error) {
			return chassis.NewGroup(quiet(), j.service("inner"),
				chassis.NewService("dies", chassis.Hooks{Run: func(context.Context) error { <-boom; return errors.New("gone") }}))
		}).After("db"))
	require.NoError(t, err)
	require.NoError(t, outer.Start(t.Context()))
	close(boom)
	await.Value(t, outer.Failed())
	require.NoError(t, outer.Stop(t.Context()))
	require.ErrorContains(t, outer.Err(), "dies: gone")
	require.Less(t, j.index("stop inner"), j.index("stop db"))
}

// TestStressStartStop starts and stops groups of random shape while members die at random
// moments, and checks what must hold whatever happens: nobody runs before or after those it
// depends on, everything ends in a final state, nothing is left running.
func TestStressStartStop(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 2 + rng.IntN(8)
		var mu sync.Mutex
		live := map[string]bool{}
		services := make([]*chassis.Service, n)
		deps := map[string][]string{}
		for i := range n {
			name := fmt.Sprint("s", i)
			for d := range i {
				if rng.IntN(3) == 0 {
					deps[name] = append(deps[name], fmt.Sprint("s", d))
				}
			}
			fate := rng.IntN(12)
			services[i] = chassis.NewService(name, chassis.Hooks{
				Start: func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					for _, d := range deps[name] {
						if !live[d] && fate != 1 {
							// A dependency may have died meanwhile, but then it is final.
							for _, s := range services {
								if s.Name() == d && s.State() < chassis.Running {
									t.Errorf("seed %d: %s started before %s", seed, name, d)
								}
							}
						}
					}
					if fate == 0 {
						return errors.New("no")
					}
					live[name] = true
					return nil
				},
				Run: func(ctx context.Context) error {
					if fate == 1 {
						return errors.New("died")
					}
					return untilDone(ctx)
				},
				Stop: func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					for who, on := range deps {
						if live[who] && slices.Contains(on, name) && fate != 1 {
							t.Errorf("seed %d: %s stopped before its dependant %s", seed, name, who)
						}
					}
					delete(live, name)
					return nil
				},
			}).After(deps[name]...)
		}
		rng.Shuffle(n, func(i, k int) { services[i], services[k] = services[k], services[i] })
		g, err := chassis.NewGroup(quiet(), services...)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_ = g.Run(ctx) // failures are part of the test
		for _, s := range services {
			require.True(t, s.State().Final(), "seed %d: %s is %s", seed, s.Name(), s.State())
		}
		require.Empty(t, live, "seed %d", seed)
	}
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

func TestAdminServerTellsHealth(t *testing.T) {
	t.Parallel()
	h := chassis.NewHealth()
	s := chassis.NewService("worker", chassis.Hooks{Run: untilDone})
	h.Watch(s)
	var mu sync.Mutex
	dbErr := errors.New("database is away")
	h.Check("database", func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return dbErr
	})
	admin := chassis.NewAdminServer(chassis.AdminConfig{Listen: "127.0.0.1:0"}, h, quiet())
	require.NoError(t, admin.Start(t.Context()))
	client := &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	base := "http://" + admin.Addr()

	code, _ := get(t, client, base+"/healthz")
	require.Equal(t, 200, code)
	code, body := get(t, client, base+"/readyz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "database is away")
	require.ErrorContains(t, h.NotReady(t.Context()), "worker is new")

	require.NoError(t, s.Start(t.Context()))
	mu.Lock()
	dbErr = nil
	mu.Unlock()
	code, body = get(t, client, base+"/readyz")
	require.Equal(t, 200, code)
	var answer struct {
		OK     bool                  `json:"ok"`
		Checks []chassis.CheckResult `json:"checks"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &answer))
	require.True(t, answer.OK)
	require.Len(t, answer.Checks, 2)
	code, body = get(t, client, base+"/metrics")
	require.Equal(t, 200, code)
	require.Contains(t, body, `berth_service_state{service="worker",state="running"} 1`)
	require.Contains(t, body, "berth_build_info")
	h.Watch(chassis.NewService("worker", chassis.Hooks{Run: untilDone}))
	code, body = get(t, client, base+"/metrics")
	require.Equal(t, 200, code, "two parts of one name do not take the metrics away")
	require.Contains(t, body, `berth_service_state{service="worker-2",state="new"} 1`)

	require.NoError(t, s.Stop(t.Context()))
	client.CloseIdleConnections()
	require.NoError(t, admin.Stop(t.Context()))
}

func TestHTTPServerTakesOverAStaleSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	for range 2 {
		s := chassis.NewHTTPServer("sock", chassis.HTTPOptions{Listen: "unix:" + path, Handler: http.NotFoundHandler()})
		require.NoError(t, s.Start(t.Context()))
		require.Equal(t, "unix:"+path, s.Addr())
		require.NoError(t, s.Stop(t.Context()))
	}
}

func TestBackoffGrowsToItsLimit(t *testing.T) {
	t.Parallel()
	b := chassis.Backoff{Min: time.Second, Max: 5 * time.Second}
	var got []time.Duration
	for range 5 {
		got = append(got, b.Next())
	}
	require.Equal(t, []time.Duration{1e9, 2e9, 4e9, 5e9, 5e9}, got)
	b.Reset()
	require.Equal(t, time.Second, b.Next())
}
