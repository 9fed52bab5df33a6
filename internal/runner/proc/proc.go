// Package proc starts, signals and reaps every process of a container.
//
// As PID 1 the runner inherits orphans whose exit nobody else collects, so one Table
// owns wait4 for the whole process: it hands the statuses of processes that it started to
// their Process and drops the others. Nothing else in a process that holds a Table may wait for
// children (os/exec included), or statuses would be stolen.
//
// It knows no sessions and no protocol; runner and its sub-packages call it.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Credential is who a process runs as; nil means as the runner itself.
type Credential struct {
	UID, GID int
	Groups   []int
}

// Spec is one process to start. It gets a session (and so a process group) of its own.
type Spec struct {
	Path string // file to execute; Argv[0] is what it sees as its name
	Argv []string
	Env  []string
	Dir  string
	// Files become descriptors 0, 1, 2, ...; nil ones stay closed.
	Files []*os.File
	User  *Credential
	// TTY makes descriptor 0 the controlling terminal.
	TTY bool
}

// Status is how a process ended.
type Status struct {
	Code   int // 128+Signal when a signal ended it
	Signal syscall.Signal
	User   time.Duration // CPU time, with waited-for children
	System time.Duration
	MaxRSS int64 // bytes
}

// Table holds the live processes. Close stops the reaping.
type Table struct {
	open   chan struct{} // closed when processes may start
	late   *time.Timer   // closes it, too
	groups groups

	mu    sync.Mutex // held while starting and while reaping, so that no status is lost and no pid is reused under a signal
	live  map[int]*Process
	sig   chan os.Signal
	drop  chan os.Signal // takes the signals that this process was started to ignore; nobody reads it
	stop  chan struct{}
	ended chan struct{}
}

// NewTable begins to reap. The processes it starts have default signal dispositions, whatever this process was started with.
func NewTable() *Table {
	t := &Table{live: map[int]*Process{}, sig: make(chan os.Signal, 1), drop: make(chan os.Signal, 1), stop: make(chan struct{}),
		ended: make(chan struct{}), open: make(chan struct{})}
	t.release()
	signal.Notify(t.sig, syscall.SIGCHLD)
	if ignored := inherited(); len(ignored) > 0 { // without names, Notify would take every signal
		signal.Notify(t.drop, ignored...)
	}
	go t.loop()
	return t
}

// Close stops reaping; processes go on.
func (t *Table) Close() {
	signal.Stop(t.sig)
	signal.Stop(t.drop)
	close(t.stop)
	<-t.ended
}

func (t *Table) loop() {
	defer close(t.ended)
	for {
		t.reap()
		select {
		case <-t.sig:
		case <-t.stop:
			return
		}
	}
}

func (t *Table) reap() {
	for {
		t.mu.Lock()
		var ws syscall.WaitStatus
		var ru syscall.Rusage
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, &ru)
		if err == syscall.EINTR {
			t.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			t.mu.Unlock()
			return
		}
		if p := t.live[pid]; p != nil {
			delete(t.live, pid)
			p.end(ws, ru)
		}
		t.mu.Unlock()
	}
}

// Process is one started process.
type Process struct {
	PID    int
	table  *Table
	done   chan struct{}
	status Status
}

// end records how the process ended.
func (p *Process) end(ws syscall.WaitStatus, ru syscall.Rusage) {
	p.status = Status{Code: ws.ExitStatus(), User: time.Duration(ru.Utime.Nano()), System: time.Duration(ru.Stime.Nano()),
		MaxRSS: ru.Maxrss << 10}
	if ws.Signaled() {
		p.status.Signal = ws.Signal()
		p.status.Code = 128 + int(ws.Signal())
	}
	close(p.done)
}

// Start runs a process. The error tells why the file could not be executed.
func (t *Table) Start(s Spec) (*Process, error) {
	attr := &syscall.ProcAttr{Dir: s.Dir, Env: s.Env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: s.TTY}}
	if s.User != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(s.User.UID), Gid: uint32(s.User.GID)}
		for _, g := range s.User.Groups {
			attr.Sys.Credential.Groups = append(attr.Sys.Credential.Groups, uint32(g))
		}
	}
	for _, f := range s.Files {
		fd := ^uintptr(0)
		if f != nil {
			fd = f.Fd()
		}
		attr.Files = append(attr.Files, fd)
	}
	select {
	case <-t.open:
	case <-t.stop:
		return nil, fmt.Errorf("start %s: %w", s.Path, os.ErrClosed)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.spawn(s, attr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	return p, nil
}

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status tells how it ended; call it only after Done.
func (p *Process) Status() Status {
	<-p.done
	return p.status
}

// Signal sends a signal to the process and everything else in its group. After the
// process was reaped nothing is sent: its number may belong to another by then.
func (p *Process) Signal(sig syscall.Signal) {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.table.live[p.PID] == p {
		_ = syscall.Kill(-p.PID, sig) // fails only when everything there has ended
	}
}

// SignalOnly sends a signal to the process alone.
func (p *Process) SignalOnly(sig syscall.Signal) {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.table.live[p.PID] == p {
		_ = syscall.Kill(p.PID, sig) // fails only when it has ended
	}
}

// restEnds bounds how long KillRest waits. A process in uninterruptible sleep is left to the container's end.
const restEnds = 5 * time.Second

// KillRest ends what an ended process left behind in its group, and returns when it is gone: until then it may hold a port or a file that
// the next start wants. Call it right after Done: numbers are given out in turn, so this one is not another's so soon.
func (p *Process) KillRest() {
	p.table.mu.Lock()
	left := p.table.live[p.PID] == nil && syscall.Kill(-p.PID, syscall.SIGKILL) == nil
	p.table.mu.Unlock()
	pause, until := time.Millisecond, time.Now().Add(restEnds)
	for left && runs(p.PID) && time.Now().Before(until) {
		time.Sleep(pause)
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// End sends SIGTERM, then SIGKILL after grace, and returns when the process has ended.
func (p *Process) End(grace time.Duration) Status {
	p.Signal(syscall.SIGTERM)
	p.Signal(syscall.SIGCONT)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Signal(syscall.SIGKILL)
	}
	return p.Status()
}

// EndAll sends the signals to every process (to all of the container when this is PID
// 1), SIGKILL after grace, and returns when all that were started by this table have ended.
func (t *Table) EndAll(grace time.Duration, first ...syscall.Signal) {
	for _, sig := range first {
		t.broadcast(sig)
	}
	if t.waitEmpty(grace) {
		return
	}
	t.broadcast(syscall.SIGKILL)
	t.waitEmpty(2 * time.Second) // a process in uninterruptible sleep is left to the container's end
}

func (t *Table) broadcast(sig syscall.Signal) {
	t.mu.Lock() // no process is on its way into its group meanwhile
	defer t.mu.Unlock()
	if os.Getpid() == 1 {
		_ = syscall.Kill(-1, sig) // ESRCH: nobody else is there
		return
	}
	for pid := range t.live {
		_ = syscall.Kill(-pid, sig) // it may have ended just now
	}
}

func (t *Table) waitEmpty(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		t.mu.Lock()
		var one *Process
		for _, p := range t.live {
			one = p
			break
		}
		t.mu.Unlock()
		if one == nil {
			return true
		}
		select {
		case <-one.done:
		case <-timer.C:
			return false
		}
	}
}

// Len counts the live processes started by this table.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.live)
}

// ExitCodeOf maps a failed start to the shell's codes: 127 not found, 126 otherwise.
func ExitCodeOf(err error) int {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return 127
	}
	return 126
}
