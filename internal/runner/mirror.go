package runner

import (
	"io"
	"sync"
	"time"
)

// mirror copies output to the container's own stdout or stderr, where the engine keeps it for
// "session logs". An engine that does not read must not hold up a cell: a mirror that may
// drop leaves out what does not fit its buffer; one that may not makes its writer wait.
type mirror struct {
	w    io.Writer
	drop bool

	mu    sync.Mutex
	space *sync.Cond
	buf   []byte
	lost  bool
	ended bool
	hurry chan struct{} // has an item when what is gathered is to be written now
	done  chan struct{}
}

const (
	mirrorBuffer = 1 << 20
	// A mirror gathers for mirrorPause, or up to mirrorPiece bytes: the engine's work on every piece takes the
	// processor from the cell that is still running.
	mirrorPause = 10 * time.Millisecond
	mirrorPiece = 64 << 10
)

func newMirror(w io.Writer, drop bool) *mirror {
	m := &mirror{w: w, drop: drop, hurry: make(chan struct{}, 1), done: make(chan struct{})}
	m.space = sync.NewCond(&m.mu)
	go m.loop()
	return m
}

// Write never fails.
func (m *mirror) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.buf) > 0 && len(m.buf)+len(p) > mirrorBuffer && !m.ended {
		if m.drop {
			m.lost = true
			return len(p), nil
		}
		m.space.Wait()
	}
	m.buf = append(m.buf, p...)
	m.space.Broadcast()
	if len(m.buf) >= mirrorPiece {
		m.now()
	}
	return len(p), nil
}

func (m *mirror) now() {
	select {
	case m.hurry <- struct{}{}:
	default:
	}
}

func (m *mirror) loop() {
	defer close(m.done)
	var out []byte
	pause := time.NewTimer(mirrorPause)
	defer pause.Stop()
	for {
		m.mu.Lock()
		for len(m.buf) == 0 && !m.ended {
			m.space.Wait()
		}
		if len(m.buf) == 0 {
			m.mu.Unlock()
			return
		}
		if len(m.buf) < mirrorPiece && !m.ended {
			m.mu.Unlock()
			pause.Reset(mirrorPause)
			select {
			case <-pause.C:
			case <-m.hurry:
			}
			m.mu.Lock()
		}
		out, m.buf = m.buf, out[:0]
		if m.lost {
			out = append(out, "\n[output left out: the log is not read fast enough]\n"...)
			m.lost = false
		}
		m.space.Broadcast()
		m.mu.Unlock()
		_, _ = m.w.Write(out) // nobody else could be told
	}
}

// Close writes what is left, for at most limit.
func (m *mirror) Close(limit time.Duration) {
	m.mu.Lock()
	m.ended = true
	m.now()
	m.space.Broadcast()
	m.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-m.done:
	case <-timer.C:
	}
}
