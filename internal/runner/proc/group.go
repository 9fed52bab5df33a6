package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// groups are the control groups of the processes that a table starts.
type groups struct {
	confined bool
	procs    []*os.File
	oom      *os.File
}

// oomScore is added to the score of the processes of a confined table: when memory is short, they are killed before this process.
const oomScore = 300

// How long a new process may take to execute its file: from one look that finds it stopped by a signal to the next, and in all. On a host
// that has far more to do than it can, seconds are nothing.
const (
	stoppedStart = 5 * time.Second
	slowestStart = time.Minute
)

// Hold makes Start wait until Confine was called, or for the given time: from then on processes start in this process's own groups.
// Call it before anything is started.
func (t *Table) Hold(limit time.Duration, late func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = make(chan struct{})
	t.late = time.AfterFunc(limit, func() {
		if t.release() {
			late()
		}
	})
}

// Ready waits until processes may start; false when they never will, or ctx ended before.
func (t *Table) Ready(ctx context.Context) bool {
	select {
	case <-t.open:
		return ctx.Err() == nil
	case <-t.stop:
	case <-ctx.Done():
	}
	return false
}

// release lets processes start; it reports whether they had to wait until now.
func (t *Table) release() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.open:
		return false
	default:
		if t.late != nil {
			t.late.Stop()
		}
		close(t.open)
		return true
	}
}

// Confine makes all processes that are started from now on members of control groups: their numbers are written to procs before they
// execute their files. In oom the kernel counts the members that were killed for want of memory. The table closes the files when
// others take their place.
func (t *Table) Confine(procs []*os.File, oom *os.File) {
	t.mu.Lock()
	old := t.groups
	t.groups = groups{confined: true, procs: procs, oom: oom}
	t.mu.Unlock()
	t.release()
	for _, f := range append(old.procs, old.oom) {
		if f != nil {
			_ = f.Close()
		}
	}
}

// OOMKills counts the members of the groups that were killed for want of memory; 0 where nobody counts.
func (t *Table) OOMKills() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups.oom == nil {
		return 0
	}
	b := make([]byte, 4096)
	n, _ := t.groups.oom.ReadAt(b, 0) // what cannot be read has no such line
	for line := range strings.Lines(string(b[:n])) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.Atoi(strings.TrimSpace(count))
			return kills
		}
	}
	return 0
}

// spawn starts a process in the table's groups. The caller holds mu.
//
// The new process stops when it has loaded its program and has executed nothing of it: that is when a traced process stops, whatever
// the program does. Only then is it moved, so it never has a child outside of the groups, and it costs no other program in between.
// A process is traced by a thread, which must stay the same.
func (t *Table) spawn(s Spec, attr *syscall.ProcAttr) (*Process, error) {
	if !t.groups.confined {
		pid, _, err := syscall.StartProcess(s.Path, s.Argv, attr)
		if err != nil {
			return nil, err
		}
		return t.add(pid), nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer watchStart(maps.Clone(t.live), stoppedStart, slowestStart)()
	attr.Sys.Ptrace = true
	pid, _, err := syscall.StartProcess(s.Path, s.Argv, attr)
	if err == nil {
		return t.admit(pid)
	}
	if !errors.Is(err, syscall.EPERM) {
		return nil, err
	}
	// This host lets nobody trace. The process is moved while it already runs.
	attr.Sys.Ptrace = false
	if pid, _, err = syscall.StartProcess(s.Path, s.Argv, attr); err != nil {
		return nil, err
	}
	p := t.add(pid)
	if err := t.groups.move(pid); err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return nil, err
	}
	return p, nil
}

func (t *Table) add(pid int) *Process {
	p := &Process{PID: pid, table: t, done: make(chan struct{})}
	t.live[pid] = p
	return p
}

// admit moves a process that stops before its first instruction into the groups and lets it go.
func (t *Table) admit(pid int) (*Process, error) {
	p := &Process{PID: pid, table: t, done: make(chan struct{})}
	var early []syscall.Signal // reached it before that
	for {
		var ws syscall.WaitStatus
		var ru syscall.Rusage
		_, err := syscall.Wait4(pid, &ws, 0, &ru)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return nil, os.NewSyscallError("wait4", err)
		case !ws.Stopped(): // killed on the way
			p.end(ws, ru)
			return p, nil
		case ws.StopSignal() != syscall.SIGTRAP:
			early = append(early, ws.StopSignal())
			if err := syscall.PtraceCont(pid, 0); err != nil && !errors.Is(err, syscall.ESRCH) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			continue
		}
		break
	}
	t.live[pid] = p
	err := t.groups.move(pid)
	if err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it is reaped like any other
	}
	if derr := syscall.PtraceDetach(pid); derr != nil && !errors.Is(derr, syscall.ESRCH) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, sig := range early {
		_ = syscall.Kill(pid, sig) // ESRCH: it has ended
	}
	return p, err
}

// move makes a process a member of the groups.
func (g groups) move(pid int) error {
	for _, f := range g.procs {
		if _, err := f.WriteAt(strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
			return fmt.Errorf("confine process %d: %w", pid, err)
		}
	}
	raiseScore(pid) // without it the groups still hold
	return nil
}

// raiseScore makes the kernel choose a process before this one when memory is short.
func raiseScore(pid int) {
	own := 0
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		own, _ = strconv.Atoi(string(bytes.TrimSpace(b)))
	}
	score := strconv.Itoa(min(1000, own+oomScore))
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(score), 0)
}

// watchStart kills a new child of the calling thread that does not execute its file. Another process of its user may have stopped it by a
// signal, or its file is on a file system that does not answer; this process, which waits for it, would wait forever.
func watchStart(known map[int]*Process, stopped, slowest time.Duration) (done func()) {
	children := "/proc/self/task/" + strconv.Itoa(syscall.Gettid()) + "/children"
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		look := time.NewTicker(stopped)
		defer look.Stop()
		var before []int // stopped at the last look. Once may be the stop after the file was executed, see admit.
		for waited := stopped; ; waited += stopped {
			select {
			case <-ended:
				return
			case <-look.C:
			}
			var now []int
			for _, pid := range newChildren(children, known) {
				if isStopped(pid) {
					now = append(now, pid)
				}
				if waited >= slowest || slices.Contains(before, pid) && slices.Contains(now, pid) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			before = now
		}
	}()
	return func() {
		close(ended)
		<-gone
	}
}

// newChildren are the processes of a list of children that are not known and still have the program of this one. Others are orphans of
// processes that ended: this process takes them over.
func newChildren(list string, known map[int]*Process) (pids []int) {
	b, _ := os.ReadFile(list) // none when it cannot be read
	own, err := os.Readlink("/proc/self/exe")
	for _, text := range strings.Fields(string(b)) {
		pid, perr := strconv.Atoi(text)
		if perr != nil || known[pid] != nil {
			continue
		}
		// That of a process that has changed its user already may not be readable.
		if exe, rerr := os.Readlink("/proc/" + text + "/exe"); err != nil || rerr != nil || exe == own {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isStopped says whether a signal stopped a process, traced or not.
func isStopped(pid int) bool {
	st := stat(strconv.Itoa(pid))
	return len(st) > statState && (st[statState] == "T" || st[statState] == "t")
}

// runs says whether a process of a group has not ended with all its threads. One that has, and that nobody has waited for, holds nothing
// any more.
func runs(group int) bool {
	all, _ := os.ReadDir("/proc") // without it nobody is known to run
	for _, entry := range all {
		st := stat(entry.Name())
		if len(st) <= statThreads || st[statGroup] != strconv.Itoa(group) {
			continue
		}
		// A first thread that has ended is a zombie also while others go on.
		if threads, _ := strconv.Atoi(st[statThreads]); st[statState] != "X" && (st[statState] != "Z" || threads > 1) {
			return true
		}
	}
	return false
}

// Places in what stat returns.
const (
	statState   = 0
	statGroup   = 2
	statThreads = 17
)

// stat reads what the kernel says of a process behind its name, nothing when it is gone; see proc_pid_stat(5).
func stat(pid string) []string {
	b, _ := os.ReadFile("/proc/" + pid + "/stat")
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the name may hold anything
}
