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
	done  chan struct{}
}

const mirrorBuffer = 1 << 20

func newMirror(w io.Writer, drop bool) *mirror {
	m := &mirror{w: w, drop: drop, done: make(chan struct{})}
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
	return len(p), nil
}

func (m *mirror) loop() {
	defer close(m.done)
	var out []byte
	for {
		m.mu.Lock()
		for len(m.buf) == 0 && !m.ended {
			m.space.Wait()
		}
		if len(m.buf) == 0 {
			m.mu.Unlock()
			return
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
	m.space.Broadcast()
	m.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-m.done:
	case <-timer.C:
	}
}
