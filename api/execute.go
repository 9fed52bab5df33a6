package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/coder/websocket"
)

// Modes of execution.
const (
	ModeQuery    = "query"
	ModeBatch    = "batch"
	ModeInput    = "input"
	ModeContinue = "continue"
)

// Statuses of an execution.
const (
	ExecContinued     = "continued"
	ExecWaitingInput  = "waiting-input"
	ExecCleanFinished = "clean-finished"
	ExecBuildFinished = "build-finished"
	ExecFinished      = "finished"
	ExecTimeout       = "exec-timeout"
	ExecError         = "error"
	ExecRestarting    = "server-restarting"
)

// InputEOF, sent as the whole text of an input, says that the input has ended: the
// program sees the end of its standard input, Python raises EOFError.
const InputEOF = "\x04"

// BatchCommands are the steps of batch mode. nil skips a step, "*" stands for the image's own way.
type BatchCommands struct {
	Clean    *string `json:"clean"`
	Build    *string `json:"build"`
	BuildLog bool    `json:"buildLog"`
	Exec     *string `json:"exec"`
}

// Execute is what to run.
type Execute struct {
	Mode string
	Code string
	// Batch is used in batch mode only.
	Batch *BatchCommands
}

// ConsoleItem is one piece of output. Type is stdout, stderr, html, log or media.
type ConsoleItem struct {
	Type string
	Text string
	// Mime and Data are set for media.
	Mime string
	Data string
}

// UnmarshalJSON reads the pair form of the wire.
func (i *ConsoleItem) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("console item has %d members, want 2", len(pair))
	}
	*i = ConsoleItem{}
	if err := json.Unmarshal(pair[0], &i.Type); err != nil {
		return err
	}
	if i.Type == "media" {
		var media [2]string
		if err := json.Unmarshal(pair[1], &media); err != nil {
			return err
		}
		i.Mime, i.Data = media[0], media[1]
		return nil
	}
	if json.Unmarshal(pair[1], &i.Text) != nil {
		i.Text = string(pair[1])
	}
	return nil
}

// MarshalJSON writes the pair form of the wire.
func (i ConsoleItem) MarshalJSON() ([]byte, error) {
	if i.Type == "media" {
		return json.Marshal([]any{i.Type, []string{i.Mime, i.Data}})
	}
	return json.Marshal([]string{i.Type, i.Text})
}

// ExecuteResult is one flush of an execution.
type ExecuteResult struct {
	Status   string        `json:"status"`
	RunID    string        `json:"runId,omitempty"`
	ExitCode *int          `json:"exitCode"`
	Options  *InputOptions `json:"options"`
	Console  []ConsoleItem `json:"console"`
	// Msg is set with the statuses error and server-restarting.
	Msg string `json:"msg,omitempty"`
}

// InputOptions come with the status waiting-input.
type InputOptions struct {
	IsPassword bool `json:"is_password"`
}

// Poll is one step of an execution by polling: the first call has an empty run id, the
// next ones that of the reply with the modes continue or input.
func (c *Client) Poll(ctx context.Context, session, runID string, e Execute) (ExecuteResult, error) {
	body := map[string]any{"mode": e.Mode, "code": e.Code, "runId": nil, "options": executeOptions(e)}
	if runID != "" {
		body["runId"] = runID
	}
	var out struct {
		Result ExecuteResult `json:"result"`
	}
	err := c.sessionCall(ctx, session, "", request{method: http.MethodPost, json: body}, &out)
	return out.Result, err
}

func executeOptions(e Execute) any {
	if e.Mode == ModeBatch && e.Batch != nil {
		return e.Batch
	}
	return struct{}{}
}

// executeAhead is how many results are read before they are asked for.
const executeAhead = 16

// ExecuteStream is an execution over a WebSocket. Next may be called beside SendInput,
// each from one goroutine at a time.
type ExecuteStream struct {
	conn    *websocket.Conn
	cancel  context.CancelFunc
	results chan ExecuteResult
	// err is set before results is closed.
	err error
}

// Execute starts code in a running session. When the stream is closed before the
// status finished, the manager interrupts the code.
func (c *Client) Execute(ctx context.Context, session string, e Execute) (*ExecuteStream, error) {
	path, err := sessionPath("/stream/session", session, "execute")
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	start, err := json.Marshal(map[string]any{"code": e.Code, "mode": e.Mode, "options": executeOptions(e)})
	if err == nil {
		err = conn.Write(ctx, websocket.MessageText, start)
	}
	if err != nil {
		_ = conn.CloseNow()
		return nil, fmt.Errorf("execute in session %s: %w", session, err)
	}
	run, cancel := context.WithCancel(ctx)
	s := &ExecuteStream{conn: conn, cancel: cancel, results: make(chan ExecuteResult, executeAhead)}
	go s.read(run)
	return s, nil
}

// read runs all the time, also while the program waits for input, because only a
// reading side answers the pings of the server.
func (s *ExecuteStream) read(ctx context.Context) {
	defer close(s.results)
	for {
		_, b, err := s.conn.Read(ctx)
		if err != nil {
			s.err = streamError("execute", err)
			return
		}
		var r ExecuteResult
		if err := json.Unmarshal(b, &r); err != nil {
			s.err = fmt.Errorf("execute: read result: %w", err)
			return
		}
		select {
		case s.results <- r:
		case <-ctx.Done():
			s.err = context.Cause(ctx)
			return
		}
		if r.Status == ExecFinished {
			return
		}
	}
}

// Results delivers the flushes in order; it is closed after the last, then Err tells why.
func (s *ExecuteStream) Results() <-chan ExecuteResult { return s.results }

// Err is valid once Results is closed; nil after the status finished.
func (s *ExecuteStream) Err() error { return s.err }

// Next waits for the next flush. It returns ErrStreamEnded after the last one.
func (s *ExecuteStream) Next(ctx context.Context) (ExecuteResult, error) {
	select {
	case <-ctx.Done():
		return ExecuteResult{}, context.Cause(ctx)
	case r, ok := <-s.results:
		if ok {
			return r, nil
		}
		if s.err != nil {
			return ExecuteResult{}, s.err
		}
		return ExecuteResult{}, ErrStreamEnded
	}
}

// ErrStreamEnded means that a stream has delivered everything.
var ErrStreamEnded = errors.New("the stream has ended")

// SendInput answers the status waiting-input; the text has no line end. InputEOF ends the input.
func (s *ExecuteStream) SendInput(ctx context.Context, text string) error {
	if err := s.conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		return streamError("send input", err)
	}
	return nil
}

// Close ends the stream and waits for its reader. It does not wait for the manager to
// agree: after the last result nothing is left to say, and before it the manager takes
// the loss of the stream as an interrupt.
func (s *ExecuteStream) Close() error {
	s.cancel()
	_ = s.conn.CloseNow()
	for range s.results { //nolint:revive // The reader closes the channel when it is gone.
	}
	return nil
}

// maxFrame bounds one WebSocket message in bytes.
const maxFrame = 32 << 20

// dial opens a signed WebSocket.
func (c *Client) dial(ctx context.Context, path string, query map[string][]string) (*websocket.Conn, error) {
	r := request{method: http.MethodGet, path: path, query: query, accept: "*/*"}
	req, err := c.signed(ctx, r, nil)
	if err != nil {
		return nil, err
	}
	dialCtx, cancel := context.WithTimeoutCause(ctx, quickTimeout,
		fmt.Errorf("%s: no answer within %s: %w", r.op(), quickTimeout, context.DeadlineExceeded))
	defer cancel()
	//nolint:bodyclose // the WebSocket owns it
	conn, resp, err := websocket.Dial(dialCtx, req.URL.String(), &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: req.Header})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, readProblem(r.op(), resp.StatusCode, resp.Body)
		}
		if cause := context.Cause(dialCtx); cause != nil {
			return nil, cause
		}
		return nil, fmt.Errorf("reach the manager at %s: %w", c.cfg.Endpoint, bare(err))
	}
	conn.SetReadLimit(maxFrame)
	return conn, nil
}

// streamError says how a WebSocket ended.
func streamError(what string, err error) error {
	var ce websocket.CloseError
	if errors.As(err, &ce) {
		if ce.Reason != "" {
			return fmt.Errorf("%s: the manager closed the stream: %s", what, ce.Reason)
		}
		return fmt.Errorf("%s: the manager closed the stream (%d)", what, ce.Code)
	}
	return fmt.Errorf("%s: the stream broke: %w", what, err)
}
