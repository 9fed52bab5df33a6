package nvmlclient

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// The bounds of what a helper says on standard error.
const (
	maxWords = 500 // bytes of a line
	maxTail  = 4   // lines that an error quotes
	maxLines = 20  // lines of a minute that the log gets
)

// words passes what a helper says on standard error on to the log, within bounds, and remembers the last lines.
type words struct {
	log   *slog.Logger
	clock chassis.Clock

	mu    sync.Mutex
	last  []string
	begun time.Time // of the minute
	lines int       // in it
}

// read takes everything until the end. It never stops before: the helper must not block because its words are odd.
func (w *words) read(from io.Reader) {
	lines := bufio.NewReaderSize(from, 4<<10)
	for rest := false; ; {
		text, err := lines.ReadSlice('\n')
		if !rest && len(text) > 0 {
			w.take(string(text))
		}
		rest = errors.Is(err, bufio.ErrBufferFull) // what follows is of the same line
		if err != nil && !rest {
			return
		}
	}
}

func (w *words) take(text string) {
	line := fault.Clip(strings.ToValidUTF8(strings.TrimSpace(text), "?"), maxWords)
	if line == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.last) == maxTail {
		w.last = w.last[1:]
	}
	w.last = append(w.last, line)
	if now := w.clock.Now(); now.Sub(w.begun) >= time.Minute {
		w.begun, w.lines = now, 0
	}
	w.lines++
	switch {
	case w.lines <= maxLines:
		w.log.Warn("the helper for NVIDIA GPUs said", "line", line)
	case w.lines == maxLines+1:
		w.log.Warn("the helper for NVIDIA GPUs says more than is logged in a minute", "lines", maxLines)
	}
}

// quote returns the last lines for an error, "" when there are none.
func (w *words) quote() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.last) == 0 {
		return ""
	}
	return "; it said: " + strings.Join(w.last, " | ")
}
