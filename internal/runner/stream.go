package runner

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/terminal"
	"berth.dev/berth/internal/wire/run"
)

// stream is the runner's end of a full-duplex stream of frames.
type stream struct {
	in    *bufio.Reader
	close func() // makes a blocked read return
	over  atomic.Bool

	mu    sync.Mutex
	out   io.Writer
	flush func() error
	err   error
}

func (s *stream) send(f run.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.err = run.WriteFrame(s.out, f); s.err == nil {
		s.err = s.flush()
	}
	return s.err
}

func (s *stream) data(t run.FrameType, b []byte) {
	for len(b) > 0 {
		n := min(len(b), 64<<10)
		if s.send(run.Frame{Type: t, Data: b[:n]}) != nil {
			return
		}
		b = b[n:]
	}
}

// lingerTime is how long a caller may take to read the last frame.
const lingerTime = 30 * time.Second

// linger follows the last frame. It goes on to read, and to drop, what the caller sends until the caller ends the stream: a
// connection that is closed while input is under way breaks at the caller's end, with the last frame unread (RFC 9112, 9.6).
func (s *stream) linger(gone <-chan struct{}) {
	s.over.Store(true)
	select {
	case <-gone:
	case <-time.After(lingerTime):
		s.end(gone)
	}
}

// end makes who reads the stream, or feeds what it read, return.
func (s *stream) end(gone <-chan struct{}) {
	s.over.Store(true)
	s.close()
	<-gone
}

// refuse sends the exit of a command that did not start.
func (s *stream) refuse(exit run.Exit) {
	if s.send(run.JSONFrame(run.FrameExit, exit)) == nil {
		s.linger(s.readLoop(func(run.Frame) {}))
	}
}

// feedTime is after how long a caller is looked for whose input nobody takes.
const feedTime = time.Second

// feed gives a process its input. One that reads nothing holds that up, and with it the reading of the stream; the
// caller's end is then seen by writing to it. write takes a limit and returns os.ErrDeadlineExceeded with what it wrote until then.
func (s *stream) feed(write func(b []byte, limit time.Duration) (int, error), b []byte) {
	for len(b) > 0 && !s.over.Load() {
		n, err := write(b, feedTime)
		b = b[n:]
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return // a process that has ended, or closed its input, does not want it
		case s.send(run.Frame{Type: run.FramePong}) != nil:
			s.over.Store(true) // nor what else the caller had sent
		}
	}
}

// serveStream opens a stream, over an upgraded connection or a full-duplex POST. begin gets the
// payload of the first frame and returns what serves the rest; its error is the reply.
func (r *Runner) serveStream(w http.ResponseWriter, q *http.Request, begin func(first run.Frame) (func(*stream), error)) {
	r.mu.Lock()
	if r.streams >= r.cfg.Limits.MaxStreams {
		r.mu.Unlock()
		run.WriteFailure(w, fault.Exhaustedf("the session has %d open streams already", r.cfg.Limits.MaxStreams))
		return
	}
	r.streams++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.streams--
		r.mu.Unlock()
	}()
	if strings.EqualFold(q.Header.Get("Upgrade"), run.UpgradeProtocol) {
		r.upgraded(w, begin)
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(30 * time.Second)) // a socket has deadlines
	in := bufio.NewReaderSize(q.Body, 64<<10)
	first, err := run.ReadFrame(in)
	if err == nil && first.Type != run.FrameStart {
		err = errors.New("the first frame is no start frame")
	}
	if err != nil {
		run.WriteFailure(w, fault.Invalidf("a stream begins with a start frame").WithCause(err))
		return
	}
	serve, err := begin(first)
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	_ = rc.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	serve(&stream{in: in, out: w, flush: rc.Flush, close: func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) }})
}

func (r *Runner) upgraded(w http.ResponseWriter, begin func(first run.Frame) (func(*stream), error)) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		run.WriteFailure(w, fault.Invalidf("this connection cannot be upgraded").WithCause(err))
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+run.UpgradeProtocol+
		"\r\n\r\n"); err != nil {
		return
	}
	s := &stream{in: buf.Reader, out: conn, flush: func() error { return nil }, close: func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) }}
	first, err := run.ReadFrame(s.in)
	if err == nil && first.Type != run.FrameStart {
		err = errors.New("a stream begins with a start frame")
	}
	var serve func(*stream)
	if err == nil {
		serve, err = begin(first)
	}
	_ = conn.SetDeadline(time.Time{})
	if err != nil {
		s.refuse(run.Exit{Code: 126, Error: err.Error()})
		return
	}
	serve(s)
}

// readLoop hands frames to take until the peer goes away or close is called; take must not block for ever.
func (s *stream) readLoop(take func(run.Frame)) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			f, err := run.ReadFrame(s.in)
			if err != nil {
				return
			}
			if f.Type == run.FramePing {
				_ = s.send(run.Frame{Type: run.FramePong, Data: f.Data}) // a broken stream is seen by the reader
				continue
			}
			take(f)
		}
	}()
	return done
}

func (r *Runner) servePTY(w http.ResponseWriter, q *http.Request) {
	r.serveStream(w, q, func(first run.Frame) (func(*stream), error) {
		var start run.PTYStart
		if err := first.Decode(&start); err != nil {
			return nil, fault.Invalidf("open a terminal").WithCause(err)
		}
		name, err := terminal.Name(start.Terminal)
		if err != nil {
			return nil, fault.Invalidf("open a terminal").WithCause(err)
		}
		t, watcher, err := r.terminals.Attach(name, start.Rows, start.Cols, start.Restart)
		if err != nil {
			return nil, err
		}
		return func(s *stream) { watchTerminal(s, t, watcher) }, nil
	})
}

func watchTerminal(s *stream, t *terminal.Terminal, watcher *terminal.Watcher) {
	defer watcher.Detach()
	if s.send(run.Frame{Type: run.FrameReady}) != nil {
		return
	}
	gone := s.readLoop(func(f run.Frame) {
		switch f.Type {
		case run.FrameStdin:
			s.feed(t.WriteFor, f.Data) // a terminal that ended says so through the watcher
		case run.FrameResize:
			var size run.Resize
			if f.Decode(&size) == nil && size.Rows > 0 && size.Cols > 0 {
				_ = t.Resize(size.Rows, size.Cols)
			}
		case run.FrameSignal:
			if sig, ok := signalNamed(string(f.Data)); ok {
				t.Signal(sig)
			}
		}
	})
	for {
		select {
		case b, ok := <-watcher.Output():
			if !ok {
				st := t.Status()
				_ = s.send(run.JSONFrame(run.FrameExit, run.Exit{Code: st.Code, Signal: int(st.Signal)}))
				s.linger(gone)
				return
			}
			s.data(run.FrameStdout, b)
		case <-watcher.Gone():
			s.end(gone)
			return
		case <-gone:
			return
		}
	}
}

func (r *Runner) serveExec(w http.ResponseWriter, q *http.Request) {
	r.serveStream(w, q, func(first run.Frame) (func(*stream), error) {
		var start run.ExecStart
		if err := first.Decode(&start); err != nil {
			return nil, fault.Invalidf("execute a command").WithCause(err)
		}
		if len(start.Argv) == 0 || start.Argv[0] == "" {
			return nil, fault.Invalidf("execute a command: none was given")
		}
		if start.Dir == "" {
			start.Dir = r.workDir()
		}
		env := r.env
		for k, v := range start.Env {
			if k == "" || strings.ContainsAny(k+v, "\x00") || strings.Contains(k, "=") {
				return nil, fault.Invalidf("execute a command: %q cannot be an environment variable", k)
			}
			env = with(env, k+"="+v)
		}
		return func(s *stream) { r.exec(s, start, env) }, nil
	})
}

// exec runs a command for as long as its stream lasts.
func (r *Runner) exec(s *stream, start run.ExecStart, env []string) {
	if s.send(run.Frame{Type: run.FrameReady}) != nil {
		return
	}
	file, ok := r.lookPath(start.Argv[0], env)
	if !ok {
		s.refuse(run.Exit{Code: 127, Error: start.Argv[0] + ": not found in this image"})
		return
	}
	words := r.outOfMemory()
	e, err := r.startExec(s, file, start, env)
	if err != nil {
		s.refuse(run.Exit{Code: proc.ExitCodeOf(err), Error: err.Error()})
		return
	}
	defer e.input.Close()
	gone := s.readLoop(func(f run.Frame) { e.take(s, f) })
	select {
	case <-e.process.Done():
	case <-gone:
		e.process.Signal(syscall.SIGHUP)
		e.process.End(2 * time.Second)
	}
	for _, d := range e.drains {
		d.Settle(func([]byte) {})
	}
	st := e.process.Status()
	_ = s.send(run.JSONFrame(run.FrameExit, run.Exit{Code: st.Code, Signal: int(st.Signal), Error: words()}))
	_ = e.input.SetWriteDeadline(time.Unix(1, 0)) // a command that left before reading its input
	s.linger(gone)
}

type execution struct {
	process *proc.Process
	input   *os.File // the command's standard input, or its terminal
	tty     bool
	drains  []*proc.Drain
}

func (r *Runner) startExec(s *stream, file string, start run.ExecStart, env []string) (*execution, error) {
	e := &execution{tty: start.TTY}
	spec := proc.Spec{Path: file, Argv: start.Argv, Env: env, Dir: start.Dir, User: r.user, TTY: start.TTY}
	if start.TTY {
		if start.Rows == 0 || start.Cols == 0 {
			start.Rows, start.Cols = 24, 80
		}
		var master, slave *os.File
		if err := proc.AsUser(r.user, func() (err error) {
			master, slave, err = proc.OpenPTY(start.Rows, start.Cols)
			return err
		}); err != nil {
			return nil, err
		}
		e.input = master
		spec.Files = []*os.File{slave, slave, slave}
		e.drains = []*proc.Drain{proc.NewDrain(master, func(b []byte) { s.data(run.FrameStdout, b) })}
	} else {
		in, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		e.input = w
		spec.Files = []*os.File{in}
		for _, t := range []run.FrameType{run.FrameStdout, run.FrameStderr} {
			d, end, err := proc.Pipe(func(b []byte) { s.data(t, b) })
			if err != nil {
				return nil, err
			}
			e.drains = append(e.drains, d)
			spec.Files = append(spec.Files, end)
		}
	}
	p, err := r.table.Start(spec)
	for i, f := range spec.Files {
		if i == 0 || f != spec.Files[0] {
			f.Close()
		}
	}
	if err != nil {
		e.input.Close()
		return nil, err
	}
	e.process = p
	return e, nil
}

// write writes to the input for at most limit.
func (e *execution) write(b []byte, limit time.Duration) (int, error) {
	if err := e.input.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return 0, err // it is closed
	}
	return e.input.Write(b)
}

// take handles one frame from the caller.
func (e *execution) take(s *stream, f run.Frame) {
	switch f.Type {
	case run.FrameStdin:
		s.feed(e.write, f.Data)
	case run.FrameStdinClose:
		if e.tty {
			s.feed(e.write, []byte{4}) // what Ctrl-D types
			return
		}
		_ = e.input.Close()
	case run.FrameResize:
		var size run.Resize
		if e.tty && f.Decode(&size) == nil && size.Rows > 0 && size.Cols > 0 {
			_ = proc.SetSize(e.input, size.Rows, size.Cols)
		}
	case run.FrameSignal:
		if sig, ok := signalNamed(string(f.Data)); ok {
			e.process.Signal(sig)
		}
	}
}

// signalNamed knows the signals that callers may send.
func signalNamed(name string) (syscall.Signal, bool) {
	sig, ok := map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT, "WINCH": syscall.SIGWINCH,
	}[strings.TrimPrefix(strings.ToUpper(name), "SIG")]
	return sig, ok
}
