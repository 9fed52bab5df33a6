package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

// crasher counts the points an agent passes and kills it at one of them.
type crasher struct {
	mu     sync.Mutex
	at     int // 0: never
	passed []string
	hit    chan struct{}
	stop   func()
}

func (c *crasher) points() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.passed)
}

var errKilled = errors.New("killed")

func (c *crasher) before(_ context.Context, _ cluster.KernelID, point string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed = append(c.passed, point)
	if len(c.passed) == c.at {
		c.stop()
		close(c.hit)
		return errKilled
	}
	select {
	case <-c.hit: // it is dead: nothing is done any more
		return errKilled
	default:
		return nil
	}
}

// story is a life in acts: what the manager wants, and what it then waits for.
type story struct {
	name   string
	acts   []act
	starts int
	check  func(t *testing.T, r *rig, o cluster.KernelObservation)
}

type act struct {
	want cluster.DesiredKernel
	done func(o cluster.KernelObservation) bool
}

func at(generation int64, p cluster.Phase) func(o cluster.KernelObservation) bool {
	return func(o cluster.KernelObservation) bool { return o.Generation == generation && o.Phase == p }
}

func stories() []story {
	second := desired(1, withFolder, func(d *cluster.DesiredKernel) { d.Generation = 2 })
	stopSecond := stopped(1)
	stopSecond.Generation = 2
	return []story{
		{"interactive", []act{{desired(1), at(1, cluster.PhaseRunning)}, {stopped(1), at(1, cluster.PhaseEnded)}}, 1,
			func(t *testing.T, _ *rig, o cluster.KernelObservation) {
				require.Equal(t, cluster.ReasonUserRequested, o.Reason)
				require.False(t, o.Failed)
			}},
		{"batch", []act{{desired(1, batch("print(1);sleep 0.02;exit 3")), at(1, cluster.PhaseEnded)}}, 1,
			func(t *testing.T, _ *rig, o cluster.KernelObservation) {
				require.Equal(t, cluster.ReasonTaskFailed, o.Reason)
				require.Equal(t, 3, *o.ExitCode)
				require.True(t, o.Batch)
			}},
		{"folders", []act{{desired(1, withFolder), at(1, cluster.PhaseRunning)}, {stopped(1), at(1, cluster.PhaseEnded)}}, 1,
			func(t *testing.T, r *rig, o cluster.KernelObservation) {
				require.Equal(t, cluster.ReasonUserRequested, o.Reason)
			}},
		{"devices", []act{{desired(1, onPart), at(1, cluster.PhaseRunning)}, {stopped(1), at(1, cluster.PhaseEnded)}}, 1,
			func(t *testing.T, _ *rig, o cluster.KernelObservation) {
				require.Equal(t, cluster.ReasonUserRequested, o.Reason)
			}},
		{"restart", []act{{desired(1, withFolder), at(1, cluster.PhaseRunning)}, {second, at(2, cluster.PhaseRunning)},
			{stopSecond, at(2, cluster.PhaseEnded)}}, 2,
			func(t *testing.T, _ *rig, o cluster.KernelObservation) {
				require.Equal(t, cluster.ReasonUserRequested, o.Reason)
			}},
	}
}

// tell plays a story; the agent is killed at the given point and started again, with the
// manager away for a moment.
func tell(t *testing.T, s story, at int) []string {
	r := newRig(t)
	r.times.Sweep = time.Hour
	c := &crasher{at: at, hit: make(chan struct{})}
	r.before = c.before
	shared := newSharing()
	r.drivers = append(r.drivers, shared)
	r.start()
	c.mu.Lock()
	c.stop = r.stop
	c.mu.Unlock()
	crashed := false
	revive := func(want ...cluster.DesiredKernel) {
		crashed = true
		r.kill()
		r.before = nil
		r.start()
		r.want(true, want...)
	}
	r.want(true)
	note := filepath.Join(r.dir, "kernels", string(kernelID(1)), "work", "note")
	var last cluster.KernelObservation
	for i, a := range s.acts {
		r.want(false, a.want)
		limit := time.After(2 * time.Minute)
		for done := false; !done; {
			r.mu.Lock()
			o, news := r.seen[kernelID(1)], r.news
			r.mu.Unlock()
			if a.done(o) {
				last, done = o, true
				break
			}
			hit := c.hit
			if crashed {
				hit = nil
			}
			select {
			case <-hit:
				revive(a.want)
			case <-news:
			case <-limit:
				t.Fatalf("crash at %d (%v): act %d never ended; it went %s", at, c.points(), i, r.phases(kernelID(1)))
			}
		}
		if i == 0 && len(s.acts) == 3 {
			require.NoError(t, os.WriteFile(note, []byte("kept"), 0o644))
		}
		if i == 1 && len(s.acts) == 3 {
			require.FileExists(t, note, "the home of a restarted kernel")
		}
	}
	s.check(t, r, last)
	require.Equal(t, s.starts, r.engine.Starts(scope, agent, kernelID(1)), "nothing runs twice; crash at %d (%v)", at, c.points())
	ack := []cluster.Tombstone{{Kernel: kernelID(1), Generation: last.Generation}}
	r.keeper.Ack(ack)
	r.eventually(fmt.Sprintf("something is left after a crash at %d of %v", at, c.points()), func() bool {
		select {
		case <-c.hit:
			if !crashed {
				revive()
			}
		default:
		}
		r.keeper.Ack(ack)
		_, known := r.keeper.Find(kernelID(1))
		return !known && r.engine.Count() == 0 && len(r.ledger.Records()) == 0 && r.host.Attached() == 0
	})
	dirs, err := filepath.Glob(filepath.Join(r.dir, "kernels", "0*"))
	require.NoError(t, err)
	require.Empty(t, dirs)
	logs, err := filepath.Glob(filepath.Join(r.dir, "logs", "*"))
	require.NoError(t, err)
	require.Empty(t, logs)
	require.Empty(t, shared.Prepared())
	return c.points()
}

// TestRestartAtEveryStep kills the agent at every point of every story: nothing is lost,
// nothing runs twice, nothing is left.
func TestRestartAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, s := range stories() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			points := tell(t, s, 0)
			require.Greater(t, len(points), 10)
			for i := range points {
				t.Run(fmt.Sprintf("%02d-%s", i+1, points[i]), func(t *testing.T) {
					t.Parallel()
					tell(t, s, i+1)
				})
			}
		})
	}
}
