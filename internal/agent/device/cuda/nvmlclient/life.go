package nvmlclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// life is one helper process.
type life struct {
	c     *Client
	proc  *os.Process
	pid   int
	began time.Time
	in    *os.File // its standard input
	out   *os.File
	errs  *os.File
	words *words // what it wrote on standard error

	exited chan struct{} // closed when the process is gone
	exit   error         // how it went; valid then

	greeted chan struct{} // closed when it has said the right version
	failed  chan struct{} // closed when it has done wrong
	failure error         // what; valid then
	once    sync.Once

	mu      sync.Mutex
	over    error // why nothing is answered any more
	last    int64 // id of the newest request
	pending map[int64]*call
	current map[string]*call // by method
}

// call is a request that waits for its answer.
type call struct {
	method string
	limit  chassis.Timer
	done   chan struct{}
	answer nvmlwire.Message // valid when done is closed, as is err
	err    error
}

func (l *life) clock() chassis.Clock { return l.c.o.Clock }

// spawn starts a helper. One goroutine starts it and waits for it and keeps its thread all that time: with that thread would end
// a process that has a death signal. Nobody waits for the goroutine where the process cannot be killed.
func (c *Client) spawn() (*life, error) {
	var files [6]*os.File
	closeAll := func(of ...*os.File) {
		for _, f := range of {
			if f != nil {
				f.Close()
			}
		}
	}
	for i := 0; i < len(files); i += 2 {
		var err error
		if files[i], files[i+1], err = os.Pipe(); err != nil {
			closeAll(files[:]...)
			return nil, fmt.Errorf("make a pipe to %s: %w", c.o.Path, err)
		}
	}
	inR, inW, outR, outW, errsR, errsW := files[0], files[1], files[2], files[3], files[4], files[5]
	cmd := exec.Command(c.o.Path)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "TZ=UTC"}, c.o.env...)
	if v := os.Getenv("LD_LIBRARY_PATH"); v != "" { // where NVIDIA's library is on some hosts
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errsW
	l := &life{c: c, began: c.o.Clock.Now(), in: inW, out: outR, errs: errsR, words: &words{log: c.o.Log, clock: c.o.Clock},
		exited: make(chan struct{}), greeted: make(chan struct{}), failed: make(chan struct{}), pending: map[int64]*call{},
		current: map[string]*call{}}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		closeAll(inR, outW, errsW)
		started <- err
		if err != nil {
			return
		}
		if l.exit = cmd.Wait(); l.exit == nil {
			l.exit = errors.New("exit status 0")
		}
		close(l.exited)
	}()
	if err := <-started; err != nil {
		closeAll(inW, outR, errsR)
		return nil, fmt.Errorf("start the program: %w", err)
	}
	l.proc, l.pid = cmd.Process, cmd.Process.Pid
	return l, nil
}

// run uses the helper until it ends, does wrong, or ctx ends, and returns why when the process is gone. A *stuckError says that
// it is not.
func (l *life) run(ctx context.Context) error {
	silent, read := make(chan struct{}), make(chan struct{})
	go func() { defer close(silent); l.words.read(l.errs) }()
	go func() { defer close(read); l.read() }()
	hello := l.clock().NewTimer(helloLimit)
	defer hello.Stop()
	select {
	case <-l.greeted:
		l.c.o.Log.Info("the helper for NVIDIA GPUs runs", "process", l.pid, "program", l.c.o.Path)
		l.c.set(l, nil)
	case <-hello.C():
		l.fail(fmt.Errorf("it said nothing within %s and is killed", helloLimit))
	case <-l.failed:
	case <-read:
	case <-ctx.Done():
	}
	select {
	case <-l.failed:
	case <-read: // it has ended, or will tell nothing more
	case <-ctx.Done():
	}
	gone := l.end()
	if gone {
		closedWithin(l.clock(), silent, wordsLimit)
	}
	l.out.Close()
	l.errs.Close()
	<-silent
	<-read
	reason := l.reason(gone)
	l.finish(unavailable(reason.Error()))
	if !gone {
		return &stuckError{pid: l.pid, reason: reason, exited: l.exited}
	}
	return reason
}

// end ends the process: by the end of its input where it has done nothing wrong, else by SIGKILL. It reports whether the process
// is gone.
func (l *life) end() bool {
	l.mu.Lock()
	l.in.Close()
	l.mu.Unlock()
	select {
	case <-l.failed:
	default:
		if closedWithin(l.clock(), l.exited, endLimit) {
			return true
		}
	}
	if err := l.c.o.kill(l.proc); err != nil && !errors.Is(err, os.ErrProcessDone) {
		l.c.o.Log.Warn("could not kill the helper for NVIDIA GPUs", "process", l.pid, "err", err)
	}
	return closedWithin(l.clock(), l.exited, endLimit)
}

// closedWithin waits until a channel is closed, for that long at most, and reports whether it is.
func closedWithin(clock chassis.Clock, c <-chan struct{}, d time.Duration) bool {
	late := clock.NewTimer(d)
	defer late.Stop()
	select {
	case <-c:
		return true
	case <-late.C():
		return false
	}
}

// reason says why it ended. What it did wrong comes first, else how the process went.
func (l *life) reason(gone bool) error {
	select {
	case <-l.failed:
		return fmt.Errorf("%w%s", l.failure, l.words.quote())
	default:
	}
	if !gone {
		return errors.New("it closed its output and did not end")
	}
	return fmt.Errorf("it ended by itself: %w%s", l.exit, l.words.quote())
}

// fail says what the helper did wrong; the first counts.
func (l *life) fail(err error) {
	l.once.Do(func() {
		l.failure = err
		close(l.failed)
	})
}

// send asks for a method, or joins a request for it that waits already.
func (l *life) send(method string) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.current[method]; k != nil {
		return k
	}
	k := &call{method: method, done: make(chan struct{})}
	if l.over != nil {
		k.err = l.over
		close(k.done)
		return k
	}
	l.last++
	line, err := json.Marshal(nvmlwire.Request{ID: l.last, Method: method})
	if err != nil {
		k.err = fmt.Errorf("encode a request: %w", err)
		close(k.done)
		return k
	}
	k.limit = l.clock().AfterFunc(answerLimit, func() {
		l.fail(fmt.Errorf("it did not answer %s within %s and is killed; the NVIDIA driver seems to hang", method, answerLimit))
	})
	l.pending[l.last], l.current[method] = k, k
	// At most one request of each method waits, so the pipe has room. Where the helper has gone, its end ends the call.
	_, _ = l.in.Write(append(line, '\n'))
	return k
}

// finish ends every request.
func (l *life) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = err
	for _, k := range l.pending {
		k.limit.Stop()
		k.err = err
		close(k.done)
	}
	clear(l.pending)
	clear(l.current)
}

// read takes what the helper says until it ends or says something wrong.
func (l *life) read() {
	lines := bufio.NewScanner(l.out)
	lines.Buffer(nil, nvmlwire.MaxLine)
	for greeted := false; lines.Scan(); greeted = true {
		var m nvmlwire.Message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			l.fail(fmt.Errorf("it wrote a line that is no message: %q", fault.Clip(lines.Text(), 100)))
			return
		}
		if err := l.take(m, greeted); err != nil {
			l.fail(err)
			return
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		l.fail(fmt.Errorf("it wrote a line of more than %d bytes", nvmlwire.MaxLine))
	}
}

func (l *life) take(m nvmlwire.Message, greeted bool) error {
	switch {
	case !greeted && m.Version == 0:
		return errors.New("its first message does not say a version")
	case !greeted && m.Version != nvmlwire.Version:
		return fmt.Errorf("it speaks version %d of the messages and this agent version %d; next: install the %s of this agent's release",
			m.Version, nvmlwire.Version, nvmlwire.Program)
	case !greeted:
		close(l.greeted)
		return nil
	case m.Event != nil && m.ID == 0 && m.Event.UUID != "" && len(m.Event.UUID) <= 128:
		if lost := l.c.queue.add(*m.Event); lost {
			l.c.o.Log.Warn("errors of an NVIDIA GPU are left out, because earlier ones of it were not taken yet", "gpu", m.Event.UUID)
		}
		return nil
	case m.ID <= 0:
		return errors.New("it wrote a message that says nothing")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.pending[m.ID]
	if k == nil {
		return fmt.Errorf("it answered request %d, which does not wait for an answer", m.ID)
	}
	k.limit.Stop()
	delete(l.pending, m.ID)
	delete(l.current, k.method)
	k.answer = m
	close(k.done)
	return nil
}
