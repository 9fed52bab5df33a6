package embedded

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/chassis"
)

const (
	// maxRestarts is how often in a row a child may fail to come back before its service fails.
	maxRestarts = 8
	// steadyAfter is how long a child must live for its past failures to be forgotten.
	steadyAfter = time.Minute
	// tailLines is how many of a child's last lines an error quotes.
	tailLines = 12
)

// child describes a supervised process. It is the only place that starts long-lived children.
type child struct {
	name string
	path string
	args []string
	dir  string
	cred *syscall.Credential // nil keeps our own user
	// deathSignal is what the kernel sends the child when this process dies, however it dies.
	deathSignal syscall.Signal
	stopSignal  syscall.Signal
	stopGrace   time.Duration
	// before clears what an earlier life left behind; called before every start.
	before func(ctx context.Context) error
	// probe returns nil once the child serves.
	probe func(ctx context.Context) error
	// level classifies a line of output.
	level func(line string) slog.Level
	log   *slog.Logger
}

// process is one life of a child.
type process struct {
	cmd    *exec.Cmd
	tail   *lineLogger
	exited chan struct{}
	err    error // valid once exited is closed
}

// supervisor keeps one child alive: launch starts it, supervise restarts it with growing pauses
// when it dies, stop ends it. They are the hooks of the service that owns the child.
type supervisor struct {
	spec child

	mu      sync.Mutex
	current *process
}

func (s *supervisor) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// pid returns the child's process id, 0 when it does not run.
func (s *supervisor) pid() int {
	p := s.process()
	if p == nil {
		return 0
	}
	select {
	case <-p.exited:
		return 0
	default:
		return p.cmd.Process.Pid
	}
}

// launch starts the child and waits until its probe passes.
func (s *supervisor) launch(ctx context.Context) error {
	if s.spec.before != nil {
		if err := s.spec.before(ctx); err != nil {
			return err
		}
	}
	p, err := s.spec.spawn()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.current = p
	s.mu.Unlock()
	pause := 2 * time.Millisecond
	for {
		probeCtx, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.spec.probe(probeCtx)
		cancel()
		if err == nil {
			return nil
		}
		timer := time.NewTimer(pause)
		pause = min(pause*2, 50*time.Millisecond)
		select {
		case <-timer.C:
		case <-p.exited:
			timer.Stop()
			return fmt.Errorf("%s ended before it served: %w%s", s.spec.path, p.err, p.tail.quote())
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(fmt.Errorf("%s does not answer: %w (last: %w)%s", s.spec.path, context.Cause(ctx), err, p.tail.quote()), s.stop())
		}
	}
}

// supervise restarts the child whenever it dies, until ctx ends or it will not come back.
func (s *supervisor) supervise(ctx context.Context) error {
	backoff := chassis.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second}
	failures, since := 0, time.Now()
	for {
		p := s.process()
		select {
		case <-ctx.Done():
			return nil
		case <-p.exited:
		}
		if time.Since(since) > steadyAfter {
			failures = 0
			backoff.Reset()
		}
		failures++
		if failures > maxRestarts {
			return fmt.Errorf("%s died %d times in a row: %w%s", s.spec.path, failures, p.err, p.tail.quote())
		}
		s.spec.log.Error("child died, restarting it", "child", s.spec.name, "error", p.err, "attempt", failures)
		if err := chassis.Wait(ctx, chassis.RealClock(), backoff.Next()); err != nil {
			return nil
		}
		since = time.Now()
		startCtx, cancel := context.WithTimeout(ctx, chassis.DefaultStartTimeout)
		if err := s.launch(startCtx); err != nil && ctx.Err() == nil {
			s.spec.log.Error("restart child", "child", s.spec.name, "error", err)
		}
		cancel()
	}
}

// stop ends the child: the stop signal, the grace, then SIGKILL to its whole process group.
func (s *supervisor) stop() error {
	p := s.process()
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(s.spec.stopSignal); err == nil {
		grace := time.NewTimer(s.spec.stopGrace)
		defer grace.Stop()
		select {
		case <-p.exited:
			return nil
		case <-grace.C:
		}
		s.spec.log.Warn("child did not stop in time, killing it", "child", s.spec.name, "grace", s.spec.stopGrace)
	}
	select {
	case <-p.exited:
		return nil
	default:
	}
	// The group id is the child's own pid, which cannot be reused before Wait has returned.
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", s.spec.name, err)
	}
	<-p.exited
	return nil
}

// spawn starts one life. The kernel sends the death signal when the *thread* that started the
// child ends, so one goroutine starts it, waits for it and keeps its thread all that time.
func (c *child) spawn() (*process, error) {
	cmd := exec.Command(c.path, c.args...)
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.WaitDelay = 5 * time.Second // grandchildren may hold the pipe a little longer; what was written is read within that
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // a Ctrl-C in the terminal reaches us alone; we stop children in order
		Pdeathsig:  c.deathSignal,
		Credential: c.cred,
	}
	p := &process{cmd: cmd, exited: make(chan struct{}), tail: &lineLogger{log: c.log.With("child", c.name), level: c.level}}
	cmd.Stdout, cmd.Stderr = p.tail, p.tail
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("start %s: %w", c.path, err)
			return
		}
		started <- nil
		err := cmd.Wait()
		p.tail.flush()
		if err == nil {
			err = errors.New("it exited with status 0")
		}
		p.err = err
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// lineLogger turns a child's output into log records and remembers its last lines.
type lineLogger struct {
	log   *slog.Logger
	level func(string) slog.Level

	mu      sync.Mutex
	partial []byte
	last    []string
}

const maxLine = 8 << 10

// Write never fails: a child must not block or die because its log is odd.
func (l *lineLogger) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, b...)
	for {
		i := strings.IndexByte(string(l.partial), '\n')
		if i < 0 && len(l.partial) < maxLine {
			return len(b), nil
		}
		if i < 0 {
			i = maxLine - 1
		}
		line := string(l.partial[:i])
		l.partial = l.partial[i+1:]
		l.take(line)
	}
}

// flush takes what came last without the end of a line.
func (l *lineLogger) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.take(string(l.partial))
	l.partial = nil
}

// take logs a line; mu is held.
func (l *lineLogger) take(line string) {
	line = strings.TrimSpace(line)
	if line == "" {
		return
	}
	if len(l.last) == tailLines {
		l.last = l.last[1:]
	}
	l.last = append(l.last, line)
	l.log.Log(context.Background(), l.level(line), line)
}

// quote returns the last lines for an error text, "" when there are none.
func (l *lineLogger) quote() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == 0 {
		return ""
	}
	return "; it said: " + strings.Join(l.last, " | ")
}

// runOnce runs a short command to its end, for example initdb, as the given user.
func runOnce(ctx context.Context, cred *syscall.Credential, dir, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: cred}
	cmd.WaitDelay = 10 * time.Second // a command whose output is read later than that is taken for failed
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	var last string
	for sc := bufio.NewScanner(io.LimitReader(strings.NewReader(string(out)), 64<<10)); sc.Scan(); {
		if t := strings.TrimSpace(sc.Text()); t != "" {
			last += " | " + t
		}
	}
	return fmt.Errorf("%s: %w%s", path, err, last)
}
