package webterm

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/terminal"
)

// The bounds of one connection.
const (
	maxMessage = 256 << 10 // from the page
	// ahead is how much output may be under way to a page that has not shown it; a program that writes faster waits.
	ahead     = 1 << 20
	sendTime  = 10 * time.Second
	beatEvery = 25 * time.Second
)

// begin and last are what the server says besides the terminal's bytes.
type begin struct {
	Begin  bool   `json:"begin"`
	Replay bool   `json:"replay"`
	Window int    `json:"window"`          // bytes that the page may send beyond what was taken
	Typed  *int64 `json:"typed,omitempty"` // bytes of this page that this shell has taken before; what it sent beyond is lost
}

type taken struct {
	Typed int64 `json:"typed"`
}

type last struct {
	End     *ending `json:"end,omitempty"`
	Refused string  `json:"refused,omitempty"`
}

type ending struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
}

// word is what the page says besides what is typed.
type word struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
	Read int64  `json:"read"`
	Drop bool   `json:"drop"` // what was sent and is not typed yet
}

func (s *Server) socket(w http.ResponseWriter, q *http.Request) {
	rc := http.NewResponseController(w)
	_, _ = rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{}) // a socket has them; from here on each message has its own
	// Accept refuses pages of other origins.
	c, err := websocket.Accept(w, q, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		s.cfg.Log.Debug("a WebSocket was refused", "err", err)
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(maxMessage)
	v := &view{c: c, read: make(chan struct{}, 1), input: newInbox()}
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	name, err := terminal.Name(q.URL.Query().Get("terminal"))
	rows, cols := size(q, "rows"), size(q, "cols")
	var t *terminal.Terminal
	var out *terminal.Watcher
	if err == nil {
		t, out, err = s.cfg.Terminals.Attach(name, rows, cols, false)
	}
	if err != nil {
		_ = v.say(ctx, last{Refused: words(err)}) // a page that left needs none
		_ = c.Close(websocket.StatusTryAgainLater, "refused")
		return
	}
	defer out.Detach()
	k, known := s.keyboard(q.URL.Query().Get("page"), t)
	if k.take(ctx, cancel) != nil {
		return
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	hello := begin{Begin: true, Replay: out.Replays(), Window: window}
	if known {
		hello.Typed = &k.typed
	}
	if v.say(ctx, hello) != nil {
		k.release()
		return
	}
	work.Go(func() {
		defer k.release()
		if v.typeIn(ctx, k) != nil {
			cancel()
		}
	})
	if out.Replays() && rows > 1 && cols > 0 {
		// A program that fills the screen draws it anew when the size changes, and only then.
		_ = t.Resize(rows-1, cols)
		_ = t.Resize(rows, cols)
	}
	work.Go(func() {
		defer cancel()
		v.listen(ctx, t)
	})
	work.Go(func() {
		defer cancel()
		v.stayAlive(ctx)
	})
	if v.show(ctx, out) {
		st := t.Status()
		_ = v.say(ctx, last{End: &ending{Code: st.Code, Signal: int(st.Signal)}})
		_ = c.Close(websocket.StatusNormalClosure, "the shell has ended")
	}
}

// words are an error's with its next step.
func words(err error) string {
	text := err.Error()
	if next := fault.NextOf(err); next != "" {
		text += ": " + next
	}
	return text
}

func size(q *http.Request, name string) uint16 {
	n, err := strconv.ParseUint(q.URL.Query().Get(name), 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// view is one page that shows a terminal.
type view struct {
	c     *websocket.Conn
	shown atomic.Int64  // bytes that the page says it has shown
	read  chan struct{} // told when that has changed
	input *inbox
}

func (v *view) say(ctx context.Context, what any) error {
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	return v.c.Write(ctx, websocket.MessageText, b)
}

// show sends the terminal's output; ended reports that the shell has ended.
func (v *view) show(ctx context.Context, out *terminal.Watcher) (ended bool) {
	sent := int64(0)
	for {
		for sent-v.shown.Load() > ahead {
			select {
			case <-v.read:
			case <-out.Gone(): // it held up the program for too long
				return false
			case <-ctx.Done():
				return false
			}
		}
		select {
		case b, ok := <-out.Output():
			if !ok {
				return true
			}
			wctx, cancel := context.WithTimeout(ctx, sendTime)
			err := v.c.Write(wctx, websocket.MessageBinary, b)
			cancel()
			if err != nil {
				return false
			}
			sent += int64(len(b))
		case <-out.Gone():
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// listen takes what the page says until it leaves.
func (v *view) listen(ctx context.Context, t *terminal.Terminal) {
	for {
		kind, b, err := v.c.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if v.input.put(ctx, b) != nil {
				return
			}
			continue
		}
		var w word
		if json.Unmarshal(b, &w) != nil {
			_ = v.c.Close(websocket.StatusPolicyViolation, "this is not what the page says")
			return
		}
		if w.Rows > 0 && w.Cols > 0 {
			_ = t.Resize(w.Rows, w.Cols) // a terminal that has ended says so by its output
		}
		if w.Read > v.shown.Load() {
			v.shown.Store(w.Read)
			tell(v.read)
		}
		if w.Drop {
			v.input.drop()
		}
	}
}

// stayAlive sends a word now and then, so that nobody on the way takes a quiet connection for a dead one. It is no ping: the
// answer would be bytes from the page, which is what counts as somebody using the session. That a page has vanished is seen by
// the TCP connection that it has, at the proxy.
func (v *view) stayAlive(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if v.say(ctx, struct {
			Beat bool `json:"beat"`
		}{true}) != nil {
			return
		}
	}
}
