// Package terminal keeps interactive shells that outlive the connection to them: whoever attaches
// again sees the recent output and goes on.
//
// It speaks no protocol; runner carries bytes between a Terminal and a stream.
package terminal

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/proc"
)

// stuck is how long a watcher may hold up the shell's output before it is cut off.
const stuck = 10 * time.Second

// Config says what terminals run.
type Config struct {
	Shell      string // file
	Dir        string
	Env        []string
	User       *proc.Credential
	Table      *proc.Table
	Scrollback int
	Max        int
}

// Set holds the terminals of a session by name.
type Set struct {
	cfg Config
	mu  sync.Mutex
	all map[string]*Terminal
}

// NewSet returns an empty set.
func NewSet(cfg Config) *Set { return &Set{cfg: cfg, all: map[string]*Terminal{}} }

// Terminal is one shell.
type Terminal struct {
	master  *os.File
	process *proc.Process
	typing  sync.Mutex // held while a limit on writing is set

	mu       sync.Mutex
	recent   []byte
	limit    int
	watchers map[*Watcher]struct{}
	ended    bool
}

// Watcher is one attached reader.
type Watcher struct {
	t    *Terminal
	out  chan []byte
	gone chan struct{}
	once sync.Once
	old  bool
}

// Attach returns a watcher of the named terminal, starting it when it is not there.
func (s *Set) Attach(name string, rows, cols uint16, restart bool) (*Terminal, *Watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[name]
	if t != nil && restart {
		t.process.Signal(syscall.SIGHUP)
		t.process.End(time.Second)
		t = nil
	}
	if t != nil {
		if w := t.watch(); w != nil {
			if rows > 0 && cols > 0 {
				_ = t.Resize(rows, cols) // a terminal that just ended says so through the watcher
			}
			return t, w, nil
		}
	}
	live := 0
	for n, other := range s.all {
		if other.over() {
			delete(s.all, n)
			continue
		}
		live++
	}
	if live >= s.cfg.Max {
		return nil, nil, fault.Exhaustedf("the session has %d terminals already", live).WithNext("leave one of the shells first")
	}
	t, err := s.start(rows, cols)
	if err != nil {
		return nil, nil, err
	}
	s.all[name] = t
	w := t.watch()
	if w == nil {
		return nil, nil, fault.Unavailablef("the shell %s ended at once", s.cfg.Shell)
	}
	return t, w, nil
}

func (s *Set) start(rows, cols uint16) (*Terminal, error) {
	if s.cfg.Shell == "" {
		return nil, fault.Unavailablef("this image has no shell").
			WithNext("run the image's own program with exec, or choose an image with a shell")
	}
	if rows == 0 || cols == 0 {
		rows, cols = 24, 80
	}
	var master, slave *os.File
	err := proc.AsUser(s.cfg.User, func() (err error) {
		master, slave, err = proc.OpenPTY(rows, cols)
		return err
	})
	if err != nil {
		return nil, fault.Unavailablef("no terminal could be opened in the session").WithCause(err)
	}
	defer slave.Close()
	p, err := s.cfg.Table.Start(proc.Spec{Path: s.cfg.Shell, Argv: []string{s.cfg.Shell}, Env: s.cfg.Env, Dir: s.cfg.Dir, User: s.cfg.User,
		Files: []*os.File{slave, slave, slave}, TTY: true})
	if err != nil {
		master.Close()
		return nil, fault.Unavailablef("the shell could not be started").WithCause(err)
	}
	t := &Terminal{master: master, process: p, limit: s.cfg.Scrollback, watchers: map[*Watcher]struct{}{}}
	go t.read()
	return t, nil
}

func (t *Terminal) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// read copies output until the terminal is closed by all its processes, or its shell ended.
func (t *Terminal) read() {
	drain := proc.NewDrain(t.master, func(b []byte) { t.spread(append([]byte(nil), b...)) })
	select {
	case <-drain.Done():
	case <-t.process.Done(): // the shell's end is the terminal's end, even when a child keeps it open
		drain.Settle(func([]byte) {}) // what the shell wrote is passed on first
	}
	t.process.Signal(syscall.SIGHUP)
	<-t.process.Done()
	t.mu.Lock()
	t.ended = true
	for w := range t.watchers {
		close(w.out)
	}
	t.watchers = nil
	t.mu.Unlock()
	t.master.Close()
	<-drain.Done()
}

func (t *Terminal) spread(b []byte) {
	t.mu.Lock()
	t.recent = append(t.recent, b...)
	if over := len(t.recent) - t.limit; over > 0 {
		t.recent = append(t.recent[:0], t.recent[over:]...)
	}
	watchers := make([]*Watcher, 0, len(t.watchers))
	for w := range t.watchers {
		watchers = append(watchers, w)
	}
	t.mu.Unlock()
	for _, w := range watchers {
		select {
		case w.out <- b:
			continue
		case <-w.gone:
			continue
		default:
		}
		timer := time.NewTimer(stuck)
		select {
		case w.out <- b:
		case <-w.gone:
		case <-timer.C:
			w.Detach()
		}
		timer.Stop()
	}
}

// watch returns nil when the terminal has ended.
func (t *Terminal) watch() *Watcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil
	}
	w := &Watcher{t: t, out: make(chan []byte, 64), gone: make(chan struct{})}
	if len(t.recent) > 0 {
		w.old = true
		w.out <- append([]byte(nil), t.recent...)
	}
	t.watchers[w] = struct{}{}
	return w
}

// Output gives the recent output first, then what comes; it is closed when the shell has ended.
func (w *Watcher) Output() <-chan []byte { return w.out }

// Replays reports whether the first that Output gives was shown before: the terminal was there already.
func (w *Watcher) Replays() bool { return w.old }

// Gone is closed when the watcher was detached, by itself or because it was stuck.
func (w *Watcher) Gone() <-chan struct{} { return w.gone }

// Detach ends the watching; the shell goes on.
func (w *Watcher) Detach() {
	w.once.Do(func() {
		close(w.gone)
		w.t.mu.Lock()
		delete(w.t.watchers, w)
		w.t.mu.Unlock()
	})
}

// Write types into the terminal.
func (t *Terminal) Write(b []byte) (int, error) {
	n := 0
	for {
		m, err := t.master.Write(b[n:])
		if n += m; !errors.Is(err, os.ErrDeadlineExceeded) { // of somebody else's WriteFor
			return n, err
		}
	}
}

// WriteFor types like Write, for at most limit: a program that does not read leaves os.ErrDeadlineExceeded and the rest.
func (t *Terminal) WriteFor(b []byte, limit time.Duration) (int, error) {
	t.typing.Lock()
	defer t.typing.Unlock()
	_ = t.master.SetWriteDeadline(time.Now().Add(limit)) // fails when the terminal has ended, as Write will
	n, err := t.master.Write(b)
	_ = t.master.SetWriteDeadline(time.Time{})
	return n, err
}

// DropInput throws away what was typed and no program has read.
func (t *Terminal) DropInput() error { return proc.DropInput(t.master) }

// Resize changes the size of the window.
func (t *Terminal) Resize(rows, cols uint16) error { return proc.SetSize(t.master, rows, cols) }

// Signal sends a signal to the shell's group.
func (t *Terminal) Signal(sig syscall.Signal) { t.process.Signal(sig) }

// Status tells how the shell ended; it waits for that.
func (t *Terminal) Status() proc.Status { return t.process.Status() }

// Hangup ends every terminal's shell.
func (s *Set) Hangup() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.all {
		t.process.Signal(syscall.SIGHUP)
	}
}

// Name checks the name of a terminal.
func Name(n string) (string, error) {
	if n == "" {
		return "main", nil
	}
	if len(n) > 64 {
		return "", fmt.Errorf("the terminal's name has more than 64 bytes")
	}
	return n, nil
}
