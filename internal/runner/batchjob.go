package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/durable"
	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/recipe"
	"berth.dev/berth/internal/wire/run"
)

// batchGrace is the time from SIGTERM to SIGKILL for a command that ran out of time.
const batchGrace = 10 * time.Second

// exitNotStarted is the exit code of a runner that could not prepare the record of a batch command and did not start it.
const exitNotStarted = 75

// batchJob runs the command of a batch session and records its result; it returns the exit code for the container. The command runs at
// most once in this directory: before it starts, a marker is made durable, and a command that has a marker is never started again.
func (r *Runner) batchJob(ctx context.Context) (code int) {
	if res, err := readResult(r.cfg.ResultFile); err == nil {
		r.setBatch(run.BatchState{Phase: run.BatchFinished, Result: &res})
		return res.ExitCode
	}
	if !r.table.Ready(ctx) {
		return exitUnfinished // the session ends before the command starts
	}
	err := markStarted(r.cfg.StartedFile(), r.cfg.ResultFile)
	if errors.Is(err, fs.ErrExist) {
		now := time.Now().UTC()
		res := run.BatchResult{KernelID: r.cfg.KernelID, StartedAt: now, EndedAt: now, ExitCode: 125,
			Error: "it was started before in this container, and how it ended is not known"}
		r.log.Error("the batch command is not started: " + res.Error)
		if err := writeResult(r.cfg.ResultFile, res); err != nil {
			r.log.Error("the result of the batch command cannot be recorded", "err", err)
		}
		r.setBatch(run.BatchState{Phase: run.BatchFinished, Result: &res})
		return res.ExitCode
	}
	if err != nil {
		r.log.Error("the batch command is not started, because its start cannot be recorded", "err", err)
		return exitNotStarted
	}
	r.setBatch(run.BatchState{Phase: run.BatchRunning})
	j := r.queue.newBatchLog(run.BatchRunID)
	res := run.BatchResult{KernelID: r.cfg.KernelID, StartedAt: time.Now().UTC()}
	log, err := r.openTaskLog()
	if err != nil {
		r.log.Warn("the task log cannot be written; the container's log has everything", "err", err)
	}
	r.runBatch(ctx, j, log, &res)
	res.EndedAt, res.OOM = time.Now().UTC(), r.table.OOMKills() > 0
	log.close()
	if err := writeResult(r.cfg.ResultFile, res); err != nil {
		// The container's exit code is the command's: the agent takes that.
		r.log.Error("the result of the batch command cannot be recorded", "err", err)
	}
	r.setBatch(run.BatchState{Phase: run.BatchFinished, Result: &res})
	status := run.StatusFinished
	if res.TimedOut {
		status = run.StatusExecTimeout
	}
	r.queue.end(j, status, res.ExitCode)
	r.log.Info("the batch command ended", "exit_code", res.ExitCode, "signal", res.Signal, "timed_out", res.TimedOut)
	return res.ExitCode
}

func (r *Runner) runBatch(ctx context.Context, j *job, log *taskLog, res *run.BatchResult) {
	env := with(r.env, "_BACKEND_BATCH_MODE=1")
	fail := func(err error, code int) {
		res.Error, res.ExitCode = err.Error(), code
		j.TextNow(cell.Stderr, err.Error()+"\n")
	}
	file, argv, err := recipe.CommandLine(r.cfg.Batch.Command, env)
	if err != nil {
		fail(err, 127)
		return
	}
	p, drains, err := r.spawn(file, argv, env, &tee{Sink: j, log: log})
	if err != nil {
		fail(err, proc.ExitCodeOf(err))
		return
	}
	j.mu.Lock()
	j.process = p
	j.mu.Unlock()
	var timeout <-chan time.Time
	if d := r.cfg.BatchTimeout(); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-p.Done():
	case <-timeout:
		res.TimedOut = true
		p.End(batchGrace)
	case <-ctx.Done():
		res.Cancelled = true
		p.End(time.Duration(r.cfg.Limits.GraceMS) * time.Millisecond)
	}
	j.mu.Lock()
	j.process = nil
	j.mu.Unlock()
	for _, d := range drains {
		d.settle(r)
	}
	st := p.Status()
	res.ExitCode, res.Signal = st.Code, int(st.Signal)
	res.Usage = run.Usage{UserSeconds: st.User.Seconds(), SystemSeconds: st.System.Seconds(), MaxRSSBytes: st.MaxRSS}
	if res.TimedOut {
		res.ExitCode = 124
	}
}

func (r *Runner) setBatch(s run.BatchState) {
	r.mu.Lock()
	r.batchSt = s
	r.mu.Unlock()
}

// tee copies the command's output to the task log.
type tee struct {
	cell.Sink
	log *taskLog
}

func (t *tee) Text(stream, text string) {
	t.log.write(text)
	t.Sink.Text(stream, text)
}

// taskLog is the file in the user's home where clients look for the output of a batch session.
type taskLog struct {
	mu sync.Mutex
	f  *os.File
}

func (l *taskLog) write(text string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = io.WriteString(l.f, text) // a full home does not end the command; the container's log goes on
}

func (l *taskLog) close() {
	if l != nil {
		_ = l.f.Sync()
		_ = l.f.Close()
	}
}

// TaskLogPath is where the task log of a kernel is, relative to the home directory.
func TaskLogPath(kernelID string) string {
	id := strings.ReplaceAll(kernelID, "-", "")
	if len(id) < 5 || !fs.ValidPath(id) {
		return path.Join(".logs/task", "batch.log")
	}
	return path.Join(".logs/task", id[:2], id[2:4], id[4:]+".log")
}

func (r *Runner) openTaskLog() (*taskLog, error) {
	var f *os.File
	err := proc.AsUser(r.user, func() error {
		root, err := os.OpenRoot(r.cfg.User.Home)
		if err != nil {
			return err
		}
		defer root.Close()
		name := TaskLogPath(r.cfg.KernelID)
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		f, err = root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &taskLog{f: f}, nil
}

// resultRoom is how much of the disk is set aside for a result before its command starts.
const resultRoom = 4 << 10

// markStarted sets room aside for the result and then makes the marker of the start durable. It is fs.ErrExist when there is a marker.
// The result's own name is taken too: giving the written file an existing name needs no room in the directory.
func markStarted(marker, result string) error {
	if _, err := os.Lstat(marker); err == nil {
		return fs.ErrExist
	}
	room, err := os.OpenFile(result+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if err = syscall.Fallocate(int(room.Fd()), 0, 0, resultRoom); errors.Is(err, syscall.EOPNOTSUPP) {
		_, err = room.Write(make([]byte, resultRoom))
	}
	if cerr := room.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("set room aside for the result: %w", err)
	}
	for _, name := range []string{result, marker} {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
		if name == result && errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = f.Sync()
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return fmt.Errorf("make %s durable: %w", name, err)
		}
	}
	return durable.SyncDir(filepath.Dir(marker))
}

// writeResult makes the file appear whole and durable. It uses the room that markStarted has set aside.
func writeResult(file string, res run.BatchResult) error {
	b, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		return err
	}
	tmp := file + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	n, err := f.Write(append(b, '\n'))
	if err == nil {
		err = f.Truncate(int64(n))
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return durable.SyncDir(filepath.Dir(file))
}

func readResult(file string) (run.BatchResult, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return run.BatchResult{}, err
	}
	var res run.BatchResult
	err = json.Unmarshal(b, &res)
	return res, err
}
