package nvmlclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
)

// handClock stands still. A test fires its timers by their durations, which tell what they are for.
type handClock struct {
	chassis.Clock
	mu     sync.Mutex
	now    time.Time
	timers []*handTimer
	made   chan struct{} // closed and replaced when there is one more
}

type handTimer struct {
	clock *handClock
	d     time.Duration
	c     chan time.Time
	f     func()
}

func newHandClock() *handClock { return &handClock{now: time.Unix(1e9, 0), made: make(chan struct{})} }

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) NewTimer(d time.Duration) chassis.Timer { return c.add(d, nil) }

func (c *handClock) AfterFunc(d time.Duration, f func()) chassis.Timer { return c.add(d, f) }

func (c *handClock) add(d time.Duration, f func()) *handTimer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &handTimer{clock: c, d: d, c: make(chan time.Time, 1), f: f}
	c.timers = append(c.timers, t)
	close(c.made)
	c.made = make(chan struct{})
	return t
}

func (t *handTimer) C() <-chan time.Time { return t.c }

func (t *handTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.clock.drop(t)
}

func (t *handTimer) Reset(time.Duration) bool { panic("nobody resets timers here") }

func (c *handClock) drop(t *handTimer) bool {
	for i, other := range c.timers {
		if other == t {
			c.timers = append(c.timers[:i:i], c.timers[i+1:]...)
			return true
		}
	}
	return false
}

// fire waits for timers of that duration and lets them end, as if the time had passed.
func (c *handClock) fire(t *testing.T, d time.Duration) {
	t.Helper()
	for {
		c.mu.Lock()
		var due []*handTimer
		for _, x := range c.timers {
			if x.d == d {
				due = append(due, x)
			}
		}
		for _, x := range due {
			c.drop(x)
		}
		made := c.made
		if len(due) > 0 {
			c.now = c.now.Add(d)
		}
		now := c.now
		c.mu.Unlock()
		if len(due) == 0 {
			await.Value(t, made)
			continue
		}
		for _, x := range due {
			if x.f != nil {
				x.f()
				continue
			}
			x.c <- now
		}
		return
	}
}

// pass lets time pass in which no timer ends.
func (c *handClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// record is a log that tests read.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// rig is a client whose helper plays parts.
type rig struct {
	*Client
	clock *handClock
	log   *record
	lives string
	kills atomic.Int32
	stop  func() error // ends Run
}

// start runs a client. kill stands for SIGKILL; nil: the real one.
func start(t *testing.T, kill func(*os.Process) error, parts ...string) *rig {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return startProgram(t, self, kill, parts...)
}

func startProgram(t *testing.T, path string, kill func(*os.Process) error, parts ...string) *rig {
	t.Helper()
	r := made(t, path, kill, parts...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	r.runs.Store(true) // so that no look comes before
	go func() { ended <- r.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return await.Value(t, ended)
	})
	t.Cleanup(func() {
		if err := r.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	return r
}

// made is a client that does not run.
func made(t *testing.T, path string, kill func(*os.Process) error, parts ...string) *rig {
	t.Helper()
	r := &rig{clock: newHandClock(), log: &record{}, lives: filepath.Join(t.TempDir(), "lives")}
	r.Client = New(Options{Path: path, Clock: r.clock, Log: slog.New(slog.NewTextHandler(r.log, nil)),
		env: []string{partsVar + "=" + strings.Join(parts, ","), livesVar + "=" + r.lives},
		kill: func(p *os.Process) error {
			r.kills.Add(1)
			if kill != nil {
				return kill(p)
			}
			return p.Kill()
		}})
	return r
}

func (r *rig) livesSoFar(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(r.lives)
	require.NoError(t, err)
	return len(b)
}

// works waits until a life answers.
func (r *rig) works(t *testing.T, life int) {
	t.Helper()
	require.Eventually(t, func() bool {
		f, err := r.Look(t.Context())
		return err == nil && f.Driver == fmt.Sprintf("life %d", life)
	}, time.Minute, time.Millisecond)
}

func TestLookAndSample(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "well")
	facts, err := r.Look(t.Context())
	require.NoError(t, err)
	require.Equal(t, nvmlwire.Facts{Driver: "life 1", GPUs: []nvmlwire.GPU{{UUID: "GPU-a"}}}, facts)
	sample, err := r.Sample(t.Context())
	require.NoError(t, err)
	require.Equal(t, nvmlwire.Sample{Uses: []nvmlwire.Use{{UUID: "GPU-a"}}}, sample)
	require.ErrorIs(t, r.stop(), context.Canceled)
	require.Zero(t, r.kills.Load(), "a helper that is well ends when its input ends")
	_, err = r.Look(t.Context())
	require.ErrorContains(t, err, "the agent is ending")
}

func TestALookBeforeRunHasAHelperOfItsOwn(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	r := made(t, self, nil, "well", "crash", "hang", "well")
	facts, err := r.Look(t.Context())
	require.NoError(t, err)
	require.Equal(t, "life 1", facts.Driver)
	_, err = r.Look(t.Context())
	require.ErrorContains(t, err, "the sky has fallen")
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { _, err := r.Look(ctx); failed <- err }()
	require.Eventually(t, func() bool { // until it was asked
		r.clock.mu.Lock()
		defer r.clock.mu.Unlock()
		return slices.ContainsFunc(r.clock.timers, func(x *handTimer) bool { return x.d == answerLimit })
	}, time.Minute, time.Millisecond)
	require.Zero(t, r.kills.Load())
	cancel()
	r.clock.fire(t, endLimit)
	require.Equal(t, fault.Timeout, fault.KindOf(await.Value(t, failed)))
	require.EqualValues(t, 1, r.kills.Load(), "nothing is left behind")
}

func TestAHelperThatHangsIsKilledAndReplaced(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "hang", "well")
	failed := make(chan error, 1)
	go func() { _, err := r.Look(context.Background()); failed <- err }()
	r.clock.fire(t, answerLimit)
	err := await.Value(t, failed)
	require.ErrorContains(t, err, "it did not answer look within 1m0s and is killed; the NVIDIA driver seems to hang")
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.EqualValues(t, 1, r.kills.Load())
	r.clock.fire(t, time.Second)
	r.works(t, 2)
}

func TestCallersDoNotWaitLongerThanTheyWant(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "hang", "well")
	for range 3 { // all of them share one request
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := r.Look(ctx)
		cancel()
		require.Equal(t, fault.Timeout, fault.KindOf(err))
	}
	r.isAsked(t)
	r.clock.fire(t, answerLimit) // it is killed though nobody waits any more
	r.clock.fire(t, time.Second)
	r.works(t, 2)
}

// isAsked makes sure that the helper has a request. On a slow machine callers gave up before it said hello.
func (r *rig) isAsked(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.life != nil
	}, time.Minute, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.Look(ctx)
	require.Error(t, err)
}

func TestACrashLoopIsReportedOnce(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "crash", "crash", "crash", "crash", "crash", "crash", "crash", "crash", "well")
	_, err := r.Look(t.Context())
	require.ErrorContains(t, err, "it ended by itself: exit status 3; it said: the sky has fallen")
	for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		r.clock.fire(t, pause*time.Second)
	}
	r.works(t, 9)
	require.Equal(t, 1, strings.Count(r.log.String(), "ends again and again"))
	require.Equal(t, 3, strings.Count(r.log.String(), `msg="the helper for NVIDIA GPUs ended"`))
	require.NotContains(t, r.log.String(), "works again", "it may still be the loop")
	r.clock.pass(steady)
	for range 2 {
		_, err = r.Look(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(r.log.String(), "works again"))
}

// The words are in the pipe, unread, when the helper has ended already.
func TestTheLastWordsAreRead(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	r := made(t, self, nil, "crash")
	for range 30 {
		l, err := r.spawn()
		require.NoError(t, err)
		await.Value(t, l.exited)
		await.Return(t, func() { err = l.run(t.Context()) })
		require.ErrorContains(t, err, "exit status 3; it said: the sky has fallen")
	}
}

func TestWordsAreNotAwaitedForEver(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "heir", "well")
	r.clock.fire(t, wordsLimit)
	_, err := r.Look(t.Context())
	require.ErrorContains(t, err, "it ended by itself: exit status 3; it said: mine is yours")
	r.clock.fire(t, time.Second)
	r.works(t, 2)
}

func TestWhatAHelperMustNotDo(t *testing.T) {
	t.Parallel()
	for part, words := range map[string]string{
		"other":    "it speaks version 2 of the messages and this agent version 1; next: install",
		"rude":     "its first message does not say a version",
		"garbage":  `it wrote a line that is no message: "segmentation fault"`,
		"long":     "it wrote a line of more than 4194304 bytes",
		"stranger": "it answered request 101, which does not wait for an answer",
		"empty":    "it wrote a message that says nothing",
		"again":    "it wrote a message that says nothing",
		"nameless": "it wrote a message that says nothing",
		"exit":     "it ended by itself: exit status 4; it said: no more of this",
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			r := start(t, nil, part, "well")
			_, err := r.Look(t.Context())
			require.ErrorContains(t, err, words)
			require.Equal(t, fault.Unavailable, fault.KindOf(err))
			r.clock.fire(t, time.Second)
			r.works(t, 2)
		})
	}
}

func TestAHelperThatSaysNothingAtAllIsKilled(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "mute", "well")
	require.Eventually(t, func() bool { b, err := os.ReadFile(r.lives); return err == nil && len(b) == 1 }, time.Minute, time.Millisecond)
	r.clock.fire(t, helloLimit)
	_, err := r.Look(t.Context())
	require.ErrorContains(t, err, "it said nothing within 10s and is killed")
	r.clock.fire(t, time.Second)
	r.works(t, 2)
}

func TestAHelperThatClosesItsOutputIsEnded(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "closed", "well")
	failed := make(chan error, 1)
	go func() { _, err := r.Look(context.Background()); failed <- err }()
	r.clock.fire(t, endLimit)
	require.ErrorContains(t, await.Value(t, failed), "it ended by itself: signal: killed")
	require.EqualValues(t, 1, r.kills.Load())
	r.clock.fire(t, time.Second)
	r.works(t, 2)
}

func TestAnswersMayComeInAnyOrder(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "unordered")
	looked := make(chan error, 1)
	go func() { _, err := r.Look(context.Background()); looked <- err }()
	sample, err := r.Sample(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, sample.Uses)
	require.NoError(t, await.Value(t, looked))
}

func TestAFailureThatTheHelperTellsIsNotItsEnd(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "failing")
	for range 2 {
		_, err := r.Look(t.Context())
		require.ErrorContains(t, err, "the helper for NVIDIA GPUs: the NVIDIA driver is not loaded")
	}
	require.Equal(t, 1, r.livesSoFar(t))
}

func TestAnswersThatCannotBeTrueAreRefused(t *testing.T) {
	t.Parallel()
	for part, words := range map[string]string{"nothing": "answered look with nothing", "doubled": `not its own: "GPU-a"`} {
		r := start(t, nil, part)
		_, err := r.Look(t.Context())
		require.ErrorContains(t, err, words)
	}
	require.Error(t, check(nvmlwire.Facts{GPUs: make([]nvmlwire.GPU, nvmlwire.MaxGPUs+1)}))
	require.Error(t, check(nvmlwire.Facts{GPUs: []nvmlwire.GPU{{UUID: "a", Instances: []nvmlwire.Instance{{UUID: ""}}}}}))
	require.Error(t, check(nvmlwire.Facts{GPUs: []nvmlwire.GPU{{UUID: "a", Instances: []nvmlwire.Instance{{UUID: "a"}}}}}))
	require.NoError(t, check(nvmlwire.Facts{GPUs: []nvmlwire.GPU{{UUID: "a", Instances: []nvmlwire.Instance{{UUID: "b"}}}}}))
}

// A process in an uninterruptible wait outlives SIGKILL. A test cannot make one; here SIGKILL is lost instead.
func TestAHelperThatCannotBeKilledIsLeftBehindAndTheOnlyOne(t *testing.T) {
	t.Parallel()
	stuck := make(chan *os.Process, 1)
	r := start(t, func(p *os.Process) error { stuck <- p; return nil }, "hang", "well")
	failed := make(chan error, 1)
	go func() { _, err := r.Look(context.Background()); failed <- err }()
	r.clock.fire(t, answerLimit)
	p := await.Value(t, stuck)
	r.clock.fire(t, endLimit)
	const words = "hangs in the kernel and cannot be killed, and no other one is started before it ends"
	require.ErrorContains(t, await.Value(t, failed), "did not answer look")
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "cannot be killed") }, time.Minute, time.Millisecond)
	_, err := r.Look(t.Context())
	require.ErrorContains(t, err, words)
	require.Equal(t, 1, r.livesSoFar(t))
	require.NoError(t, p.Kill()) // the driver recovers
	r.clock.fire(t, time.Second)
	r.works(t, 2)
	require.Contains(t, r.log.String(), "that could not be killed has ended")
}

func TestTheEndDoesNotWaitForAHelperThatCannotBeKilled(t *testing.T) {
	t.Parallel()
	stuck := make(chan *os.Process, 1)
	r := start(t, func(p *os.Process) error { stuck <- p; return nil }, "hang")
	r.isAsked(t) // so that it does not see the end of its input
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	r.clock.fire(t, endLimit)
	p := await.Value(t, stuck)
	r.clock.fire(t, endLimit)
	require.ErrorIs(t, await.Value(t, ended), context.Canceled)
	require.NoError(t, p.Kill())
}

func TestWhatAHelperSaysIsLoggedWithinBounds(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "loud")
	r.works(t, 1)
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "says more than is logged") }, time.Minute, time.Millisecond)
	require.ErrorIs(t, r.stop(), context.Canceled)
	require.Equal(t, maxLines, strings.Count(r.log.String(), `msg="the helper for NVIDIA GPUs said"`))
	require.Less(t, len(r.log.String()), 10<<10)
	require.Contains(t, r.log.String(), "yyy…")
	require.Contains(t, r.log.String(), `line="line 0"`)
}

func TestEventsKeepTheOldestOfEachCard(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "storm")
	r.works(t, 1) // the events came before the answer
	var got []nvmlwire.Event
	for len(got) == 0 || got[len(got)-1].UUID == "GPU-a" {
		got = append(got, await.Value(t, r.Events()))
	}
	require.Equal(t, nvmlwire.Event{UUID: "GPU-b", XID: 79}, got[len(got)-1])
	a := got[:len(got)-1]
	// One may be on its way to whoever takes it, which makes room for one more.
	require.Contains(t, []int{maxOfCard, maxOfCard + 1}, len(a))
	for i, e := range a[:maxOfCard] {
		require.EqualValues(t, i, e.XID)
	}
	require.Equal(t, 1, strings.Count(r.log.String(), "errors of an NVIDIA GPU are left out"))
}

func TestBacklog(t *testing.T) {
	t.Parallel()
	b := newBacklog()
	for card := range nvmlwire.MaxGPUs {
		for xid := range maxOfCard {
			require.False(t, b.add(nvmlwire.Event{UUID: fmt.Sprint(card), XID: uint64(xid)}))
		}
	}
	require.True(t, b.add(nvmlwire.Event{UUID: "0", XID: 99}), "the first that is left out is told")
	require.False(t, b.add(nvmlwire.Event{UUID: "0", XID: 99}))
	require.True(t, b.add(nvmlwire.Event{UUID: "one too many", XID: 99}))
	require.Len(t, b.list, maxEvents)
}

func TestAProgramThatIsNotThere(t *testing.T) {
	t.Parallel()
	r := startProgram(t, "/nowhere/berth-nvml", nil)
	_, err := r.Look(t.Context())
	require.ErrorContains(t, err, "start the program")
	require.ErrorIs(t, r.stop(), context.Canceled)
}

func TestNobodyWaitsForAClientThatDoesNotRun(t *testing.T) {
	t.Parallel()
	clock := newHandClock()
	c := New(Options{Path: "/nowhere", Clock: clock, Log: slog.New(slog.DiscardHandler)})
	failed := make(chan error, 1)
	go func() { _, err := c.Sample(context.Background()); failed <- err }()
	clock.fire(t, startLimit)
	require.ErrorContains(t, await.Value(t, failed), "it was not started")
}

func TestFindLooksInPATH(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	_, err := Find()
	require.ErrorContains(t, err, "the program berth-nvml is neither beside this one nor in PATH")
	program := filepath.Join(dir, "berth-nvml")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700))
	got, err := Find()
	require.NoError(t, err)
	require.Equal(t, program, got)
}

func TestStreak(t *testing.T) {
	t.Parallel()
	var s streak
	var alarms []int
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		wait, alarm := s.ended(steady - 1)
		require.Equal(t, want*time.Second, wait)
		if alarm {
			alarms = append(alarms, i+1)
		}
	}
	require.Equal(t, []int{alarmAfter}, alarms)
	wait, alarm := s.ended(steady)
	require.Equal(t, time.Second, wait, "one that lived is forgiven")
	require.False(t, alarm)
	s.n = 1 << 40
	wait, _ = s.ended(0)
	require.Equal(t, maxWait, wait)
}
