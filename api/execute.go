package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

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

// ConsoleItem is one piece of output: a kind with its text, or "media" with a pair of MIME type and data. It is an array so that
// it encodes as the wire wants it without a method: what a MarshalJSON returns is copied once more, and output comes by the
// megabyte.
type ConsoleItem [2]any

// KindMedia is the kind of console items that are no text. The kinds of text are stdout, stderr, html and log.
const KindMedia = "media"

// ConsoleText makes an item of text.
func ConsoleText(kind, text string) ConsoleItem { return ConsoleItem{kind, text} }

// ConsoleMedia makes an item that is no text.
func ConsoleMedia(mime, data string) ConsoleItem {
	return ConsoleItem{KindMedia, [2]string{mime, data}}
}

// Kind is stdout, stderr, html, log or media.
func (i ConsoleItem) Kind() string {
	s, _ := i[0].(string)
	return s
}

// Text is the text of an item; "" for media.
func (i ConsoleItem) Text() string {
	s, _ := i[1].(string)
	return s
}

// Media is the MIME type and the data of an item that is no text.
func (i ConsoleItem) Media() (mime, data string) {
	switch pair := i[1].(type) {
	case [2]string:
		return pair[0], pair[1]
	case []any: // as encoding/json reads it
		if len(pair) == 2 {
			mime, _ = pair[0].(string)
			data, _ = pair[1].(string)
		}
	}
	return mime, data
}

// ExecuteRequest is the body of POST /session/{s}, and the first message of a stream.
type ExecuteRequest struct {
	Mode  string  `json:"mode"`
	Code  string  `json:"code"`
	RunID *string `json:"runId"`
	// Options are BatchCommands or CompleteOptions, as Mode says.
	Options json.RawMessage `json:"options"`
	// Keep leaves a stream open for the next request after this one; an extension.
	Keep bool `json:"keep,omitempty"`
	// Resume makes a stream that can be taken up again after it broke; an extension. The code goes on without its client for
	// ResumeWithin, then it is interrupted. RunID is required, chosen by the client (ResumePrefix and 32 hexadecimal digits). A later
	// stream says mode continue and From. All further messages of the client are ExecuteMessages.
	Resume bool `json:"resume,omitempty"`
	// From is the Seq of the last result that the client has; 0 in the beginning.
	From int64 `json:"from,omitempty"`
}

// ResumePrefix begins the run ids that clients choose.
const ResumePrefix = "resume-"

// ResumeWithin is how long code goes on whose client has lost its stream.
const ResumeWithin = 5 * time.Minute

// ExecuteMessage is what the client of a stream with Resume says after the first message.
type ExecuteMessage struct {
	// Ack is the Seq of a result that the client has: what came up to it is not sent again.
	Ack int64 `json:"ack,omitempty"`
	// Input answers the status waiting-input.
	Input *string `json:"input,omitempty"`
}

// ExecuteReply is the answer to an ExecuteRequest.
type ExecuteReply struct {
	Result ExecuteResult `json:"result"`
}

// ExecuteResult is one flush of an execution.
type ExecuteResult struct {
	Status   string        `json:"status"`
	RunID    string        `json:"runId,omitempty"`
	ExitCode *int          `json:"exitCode"`
	Options  *InputOptions `json:"options"`
	// Files is always empty; clients iterate over it. It is nil, and left out, in messages that carry no output.
	Files   []string      `json:"files,omitzero"`
	Console []ConsoleItem `json:"console"`
	// Seq counts what was sent; only in streams with Resume.
	Seq int64 `json:"seq,omitempty"`
	// Msg is set with the statuses error and server-restarting.
	Msg string `json:"msg,omitempty"`
}

// ExecuteRefusal ends a stream whose first message cannot be read.
type ExecuteRefusal struct {
	Status  string        `json:"status"` // error
	Msg     string        `json:"msg"`
	Console []ConsoleItem `json:"console"`
}

// ExecuteFailure ends a stream whose code could not be run. Type, Title, Msg and Next are those of the problem.
type ExecuteFailure struct {
	ExecuteRefusal
	Type     string `json:"type"`
	Title    string `json:"title"`
	Next     string `json:"next"`
	ExitCode *int   `json:"exitCode"` // nil
}

// InputOptions come with the status waiting-input.
type InputOptions struct {
	IsPassword bool `json:"is_password"`
}

// Poll is one step of an execution by polling: the first call has an empty run id, the
// next ones that of the reply with the modes continue or input.
func (c *Client) Poll(ctx context.Context, session, runID string, e Execute) (ExecuteResult, error) {
	body, err := e.Request()
	if err != nil {
		return ExecuteResult{}, err
	}
	if runID != "" {
		body.RunID = &runID
	}
	var out ExecuteReply
	err = c.sessionCall(ctx, session, "", request{method: http.MethodPost, json: body}, &out)
	return out.Result, err
}

// Request is the first message of the execution.
func (e Execute) Request() (ExecuteRequest, error) {
	r := ExecuteRequest{Mode: e.Mode, Code: e.Code, Options: json.RawMessage("{}")}
	if e.Mode == ModeBatch && e.Batch != nil {
		b, err := json.Marshal(e.Batch)
		if err != nil {
			return r, fmt.Errorf("write options: %w", err)
		}
		r.Options = b
	}
	return r, nil
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
	body, err := e.Request()
	if err != nil {
		return nil, fmt.Errorf("execute in session %s: %w", session, err)
	}
	conn, err := c.BeginExecute(ctx, session, body)
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(ctx)
	s := &ExecuteStream{conn: conn, cancel: cancel, results: make(chan ExecuteResult, executeAhead)}
	go s.read(run)
	return s, nil
}

// BeginExecute opens the stream of an execution and sends its first message.
func (c *Client) BeginExecute(ctx context.Context, session string, body ExecuteRequest) (*websocket.Conn, error) {
	path, err := sessionPath("/stream/session", session, "execute")
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	start, err := json.Marshal(body)
	if err == nil {
		err = conn.Write(ctx, websocket.MessageText, start)
	}
	if err != nil {
		_ = conn.CloseNow()
		return nil, fmt.Errorf("execute in session %s: %w", session, err)
	}
	return conn, nil
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
	dialCtx, cancel := context.WithTimeoutCause(ctx, quickTimeout,
		fmt.Errorf("%s: no answer within %s: %w", r.op(), quickTimeout, context.DeadlineExceeded))
	defer cancel()
	for try := c.managers.Attempts(false); ; {
		req, err := c.signed(ctx, try.Base(), r, nil, nil)
		if err != nil {
			return nil, err
		}
		options := &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: req.Header}
		conn, resp, err := websocket.Dial(dialCtx, req.URL.String(), options) //nolint:bodyclose // the WebSocket owns it
		if err == nil {
			conn.SetReadLimit(maxFrame)
			return conn, nil
		}
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, readProblem(r.op(), resp.StatusCode, resp.Body)
		}
		at := try.Base()
		if context.Cause(dialCtx) != nil || !try.Again(dialCtx, err) {
			return nil, unreached(dialCtx, at, err)
		}
	}
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
