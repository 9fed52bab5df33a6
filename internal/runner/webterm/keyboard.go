package webterm

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"berth.dev/berth/internal/runner/terminal"
)

// The bounds of what is typed.
const (
	// window is how many bytes a page may send ahead of what the terminal has taken. A page that keeps to it is always listened
	// to; one that does not waits.
	window   = 256 << 10
	tellFrom = window / 4 // bytes taken of which the page is told even when more wait
	tellRest = 4 << 10    // bytes taken of which it is told when nothing waits: more than a hand types
	stroke   = 16 << 10   // bytes for the terminal at a time
	patience = 250 * time.Millisecond
	maxPages = 64
)

// keyboard is what one page has typed into one shell. It outlives the page's connection, so that a page whose connection broke
// knows where to go on.
type keyboard struct {
	t     *terminal.Terminal
	turn  chan struct{} // holds one while a connection types
	typed int64         // bytes that the terminal has taken, or the page has taken back; who has the turn uses it
	used  int64         // the number of the visit that used it last; Server.mu guards it

	mu    sync.Mutex
	leave context.CancelFunc // of the connection that has the turn, or waits for it
}

func newKeyboard(t *terminal.Terminal) *keyboard {
	return &keyboard{t: t, turn: make(chan struct{}, 1)}
}

// keyboard returns that of a page, which says a name that it made up; known tells that it typed into this shell before.
func (s *Server) keyboard(page string, t *terminal.Terminal) (k *keyboard, known bool) {
	if page == "" || len(page) > 64 {
		return newKeyboard(t), false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visits++
	k = s.keyboards[page]
	if known = k != nil && k.t == t; !known {
		if delete(s.keyboards, page); len(s.keyboards) >= maxPages {
			oldest := ""
			for name, o := range s.keyboards {
				if oldest == "" || o.used < s.keyboards[oldest].used {
					oldest = name
				}
			}
			delete(s.keyboards, oldest)
		}
		k = newKeyboard(t)
		s.keyboards[page] = k
	}
	k.used = s.visits
	return k, known
}

// take waits for the turn to type, which it takes from another connection of the same page: that one is broken, whether its end
// has been seen here or not.
func (k *keyboard) take(ctx context.Context, leave context.CancelFunc) error {
	k.mu.Lock()
	other := k.leave
	k.leave = leave
	k.mu.Unlock()
	if other != nil {
		other()
	}
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *keyboard) release() { <-k.turn }

// inbox holds what a page has sent and the terminal has not taken.
type inbox struct {
	more chan struct{} // told when there is something to do for who takes
	room chan struct{} // told when something was taken

	mu      sync.Mutex
	bytes   []byte
	emptied bool // by the page, which who takes does not know yet
	dropped int  // bytes that went with that
}

func newInbox() *inbox { return &inbox{more: make(chan struct{}, 1), room: make(chan struct{}, 1)} }

func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // told already
	}
}

// put adds what was typed. It waits only for a page that sends more than it may.
func (i *inbox) put(ctx context.Context, b []byte) error {
	for {
		i.mu.Lock()
		if len(i.bytes) == 0 || len(i.bytes)+len(b) <= window {
			i.bytes = append(i.bytes, b...)
			i.mu.Unlock()
			tell(i.more)
			return nil
		}
		i.mu.Unlock()
		select {
		case <-i.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drop empties the inbox.
func (i *inbox) drop() {
	i.mu.Lock()
	i.emptied, i.dropped, i.bytes = true, i.dropped+len(i.bytes), nil
	i.mu.Unlock()
	tell(i.more)
	tell(i.room)
}

// take waits for something to type; it returns nothing when the inbox was emptied.
func (i *inbox) take(ctx context.Context) ([]byte, error) {
	for {
		i.mu.Lock()
		n := min(len(i.bytes), stroke)
		b, emptied := i.bytes[:n:n], i.emptied
		if i.bytes = i.bytes[n:]; len(i.bytes) == 0 {
			i.bytes = nil
		}
		i.mu.Unlock()
		if n > 0 || emptied {
			tell(i.room)
			return b, nil
		}
		select {
		case <-i.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// cleared reports whether the inbox was emptied; what was taken from it before and is not typed goes the same way.
func (i *inbox) cleared() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.emptied
}

// settle tells how many bytes wait, and once that the inbox was emptied and what it held.
func (i *inbox) settle() (left int, emptied bool, dropped int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	emptied, dropped = i.emptied, i.dropped
	i.emptied, i.dropped = false, 0
	return len(i.bytes), emptied, dropped
}

// typeIn types what the page sends and tells it how far that is. A program that reads nothing holds it up, and nothing else.
func (v *view) typeIn(ctx context.Context, k *keyboard) error {
	told := k.typed
	for {
		b, err := v.input.take(ctx)
		if err != nil {
			return err
		}
		for len(b) > 0 && !v.input.cleared() {
			n, err := k.t.WriteFor(b, patience)
			b = b[n:]
			k.typed += int64(n)
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return nil // the terminal has ended, which its output says
			}
			if ctx.Err() != nil {
				return ctx.Err() // the page sends the rest again
			}
		}
		left, emptied, dropped := v.input.settle()
		if emptied {
			k.typed += int64(len(b) + dropped)
			_ = k.t.DropInput() // or the key that interrupts the program waits behind it; a terminal that has ended says so by its output
		}
		if news := k.typed - told; emptied || news >= tellFrom || left == 0 && news >= tellRest {
			told = k.typed
			if err := v.say(ctx, taken{told}); err != nil {
				return err
			}
		}
	}
}
