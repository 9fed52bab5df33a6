package platform

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

const (
	// detachPatience bounds the wait for a detached cluster, crash recovery included.
	detachPatience = 5 * time.Minute
	// tailBytes of the log are shown when a start fails.
	tailBytes = 4 << 10
)

// Detach starts this program again with these arguments, which are those of `berth up` for this directory, in a session of its own,
// and waits until its cluster is up or the program has ended.
func Detach(ctx context.Context, dir StateDir, args []string, say func(format string, args ...any)) (Report, error) {
	if err := dir.Create(); err != nil {
		return Report{}, err
	}
	release, err := dir.Lock()
	if err != nil {
		return Report{}, err
	}
	release()
	earlier, err := chassis.OpenLogFile(dir.LogFile(), chassis.LogFileOptions{}) // puts the log of earlier starts aside when it is due
	if err != nil {
		return Report{}, err
	}
	if err := earlier.Close(); err != nil {
		return Report{}, fmt.Errorf("close the log of earlier starts: %w", err)
	}
	log, err := os.OpenFile(dir.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return Report{}, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	began, err := log.Seek(0, 2)
	if err != nil {
		return Report{}, fmt.Errorf("open log: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return Report{}, fmt.Errorf("find this program: %w", err)
	}
	child := exec.Command(self, args...)
	child.Stdout, child.Stderr = log, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return Report{}, fmt.Errorf("start in the background: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }() // ends with this process or with the child
	return awaitDetached(ctx, dir, say, child.Process, ended, began)
}

// DetachedLog is the log of a process that Detach started: its standard output and error are the same file, and go on with the next one
// when this is put aside, so that what the Go runtime says at a crash is in the log too.
func DetachedLog(dir StateDir) (*chassis.LogFile, error) {
	return chassis.OpenLogFile(dir.LogFile(), chassis.LogFileOptions{Renewed: func(f *os.File) {
		for fd := 1; fd <= 2; fd++ {
			_ = syscall.Dup3(int(f.Fd()), fd, 0) // the log itself goes on all the same
		}
	}})
}

func awaitDetached(ctx context.Context, dir StateDir, say func(string, ...any), child *os.Process, ended <-chan error,
	logStart int64) (Report, error) {
	began, shown := time.Now(), ""
	for {
		if r, err := dir.Status(ctx); err == nil && r.Pid == child.Pid {
			if r.Ready {
				return r, nil
			}
			if r.Phase != shown {
				shown = r.Phase
				say("%s", shown)
			}
		}
		if time.Since(began) > detachPatience {
			return Report{}, fault.New(fault.Timeout, "the cluster is not up after %s; it goes on trying%s",
				detachPatience, logTail(dir, logStart)).
				WithNext("berth status --state-dir %s", dir)
		}
		timer := time.NewTimer(lookAgain(time.Since(began)))
		select {
		case <-timer.C:
		case err := <-ended:
			timer.Stop()
			return Report{}, fault.New(fault.Unavailable, "the cluster did not start (%v); end of %s:%s",
				err, dir.LogFile(), logTail(dir, logStart)).
				WithNext("correct that, then berth up --detach")
		case <-ctx.Done():
			timer.Stop()
			_ = child.Signal(syscall.SIGTERM) // gone already is fine
			return Report{}, fmt.Errorf("the start was called off: %w", context.Cause(ctx))
		}
	}
}

// logTail returns the last lines that this start wrote, indented.
func logTail(dir StateDir, from int64) string {
	f, err := os.Open(dir.LogFile())
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from = max(from, info.Size()-tailBytes)
	text := make([]byte, max(0, info.Size()-from))
	n, _ := f.ReadAt(text, from)
	lines := strings.Split(strings.TrimSpace(string(text[:n])), "\n")
	lines = lines[max(0, len(lines)-15):]
	return "\n  " + strings.Join(lines, "\n  ")
}
