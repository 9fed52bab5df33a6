package follow

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/coder/websocket"

	"berth.dev/berth/api"
)

// executeAhead is how many results are read before they are asked for.
const executeAhead = 16

// Execution is code that outlives the connection to it.
type Execution struct {
	resumption
	cancel  context.CancelFunc
	results chan api.ExecuteResult
	// err is set before results is closed.
	err error

	connMu sync.Mutex
	conn   *websocket.Conn
}

// resumption takes up an execution again after its connection broke.
type resumption struct {
	c       *api.Client
	session string
	begin   api.ExecuteRequest
	outage  *Outage

	mu sync.Mutex
	// seq is that of the last result that we have.
	seq int64
	// plain is set by a manager that knows no resumption: its results have no Seq.
	plain bool
	// asked is the Seq of the last question, input its answer; nil while there is none.
	asked int64
	input *string
}

// Execute starts code that outlives the connection: when the manager goes away, the stream goes on at the next one that answers, and no
// output is lost or comes twice. The outage bounds each time without an answer. Nobody interrupts the code when the stream is closed;
// InterruptRun with the run id does.
func Execute(ctx context.Context, c *api.Client, session string, e api.Execute, o *Outage) (s *Execution, runID string, err error) {
	s = &Execution{results: make(chan api.ExecuteResult, executeAhead), resumption: resumption{c: c, session: session, outage: o}}
	if s.begin, err = e.Request(); err != nil {
		return nil, "", fmt.Errorf("execute in session %s: %w", session, err)
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	runID = api.ResumePrefix + hex.EncodeToString(id[:])
	s.begin.RunID, s.begin.Resume = &runID, true
	if s.conn, err = c.BeginExecute(ctx, session, s.begin); err != nil {
		if s.conn, err = s.reconnect(ctx, err); err != nil {
			return nil, "", err
		}
	}
	ctx, s.cancel = context.WithCancel(ctx)
	go s.read(ctx)
	return s, runID, nil
}

// Results delivers the flushes in order; it is closed after the last, then Err tells why.
func (s *Execution) Results() <-chan api.ExecuteResult { return s.results }

// Err is valid once Results is closed; nil after the status finished.
func (s *Execution) Err() error { return s.err }

// Close ends the stream and waits for its reader.
func (s *Execution) Close() error {
	s.cancel()
	s.connMu.Lock()
	conn := s.conn
	s.connMu.Unlock()
	_ = conn.CloseNow()
	for range s.results { //nolint:revive // The reader closes the channel when it is gone.
	}
	return nil
}

// SendInput answers the status waiting-input; the text has no line end. api.InputEOF ends the input.
func (s *Execution) SendInput(ctx context.Context, text string) error { return s.answer(ctx, s, text) }

// read reads one connection after the other until the code has ended.
func (s *Execution) read(ctx context.Context) {
	defer close(s.results)
	for {
		err := s.readOnce(ctx)
		if err == nil || ctx.Err() != nil {
			s.err = err
			return
		}
		conn, err := s.reconnect(ctx, err)
		if err != nil {
			s.err = err
			return
		}
		s.connMu.Lock()
		_ = s.conn.CloseNow()
		s.conn = conn
		s.connMu.Unlock()
	}
}

// readOnce reads one connection; nil means that the code has ended.
func (s *Execution) readOnce(ctx context.Context) error {
	for {
		_, b, err := s.conn.Read(ctx)
		if err != nil {
			return fmt.Errorf("execute: the stream broke: %w", err)
		}
		var r api.ExecuteResult
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("execute: read result: %w", err)
		}
		pass, err := s.take(ctx, s, &r)
		if err != nil {
			return err
		}
		if pass {
			select {
			case s.results <- r:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if r.Status == api.ExecFinished {
			return nil
		}
		s.delivered(ctx, s, r)
	}
}

func (s *Execution) write(ctx context.Context, b []byte) error {
	s.connMu.Lock()
	conn := s.conn
	s.connMu.Unlock()
	if err := conn.Write(ctx, websocket.MessageText, b); err != nil {
		return fmt.Errorf("send input: %w", err)
	}
	return nil
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
			req.Mode, req.Code, req.Options = api.ModeContinue, "", json.RawMessage("{}")
		}
		r.mu.Unlock()
		conn, err := r.c.BeginExecute(ctx, r.session, req)
		if err == nil {
			return conn, nil
		}
		cause = err
	}
}

// take looks at a result before it is passed on; pass is false for a question that was asked before.
func (r *resumption) take(ctx context.Context, s *Execution, res *api.ExecuteResult) (pass bool, err error) {
	if res.Status == api.ExecRestarting {
		return false, errRestarting
	}
	r.outage.Over()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plain = res.Seq == 0
	if res.Status != api.ExecWaitingInput || r.plain {
		return true, nil
	}
	if res.Seq != r.asked {
		r.asked, r.input = res.Seq, nil
		return true, nil
	}
	if r.input != nil { // the answer may not have arrived
		r.send(ctx, s, api.ExecuteMessage{Ack: res.Seq, Input: r.input})
	}
	res.Status = api.ExecContinued // whoever was asked is still at it
	return len(res.Console) > 0, nil
}

// delivered acknowledges a result that was passed on.
func (r *resumption) delivered(ctx context.Context, s *Execution, res api.ExecuteResult) {
	if res.Seq == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq = res.Seq
	r.send(ctx, s, api.ExecuteMessage{Ack: res.Seq})
}

// answer keeps an answer until the next question, because a connection that breaks now has the question asked again.
func (r *resumption) answer(ctx context.Context, s *Execution, text string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.plain {
		return s.write(ctx, []byte(text))
	}
	r.input = &text
	r.send(ctx, s, api.ExecuteMessage{Input: &text})
	return nil
}

// send writes a message; what is lost with the connection is made good by the next one.
func (r *resumption) send(ctx context.Context, s *Execution, m api.ExecuteMessage) {
	if b, err := json.Marshal(m); err == nil {
		_ = s.write(ctx, b) // the reader sees it when the connection broke
	}
}
