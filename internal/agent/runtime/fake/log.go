package fake

import (
	"bytes"
	"context"
	"io"
	"time"

	"berth.dev/berth/internal/agent/runtime"
)

// log is a container's bounded output in lines. The engine's mutex guards it.
type log struct {
	max     int
	lines   []line
	size    int
	first   int // number of the oldest kept line
	over    bool
	changed chan struct{} // closed at the next change; nil while nobody waits
}

type line struct {
	at   time.Time
	text []byte // with its newline
}

func (l *log) write(at time.Time, text string) {
	if text == "" {
		return
	}
	for _, t := range bytes.SplitAfter([]byte(text), []byte("\n")) {
		if len(t) == 0 {
			continue
		}
		l.lines = append(l.lines, line{at, t})
		l.size += len(t)
	}
	for l.size > l.max && len(l.lines) > 1 {
		l.size -= len(l.lines[0].text)
		l.lines = l.lines[1:]
		l.first++
	}
	l.wake()
}

func (l *log) finish() {
	l.over = true
	l.wake()
}

func (l *log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

func (l *log) wait() <-chan struct{} {
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// logReader reads a container's log; followed, until the container ends.
type logReader struct {
	e      *Engine
	c      *container
	ctx    context.Context
	cancel context.CancelFunc
	next   int // number of the next line
	opt    runtime.LogOptions
	rest   []byte
}

func (e *Engine) readLog(ctx context.Context, c *container, opt runtime.LogOptions) io.ReadCloser {
	r := &logReader{e: e, c: c, opt: opt}
	r.ctx, r.cancel = context.WithCancel(ctx)
	if n := len(c.log.lines); opt.Tail > 0 && n > opt.Tail {
		r.next = c.log.first + n - opt.Tail
	}
	return r
}

func (r *logReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		text, wait := r.take()
		if text != nil {
			r.rest = text
			break
		}
		if wait == nil {
			return 0, io.EOF
		}
		select {
		case <-wait:
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// take returns the next line, or what to wait for, or neither at the end.
func (r *logReader) take() ([]byte, <-chan struct{}) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	l := &r.c.log
	r.next = max(r.next, l.first)
	for r.next < l.first+len(l.lines) {
		x := l.lines[r.next-l.first]
		r.next++
		if !x.at.Before(r.opt.Since) {
			return x.text, nil
		}
	}
	if l.over || !r.opt.Follow {
		return nil, nil
	}
	return nil, l.wait()
}

func (r *logReader) Close() error {
	r.cancel()
	return nil
}
