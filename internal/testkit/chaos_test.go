package testkit_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// TestChaos kills and starts roles, breaks connections, loses, doubles and reorders reports and
// makes engines fail, all at random, while sessions come and go. Afterwards everything must be as
// if nothing had happened: nothing ran twice, every batch job has its one right result, nothing is
// given away twice, nothing is left behind.
//
// A failure names its seed; BERTH_CHAOS_SEED runs it again, BERTH_CHAOS_STEPS sets how long.
func TestChaos(t *testing.T) {
	steps := number("BERTH_CHAOS_STEPS", 60)
	seeds := []uint64{1, 2, 3}
	if s := number("BERTH_CHAOS_SEED", 0); s != 0 {
		seeds = []uint64{uint64(s)}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			chaos(t, seed, steps, 1+int(seed%2))
		})
	}
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// storm is the state of one run of chaos.
type storm struct {
	*testkit.Cluster
	t       *testing.T
	rand    *rand.Rand
	faults  *testkit.Faults
	live    []cluster.SessionID
	jobs    map[cluster.SessionID]int // expected exit codes
	ended   map[cluster.SessionID]bool
	heal    []func()
	created int
}

func chaos(t *testing.T, seed uint64, steps, managers int) {
	faults := testkit.NewFaults(seed)
	s := &storm{
		Cluster: testkit.New(t, testkit.Options{Managers: managers, Agents: 2, Cores: 16, Faults: faults}), t: t, faults: faults,
		rand: rand.New(rand.NewPCG(seed, 2)), jobs: map[cluster.SessionID]int{}, ended: map[cluster.SessionID]bool{},
	}
	for range 20 {
		s.create()
	}
	faults.Messages(10, 20, 20)
	moves := []func(){
		s.create, s.create, s.create, s.destroy, s.destroy, s.killAgent, s.killManager, s.cut, s.engineFault, s.engineLost, s.mend, s.pause,
	}
	for range steps {
		moves[s.rand.IntN(len(moves))]()
		s.Allocations()
	}
	s.calm()
	s.verify()
}

func (s *storm) create() {
	if len(s.live)+len(s.jobs) > 100 {
		return
	}
	s.created++
	name := fmt.Sprintf("storm%d", s.created)
	if s.rand.IntN(2) == 0 {
		code := s.rand.IntN(4)
		s.jobs[s.Batch(name, fmt.Sprintf("print(\"x\"); sleep 0.%d; exit %d", s.rand.IntN(9), code))] = code
		return
	}
	s.live = append(s.live, s.Create(request.Session{Name: name}))
}

func (s *storm) destroy() {
	if len(s.live) == 0 {
		return
	}
	i := s.rand.IntN(len(s.live))
	id := s.live[i]
	s.live = append(s.live[:i], s.live[i+1:]...)
	s.end(id, s.rand.IntN(3) == 0)
	s.ended[id] = true
}

// end destroys a session, by force where it is between two states.
func (s *storm) end(id cluster.SessionID, forced bool) {
	if s.Session(id).Status.Final() || s.TryDestroy(id, forced) == nil || s.Session(id).Status.Final() {
		return
	}
	s.Destroy(id, true)
}

func (s *storm) killAgent() {
	a := s.Agents[s.rand.IntN(len(s.Agents))]
	if a.Running() {
		s.faults.Cut() // so that it cannot say farewell
		a.Stop()
		return
	}
	a.Start()
}

// killManager kills one; of several it may stay away until the next time.
func (s *storm) killManager() {
	s.faults.Cut()
	m := s.Managers[s.rand.IntN(len(s.Managers))]
	if !m.Running() {
		m.Start()
		return
	}
	m.Stop()
	if len(s.Managers) == 1 || s.running() == 0 {
		m.Start()
	}
}

func (s *storm) running() (n int) {
	for _, m := range s.Managers {
		if m.Running() {
			n++
		}
	}
	return n
}

func (s *storm) cut() { s.faults.Cut() }

func (s *storm) pause() {
	if s.rand.IntN(2) == 0 {
		s.faults.Delay(time.Duration(s.rand.IntN(20)) * time.Millisecond)
	}
	<-time.After(time.Duration(s.rand.IntN(200)) * time.Millisecond) // chaos needs some time to unfold
}

// engineFault makes one call of an engine fail, before or after its work is done.
func (s *storm) engineFault() {
	methods := []fake.Method{fake.Create, fake.Start, fake.Stop, fake.Remove, fake.Inspect, fake.List}
	a := s.Agents[s.rand.IntN(len(s.Agents))]
	s.heal = append(s.heal, a.Engine.Inject(fake.Fault{
		Method: methods[s.rand.IntN(len(methods))], Err: fault.Unavailablef("the engine stumbled"), After: s.rand.IntN(2) == 0, Times: 1,
	}))
}

func (s *storm) engineLost() {
	e := s.Agents[s.rand.IntN(len(s.Agents))].Engine
	e.Lose()
	s.heal = append(s.heal, e.Restore)
}

func (s *storm) mend() {
	for _, f := range s.heal {
		f()
	}
	s.heal = nil
}

// calm ends all faults.
func (s *storm) calm() {
	s.mend()
	s.faults.Heal()
	for _, m := range s.Managers {
		if !m.Running() {
			m.Start()
		}
	}
	for _, a := range s.Agents {
		if !a.Running() {
			a.Start()
		}
	}
}

func (s *storm) verify() {
	for id, code := range s.jobs {
		got := s.Ended(id)
		s.once(got)
		var results int
		require.NoError(s.t, s.Store.Pool().QueryRow(s.t.Context(),
			`SELECT count(*) FROM session_events WHERE session_id = $1 AND event IN ('session_success', 'session_failure')`, string(id)).
			Scan(&results))
		k := got.MainKernel()
		if got.Status == cluster.Error {
			require.Nil(s.t, k.StartedAt, "%s: a job that ran has its own result: %s", got.Name, got.StatusInfo)
			continue // it could not be created, with a name for that
		}
		require.Equal(s.t, 1, results, "%s has one result", got.Name)
		require.NotNil(s.t, k.ExitCode, "%s ended as %s", got.Name, got.StatusInfo)
		require.Equal(s.t, code, *k.ExitCode, got.Name)
		require.Equal(s.t, code == 0, got.Result == cluster.ResultSuccess, got.Name)
	}
	for id := range s.ended {
		s.once(s.Ended(id))
	}
	s.Until("the others run or have failed with a name", func() bool {
		for _, id := range s.live {
			if st := s.Session(id).Status; st != cluster.Running && !st.Final() {
				return false
			}
		}
		return true
	})
	s.Allocations()
	for _, id := range s.live {
		got := s.Session(id)
		s.once(got)
		if got.Status.Final() {
			require.NotEmpty(s.t, got.StatusInfo)
		}
		s.end(id, false)
	}
	for _, id := range s.live {
		s.Ended(id)
	}
	s.Clean()
}

// once: no generation of a kernel was started twice.
func (s *storm) once(got *session.Session) {
	for _, k := range got.Kernels {
		starts := 0
		for _, a := range s.Agents {
			starts += a.Starts(k.ID)
		}
		require.LessOrEqual(s.t, starts, int(k.Generation), "kernel %s of %s was started too often", k.ID, got.Name)
	}
}
