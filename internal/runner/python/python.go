// Package python executes cells in a persistent Python interpreter: an ipykernel
// where the image has one, else a small interpreter of our own (launcher.py). Both keep variables
// between cells, answer input(), can be interrupted and complete words.
//
// It knows no runs and no HTTP; runner calls it, one cell at a time.
package python

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/jupyter"
	"berth.dev/berth/internal/runner/output"
	"berth.dev/berth/internal/runner/proc"
)

//go:embed launcher.py
var launcher []byte

//go:embed sitecustomize.py
var sitecustomize []byte

//go:embed kernel_setup.py
var kernelSetup string

// startTimeout is how long an interpreter may take until it can execute: imports from a
// cold network file system are slow.
const startTimeout = 2 * time.Minute

// maxEarly bounds what is kept of an interpreter's output while it starts.
const maxEarly = 64 << 10

// maxFrame bounds a frame from the shim.
const maxFrame = 1 << 20

// Install writes the files that interpreters load. They belong to the runner; dir/python
// is for PYTHONPATH of batch commands.
func Install(dir string) error {
	site := filepath.Join(dir, "python")
	if err := os.MkdirAll(site, 0o755); err != nil {
		return fmt.Errorf("install the Python side: %w", err)
	}
	for file, text := range map[string][]byte{filepath.Join(dir, "launcher.py"): launcher,
		filepath.Join(site, "sitecustomize.py"): sitecustomize} {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return fmt.Errorf("install the Python side: %w", err)
		}
	}
	return nil
}

// Config says how to start an interpreter.
type Config struct {
	Path    string // python3
	LibDir  string // where Install wrote
	UserDir string // private to the user, for sockets and connection files; keep it short
	Dir     string // working directory
	Env     []string
	User    *proc.Credential
	Table   *proc.Table
	Stray   func(stream, text string) // output that belongs to no cell
	Log     *slog.Logger
	// NoKernel uses the shim even where there is an ipykernel.
	NoKernel bool
}

// Interpreter is one persistent interpreter, started with the first cell and again after it died.
type Interpreter struct {
	cfg Config

	turn sync.Mutex // one cell, completion or start at a time

	mu      sync.Mutex
	life    *life // nil: not started, or ended
	serial  int
	state   string
	how     string
	stopped bool
}

// The states of an interpreter.
const (
	None     = "none"
	Starting = "starting"
	Idle     = "idle"
	Busy     = "busy"
	Dead     = "dead"
)

// New returns an interpreter that is not started yet.
func New(cfg Config) *Interpreter { return &Interpreter{cfg: cfg, state: None} }

// Info returns the state, the process id (0 when there is none), and "ipykernel", "shim" or
// "" when it is not known yet.
func (p *Interpreter) Info() (state string, pid int, how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil {
		pid = p.life.process.PID
		select {
		case <-p.life.process.Done():
			return Dead, 0, p.how
		default:
		}
	}
	return p.state, pid, p.how
}

func (p *Interpreter) set(state string) {
	p.mu.Lock()
	p.state = state
	p.mu.Unlock()
}

// Start starts the interpreter when it is not running.
func (p *Interpreter) Start(ctx context.Context) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	_, err := p.ensure(ctx)
	return err
}

// ensure returns the living interpreter, starting it when needed.
func (p *Interpreter) ensure(ctx context.Context) (*life, error) {
	p.mu.Lock()
	l := p.life
	p.mu.Unlock()
	if l != nil {
		select {
		case <-l.process.Done():
			l.close()
		default:
			return l, nil
		}
	}
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return nil, errors.New("the session is ending")
	}
	p.serial++
	serial := p.serial
	p.state = Starting
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	l, err := p.start(ctx, serial)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.state, p.life = Dead, nil
		return nil, err
	}
	p.state, p.how = Idle, l.how()
	return l, nil
}

// Query runs one cell and returns its exit code. A ctx that ends before the cell began cancels
// it (130); later on, Interrupt does.
func (p *Interpreter) Query(ctx context.Context, code string, sink cell.Sink) int {
	p.turn.Lock()
	defer p.turn.Unlock()
	l, err := p.ensure(context.WithoutCancel(ctx)) // an interrupt does not spoil the interpreter for the next cell
	if err != nil {
		sink.TextNow(cell.Stderr, "Python could not be started: "+err.Error()+"\n")
		return 1
	}
	p.set(Busy)
	if ctx.Err() != nil { // after Busy: a later interrupt reaches the process
		p.set(Idle)
		return 130
	}
	exit, err := l.execute(code, sink)
	if err == nil {
		p.set(Idle)
		return exit
	}
	// The connection broke. Usually because the process ended; if not, it is of no more use.
	select {
	case <-l.process.Done():
	case <-time.After(2 * time.Second):
		l.process.Signal(syscall.SIGKILL)
	}
	st := l.process.Status()
	l.close()
	p.set(Dead)
	why := fmt.Sprintf("exit code %d", st.Code)
	if st.Signal != 0 {
		why = st.Signal.String()
	}
	p.cfg.Log.Warn("the interpreter ended during a cell", "code", st.Code, "signal", int(st.Signal))
	sink.TextNow(cell.Log, "The interpreter ended ("+why+"); the next cell starts a new one, without its variables.\n")
	return st.Code
}

// Interrupt sends the running cell a KeyboardInterrupt.
func (p *Interpreter) Interrupt() { p.signal(syscall.SIGINT) }

// Kill ends an interpreter that runs a cell and does not heed interrupts; the next cell
// starts a new one.
func (p *Interpreter) Kill() { p.signal(syscall.SIGKILL) }

func (p *Interpreter) signal(s syscall.Signal) {
	p.mu.Lock()
	l, busy := p.life, p.state == Busy
	p.mu.Unlock()
	if l != nil && busy {
		l.process.Signal(syscall.SIGCONT)
		l.process.Signal(s)
	}
}

// ErrBusy means that a cell is running, so nothing can be completed now.
var ErrBusy = errors.New("a cell is running")

// Complete returns the words that fit at the cursor, which is a number of characters.
func (p *Interpreter) Complete(ctx context.Context, code string, cursor int) ([]string, error) {
	if !p.turn.TryLock() {
		return nil, ErrBusy
	}
	defer p.turn.Unlock()
	l, err := p.ensure(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return l.complete(ctx, code, cursor)
}

// Stop ends the interpreter for good.
func (p *Interpreter) Stop() {
	p.mu.Lock()
	p.stopped = true
	l := p.life
	p.mu.Unlock()
	if l != nil {
		l.process.Signal(syscall.SIGKILL)
	}
}

// life is one process of the interpreter.
type life struct {
	process *proc.Process
	kernel  *jupyter.Kernel // nil: the shim
	base    string          // path prefix of its files
	user    *proc.Credential
	events  *os.File       // from the shim
	orders  *os.File       // to the shim
	raw     [2]*proc.Drain // descriptors 1 and 2
	readEnd chan struct{}  // the shim's events ended

	mu      sync.Mutex
	sink    cell.Sink // of the running cell
	stray   func(stream, text string)
	serial  int
	done    chan int      // exit code of the running cell
	matches chan []string // completions asked for
	// early holds what is printed until the first cell can run; it is shown only when none ever can.
	early   []byte
	started bool
	text    map[string]*output.Decoder
}

func (l *life) how() string {
	if l.kernel != nil {
		return "ipykernel"
	}
	return "shim"
}

func (p *Interpreter) start(ctx context.Context, serial int) (*life, error) {
	base := filepath.Join(p.cfg.UserDir, fmt.Sprintf("k%d", serial))
	file := base + ".json"
	conn := jupyter.NewConnection(base)
	arg := file
	if p.cfg.NoKernel {
		arg = "-"
	} else if err := proc.AsUser(p.cfg.User, func() error { return conn.WriteFile(file, 0o600) }); err != nil {
		p.cfg.Log.Warn("no connection file for ipykernel", "err", err)
		arg = "-"
	}
	l := &life{base: base, user: p.cfg.User, stray: p.cfg.Stray, readEnd: make(chan struct{}), done: make(chan int, 1),
		matches: make(chan []string, 1), text: map[string]*output.Decoder{}}
	eventR, eventW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	orderR, orderW, err := os.Pipe()
	if err != nil {
		eventR.Close()
		eventW.Close()
		return nil, err
	}
	l.events, l.orders = eventR, orderW
	null, err := proc.NoInput()
	if err != nil {
		l.close()
		return nil, err
	}
	var ends [2]*os.File
	for i, stream := range []string{cell.Stdout, cell.Stderr} {
		if l.raw[i], ends[i], err = proc.Pipe(func(b []byte) { l.bytes(stream, "raw"+stream, b) }); err != nil {
			return nil, err
		}
	}
	argv := []string{"python3", filepath.Join(p.cfg.LibDir, "launcher.py"), arg}
	l.process, err = p.cfg.Table.Start(proc.Spec{Path: p.cfg.Path, Argv: argv, Env: p.cfg.Env, Dir: p.cfg.Dir, User: p.cfg.User,
		Files: []*os.File{null, ends[0], ends[1], eventW, orderR}})
	for _, f := range []*os.File{null, ends[0], ends[1], eventW, orderR} {
		if f != nil {
			f.Close()
		}
	}
	if err != nil {
		l.close()
		return nil, err
	}
	p.mu.Lock()
	p.life = l
	p.mu.Unlock()
	err = p.greet(ctx, l, conn)
	if err != nil {
		l.process.Signal(syscall.SIGKILL)
		<-l.process.Done()
	}
	l.settle()
	l.mu.Lock()
	early := string(l.early)
	l.early, l.started = nil, true
	l.mu.Unlock()
	if err != nil {
		p.cfg.Stray(cell.Stderr, strings.ToValidUTF8(early, "\uFFFD"))
		l.close()
		return nil, err
	}
	return l, nil
}

// greet waits until the interpreter can execute.
func (p *Interpreter) greet(ctx context.Context, l *life, conn jupyter.Connection) error {
	stop := context.AfterFunc(ctx, func() { _ = l.events.SetReadDeadline(time.Unix(1, 0)) })
	r := bufio.NewReaderSize(l.events, 64<<10)
	kind, payload, err := readFrame(r)
	if stop() {
		_ = l.events.SetReadDeadline(time.Time{})
	}
	if err != nil || kind != 'H' {
		if ctx.Err() != nil {
			return fmt.Errorf("it did not come up in time: %w", ctx.Err())
		}
		return errors.New("it ended while starting; see the session's log")
	}
	if string(payload) == "shim" {
		go l.readEvents(r)
		return nil
	}
	close(l.readEnd)
	kctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan struct{})
	defer close(gone)
	go func() { // ends with the start, at the latest
		select {
		case <-l.process.Done():
			cancel()
		case <-gone:
		}
	}()
	var k *jupyter.Kernel
	if err := proc.AsUser(p.cfg.User, func() (err error) { // the sockets are in the user's private directory
		k, err = jupyter.Connect(kctx, conn, l.stray)
		return err
	}); err != nil {
		return err
	}
	l.kernel = k
	if _, err := k.Execute(kernelSetup, true, discard{l.stray}); err != nil {
		return err
	}
	return nil
}

// discard is the sink of the kernel's set-up.
type discard struct{ stray func(stream, text string) }

func (d discard) Text(s, t string)          { d.stray(s, t) }
func (d discard) TextNow(s, t string)       { d.stray(s, t) }
func (d discard) MediaNow(string, string)   {}
func (d discard) Congested() bool           { return false }
func (d discard) Relieved() <-chan struct{} { return nil }
func (d discard) Ask(bool) cell.Answer      { return cell.Answer{None: true} }

func (l *life) close() {
	for _, f := range []*os.File{l.events, l.orders} {
		if f != nil {
			f.Close()
		}
	}
	if l.kernel != nil {
		l.kernel.Close()
	}
	_ = proc.AsUser(l.user, func() error { // left-overs in a private directory harm nobody
		files, err := filepath.Glob(l.base + "[-.]*")
		for _, f := range files {
			_ = os.Remove(f)
		}
		return err
	})
}

// execute returns an error when the interpreter is gone.
func (l *life) execute(code string, sink cell.Sink) (int, error) {
	if l.kernel != nil {
		paused := &pauser{Sink: sink, process: l.process}
		return l.kernel.Execute(code, false, paused)
	}
	l.mu.Lock()
	l.serial++
	id := l.serial
	l.sink = sink
	l.mu.Unlock()
	select {
	case <-l.done: // of a cell that was given up
	default:
	}
	if err := l.order('x', map[string]any{"id": id, "code": code}); err != nil {
		return 0, jupyter.ErrLost
	}
	var exit int
	var err error
	select {
	case exit = <-l.done:
	case <-l.readEnd:
		err = jupyter.ErrLost
	}
	l.settle() // what child processes wrote to the descriptors belongs to this cell
	l.mu.Lock()
	l.sink = nil
	l.mu.Unlock()
	return exit, err
}

// settle returns when everything written to descriptors 1 and 2 so far was passed on.
func (l *life) settle() {
	for i, stream := range []string{cell.Stdout, cell.Stderr} {
		l.raw[i].Settle(func(b []byte) { l.bytes(stream, "raw"+stream, b) })
	}
}

func (l *life) complete(ctx context.Context, code string, cursor int) ([]string, error) {
	if l.kernel != nil {
		return l.kernel.Complete(ctx, code, cursor)
	}
	runes := []rune(code)
	l.mu.Lock()
	l.serial++
	id := l.serial
	l.mu.Unlock()
	if err := l.order('c', map[string]any{"id": id, "code": string(runes[:min(cursor, len(runes))])}); err != nil {
		return nil, jupyter.ErrLost
	}
	select {
	case m := <-l.matches:
		return m, nil
	case <-l.readEnd:
		return nil, jupyter.ErrLost
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// order sends the shim a frame.
func (l *life) order(kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	frame := append([]byte{kind}, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(b)))
	_, err = l.orders.Write(append(frame, b...))
	return err
}

func readFrame(r io.Reader) (byte, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes is too large", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return head[0], b, err
}

// bytes routes output to the running cell, or to the session's log between cells.
// decoder names whose half characters wait.
func (l *life) bytes(stream, decoder string, b []byte) {
	l.mu.Lock()
	if !l.started {
		l.early = append(l.early, b[:min(len(b), maxEarly-len(l.early))]...)
		l.mu.Unlock()
		return
	}
	d := l.text[decoder]
	if d == nil {
		d = &output.Decoder{}
		l.text[decoder] = d
	}
	text, sink := d.Decode(b), l.sink
	l.mu.Unlock()
	if text == "" {
		return
	}
	if sink == nil {
		l.stray(stream, text)
		return
	}
	sink.Text(stream, text)
}

// readEvents serves the shim until it ends. It waits while the cell's reader is behind; the
// pipe then fills and the shim waits, too.
func (l *life) readEvents(r io.Reader) {
	defer close(l.readEnd)
	for {
		kind, b, err := readFrame(r)
		if err != nil {
			return
		}
		switch kind {
		case 'o':
			l.bytes(cell.Stdout, cell.Stdout, b)
		case 'e':
			l.bytes(cell.Stderr, cell.Stderr, b)
		case 'i':
			l.question(b)
		case 'f':
			var f struct{ ID, Exit int }
			if json.Unmarshal(b, &f) == nil && f.ID == l.current() {
				l.done <- f.Exit
			}
		case 'c':
			var c struct {
				ID      int
				Matches []string
			}
			if json.Unmarshal(b, &c) == nil && c.ID == l.current() {
				select {
				case l.matches <- c.Matches:
				default: // nobody waits any more
				}
			}
		}
	}
}

func (l *life) current() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.serial
}

func (l *life) question(b []byte) {
	var q struct {
		ID       int
		Password bool
	}
	l.mu.Lock()
	sink := l.sink
	l.mu.Unlock()
	if json.Unmarshal(b, &q) != nil || sink == nil {
		return
	}
	go func() { // Ask returns with the run's end at the latest
		a := sink.Ask(q.Password)
		if !a.None {
			_ = l.order('a', map[string]any{"id": q.ID, "text": a.Text, "eof": a.EOF}) // a lost shim is seen by execute
		}
	}()
}

// pauser stops the kernel's process while the cell's reader is too far behind: a kernel
// cannot be made to wait by not reading, it would throw output away.
type pauser struct {
	cell.Sink
	process *proc.Process

	mu     sync.Mutex
	paused bool
}

func (p *pauser) TextNow(stream, text string) {
	p.Sink.TextNow(stream, text)
	p.check()
}

func (p *pauser) MediaNow(mime, data string) {
	p.Sink.MediaNow(mime, data)
	p.check()
}

func (p *pauser) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused || !p.Congested() {
		return
	}
	p.paused = true
	p.process.SignalOnly(syscall.SIGSTOP)
	go func() { // Relieved comes with the run's end at the latest
		select {
		case <-p.Relieved():
		case <-p.process.Done():
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.paused = false
		p.process.SignalOnly(syscall.SIGCONT)
	}()
}

// CursorAt turns a row and column (from 0, in characters) into a position in code; ok is
// false when code has no such place.
func CursorAt(code string, row, col int) (cursor int, ok bool) {
	lines := strings.Split(code, "\n")
	if row < 0 || col < 0 || row >= len(lines) || col > len([]rune(lines[row])) {
		return 0, false
	}
	for _, line := range lines[:row] {
		cursor += len([]rune(line)) + 1
	}
	return cursor + col, true
}
