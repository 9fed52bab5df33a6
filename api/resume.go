package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"sync"

	"github.com/coder/websocket"
)

// resumption takes up an execution again after its connection broke.
type resumption struct {
	c      *Client
	path   string
	begin  ExecuteRequest
	outage *Outage

	mu sync.Mutex
	// seq is that of the last result that we have.
	seq int64
	// plain is set by a manager that knows no resumption: its results have no Seq.
	plain bool
	// asked is the Seq of the last question, input its answer; nil while there is none.
	asked int64
	input *string
}

// ExecuteThrough is Execute for code that outlives the connection: when the manager goes away, the stream goes on at the next one that
// answers, and no output is lost or comes twice. The outage bounds each time without an answer. Nobody interrupts the code when the
// stream is closed; InterruptRun does.
func (c *Client) ExecuteThrough(ctx context.Context, session string, e Execute, o *Outage) (s *ExecuteStream, runID string, err error) {
	path, err := sessionPath("/stream/session", session, "execute")
	if err != nil {
		return nil, "", err
	}
	r := &resumption{c: c, path: path, outage: o}
	if r.begin, err = e.request(); err != nil {
		return nil, "", err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	runID = ResumePrefix + hex.EncodeToString(id[:])
	r.begin.RunID, r.begin.Resume = &runID, true
	conn, err := c.beginExecute(ctx, path, r.begin)
	if err != nil {
		if conn, err = r.reconnect(ctx, err); err != nil {
			return nil, "", err
		}
	}
	return startStream(ctx, conn, r), runID, nil
}

// errRestarting means that the manager restarts.
var errRestarting = errors.New("the manager restarts")

// reconnect opens the stream again. Beginning is safe to repeat while nothing was seen of the run: its id is ours, and the runner
// starts a run of one id once.
func (r *resumption) reconnect(ctx context.Context, cause error) (*websocket.Conn, error) {
	for {
		r.mu.Lock()
		plain := r.plain
		r.mu.Unlock()
		if plain {
			return nil, cause
		}
		if err := r.outage.Wait(ctx, cause); err != nil {
			return nil, err
		}
		req := r.begin
		r.mu.Lock()
		if req.From = r.seq; r.seq > 0 {
			req.Mode, req.Code, req.Options = ModeContinue, "", json.RawMessage("{}")
		}
		r.mu.Unlock()
		conn, err := r.c.beginExecute(ctx, r.path, req)
		if err == nil {
			return conn, nil
		}
		cause = err
	}
}

// take looks at a result before it is passed on; pass is false for a question that was asked before.
func (r *resumption) take(ctx context.Context, s *ExecuteStream, res *ExecuteResult) (pass bool, err error) {
	if res.Status == ExecRestarting {
		return false, errRestarting
	}
	r.outage.Over()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plain = res.Seq == 0
	if res.Status != ExecWaitingInput || r.plain {
		return true, nil
	}
	if res.Seq != r.asked {
		r.asked, r.input = res.Seq, nil
		return true, nil
	}
	if r.input != nil { // the answer may not have arrived
		r.send(ctx, s, ExecuteMessage{Ack: res.Seq, Input: r.input})
	}
	res.Status = ExecContinued // whoever was asked is still at it
	return len(res.Console) > 0, nil
}

// delivered acknowledges a result that was passed on.
func (r *resumption) delivered(ctx context.Context, s *ExecuteStream, res ExecuteResult) {
	if res.Seq == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq = res.Seq
	r.send(ctx, s, ExecuteMessage{Ack: res.Seq})
}

// answer keeps an answer until the next question, because a connection that breaks now has the question asked again.
func (r *resumption) answer(ctx context.Context, s *ExecuteStream, text string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.plain {
		return s.write(ctx, []byte(text))
	}
	r.input = &text
	r.send(ctx, s, ExecuteMessage{Input: &text})
	return nil
}

// send writes a message; what is lost with the connection is made good by the next one.
func (r *resumption) send(ctx context.Context, s *ExecuteStream, m ExecuteMessage) {
	if b, err := json.Marshal(m); err == nil {
		_ = s.write(ctx, b) // the reader sees it when the connection broke
	}
}
