package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coder/websocket"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/wire/run"
)

const (
	// maxMessage bounds one message from a client.
	maxMessage = 16 << 20
	// maxQueued bounds the messages that wait while code runs.
	maxQueued = 64
	// firstPatience is how long a client may take to say what it wants.
	firstPatience = time.Minute
	// writePatience is how long a client may take to take one message, and to answer a ping: a suspended
	// client comes back within it and finds its code still running.
	writePatience = 5 * time.Minute
	// pingEvery finds out about clients that vanished without a word.
	pingEvery = 30 * time.Second
)

func (a *API) streamRoutes() {
	for _, base := range []string{"GET /stream/session/{s}", "GET /stream/kernel/{s}"} {
		a.handle(signedOnly, a.lasting(a.streamExecute), base+"/execute")
		a.handle(signedOnly, a.lasting(a.streamPTY), base+"/pty")
		a.handle(signedOnly, a.lasting(a.streamExec), base+"/exec")
	}
}

// message is one message of a client.
type message struct {
	data []byte
}

// socket is an accepted WebSocket whose messages arrive in a channel. Reading all the time is
// what answers pings and notices that the client left: ctx ends then.
type socket struct {
	conn *websocket.Conn
	ctx  context.Context
	in   chan message
	// left is closed when the reader has ended.
	left chan struct{}
}

// upgrade accepts the WebSocket of an authenticated request. The caller calls end.
func (c *call) upgrade() (*socket, error) {
	if !isUpgrade(c) {
		return nil, fault.Invalidf("%.200s is a WebSocket", c.r.URL.Path).
			WithReason(reasonBadRequest).
			WithNext("connect with a WebSocket client")
	}
	// The signature proves the caller; a browser cannot make one for a foreign page.
	conn, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		c.w.note = err.Error()
		return nil, errResponded
	}
	c.w.status = 101
	conn.SetReadLimit(maxMessage)
	ctx, cancel := context.WithCancel(c.ctx())
	s := &socket{conn: conn, ctx: ctx, in: make(chan message, maxQueued), left: make(chan struct{})}
	go func() {
		defer close(s.left)
		defer cancel()
		for {
			// Ending the context of a Read would cut the connection before the last words.
			_, data, err := conn.Read(context.WithoutCancel(ctx))
			if err != nil {
				return
			}
			select {
			case s.in <- message{data}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return s, nil
}

func isUpgrade(c *call) bool {
	return c.r.Header.Get("Upgrade") != "" && c.r.Header.Get("Sec-Websocket-Key") != ""
}

// maxCloseReason bounds the reason of a WebSocket's end in bytes; the protocol allows 123.
const maxCloseReason = 120

// end closes the socket and waits for its reader.
func (s *socket) end(code websocket.StatusCode, why string) {
	why = fault.Cut(why, maxCloseReason)
	select {
	case <-s.left:
	default:
		// Close shakes hands by reading, which our reader does too; either one sees the answer.
		_ = s.conn.Close(code, why)
	}
	_ = s.conn.CloseNow()
	<-s.left
}

// send writes one text message.
func (s *socket) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write(websocket.MessageText, b)
}

func (s *socket) write(kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), writePatience)
	defer cancel()
	return s.conn.Write(ctx, kind, b)
}

// recv waits for the next message.
func (s *socket) recv(patience time.Duration) (message, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case m := <-s.in:
		return m, nil
	case <-s.ctx.Done():
		select { // what came before the end still counts
		case m := <-s.in:
			return m, nil
		default:
			return message{}, errClientGone
		}
	case <-timer.C:
		return message{}, fault.New(fault.Timeout, "the client said nothing")
	}
}

// ping keeps asking whether the client is there until the socket ends.
func (s *socket) ping() {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
			ctx, cancel := context.WithTimeout(s.ctx, writePatience)
			err := s.conn.Ping(ctx)
			cancel()
			if err != nil {
				_ = s.conn.CloseNow() // the reader ends and with it the context
				return
			}
		}
	}
}

// streamExecute is the streaming form of the execute protocol.
func (a *API) streamExecute(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	s, err := c.upgrade()
	if err != nil {
		return err
	}
	pinged := make(chan struct{})
	go func() { defer close(pinged); s.ping() }()
	code, why := websocket.StatusNormalClosure, ""
	defer func() { s.end(code, why); <-pinged }()
	patience := firstPatience
	for {
		m, err := s.recv(patience)
		if c, w, ours := a.ending(s.ctx); ours {
			code, why = c, w
			a.restarting(s)
			return nil
		}
		if err != nil {
			return nil
		}
		var req api.ExecuteRequest
		if err := json.Unmarshal(m.data, &req); err != nil {
			code, why = websocket.StatusPolicyViolation, "the first message must be a JSON object with code and mode"
			_ = s.send(api.ExecuteRefusal{Status: api.ExecError, Msg: why, Console: []api.ConsoleItem{}})
			return nil
		}
		if err := a.drive(c, s, client, ref, who, req); err != nil {
			if c, w, ours := a.ending(s.ctx); ours {
				code, why = c, w
				a.restarting(s)
				return nil
			}
			if errors.Is(err, errClientGone) || s.ctx.Err() != nil {
				return nil
			}
			p := problemOf(err)
			c.w.note = p.Type[len(problemBase):]
			if req.Resume && (fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Timeout)) {
				code, why = websocket.StatusTryAgainLater, p.Title // the code goes on, and so may the client
				return nil
			}
			// The official command line shows the console and nothing else.
			said := api.ExecuteRefusal{Status: api.ExecError, Msg: p.Msg, Console: []api.ConsoleItem{api.ConsoleText("stderr", p.Msg+"\n")}}
			_ = s.send(api.ExecuteFailure{ExecuteRefusal: said, Type: p.Type, Title: p.Title, Next: p.Next})
			code, why = websocket.StatusInternalError, p.Title
			return nil
		}
		if !req.Keep {
			return nil
		}
		patience = 10 * time.Minute
	}
}

// restarting tells the client of a stream that it ends because the manager restarts.
func (a *API) restarting(s *socket) {
	if a.stopping.Err() != nil {
		_ = s.send(api.ExecuteResult{Status: api.ExecRestarting, Msg: errStopping.Msg, Console: []api.ConsoleItem{}})
	}
}

// resumeWait is how long the first step of a stream that goes on waits: a question that is open is asked again then.
const resumeWait = 500 * time.Millisecond

// resumable reports whether a client may choose a run id: one that nobody guesses and that no run of ours has.
func resumable(id *string) bool {
	if id == nil {
		return false
	}
	digits, ok := strings.CutPrefix(*id, api.ResumePrefix)
	return ok && len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == ""
}

// heard waits until the client of a resumable stream has a result, and with input for its answer, too. A client that thinks about an
// answer is there: renew says so to the runner.
func (s *socket) heard(seq int64, input bool, renew func() error) (string, error) {
	acked := false
	for {
		m, err := s.recv(time.Minute)
		if acked && fault.Is(err, fault.Timeout) {
			if err := renew(); err != nil {
				return "", err
			}
			continue
		}
		if fault.Is(err, fault.Timeout) {
			continue // the connection is watched by pings
		}
		if err != nil {
			return "", err
		}
		var said api.ExecuteMessage
		if err := json.Unmarshal(m.data, &said); err != nil {
			return "", fault.Invalidf("a message of a resumable stream is a JSON object with ack or input")
		}
		acked = acked || said.Ack >= seq
		switch {
		case input && said.Input != nil:
			return *said.Input, nil
		case !input && acked:
			return "", nil
		}
	}
}

// drive runs one piece of code to its end. Whatever keeps it from the end interrupts the code, except in a resumable stream: the runner
// then gives the client time to come back.
func (a *API) drive(c *call, s *socket, client *run.Client, ref string, who cluster.AccessKey, req api.ExecuteRequest) (err error) {
	if req.Mode == "" {
		req.Mode = api.ModeQuery
	}
	step := run.StepRequest{
		Mode: run.Mode(req.Mode), Code: req.Code, WaitMS: int(streamWait.Milliseconds()), FlushMS: int(streamFlush.Milliseconds()),
		From: new(int64(0)),
	}
	// The id is ours: a client must not answer or interrupt what another client runs. One that a client chose nobody else knows.
	runID := newRunID()
	if req.Resume {
		if !resumable(req.RunID) || req.From < 0 {
			return fault.Invalidf("a resumable stream needs a runId of %q and 32 hexadecimal digits", api.ResumePrefix)
		}
		runID, step.From, step.LeaseMS = *req.RunID, &req.From, int(api.ResumeWithin.Milliseconds())
	}
	switch step.Mode {
	case run.ModeQuery:
	case run.ModeContinue:
		if !req.Resume {
			return fault.Invalidf("only a resumable stream can be continued").WithNext("use query or batch")
		}
		step.Code, step.WaitMS = "", int(resumeWait.Milliseconds())
	case run.ModeBatch:
		body, perr := params.ParseBody(req.Options)
		if perr != nil {
			return perr
		}
		p := params.New(nil, nil).Within("options", body)
		step.Options = batchOptions(p)
		if err := p.Err(); err != nil {
			return err
		}
	default:
		return fault.Invalidf("mode %.40q cannot begin a stream", req.Mode).WithNext("use query or batch")
	}
	done := false
	defer func() {
		if done || req.Resume || a.stopping.Err() != nil { // our own end must not touch what runs
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 5*time.Second)
		defer cancel()
		_, _ = client.Interrupt(ctx, runID) // the session may be gone, and then there is nothing to interrupt
	}()
	for {
		r, err := client.Step(s.ctx, runID, step)
		if err != nil {
			if s.ctx.Err() != nil {
				return errClientGone
			}
			if a.ended(c, ref, who) {
				done = true
				return s.send(execResult(run.StatusFinished, new(goneExit)))
			}
			return err
		}
		next := r.Seq
		step = run.StepRequest{
			Mode: run.ModeContinue, WaitMS: int(streamWait.Milliseconds()), FlushMS: step.FlushMS, From: &next, LeaseMS: step.LeaseMS,
		}
		if r.Status == run.StatusContinued && len(r.Console) == 0 {
			continue
		}
		result := execResultOf(r)
		if req.Resume {
			result.Seq = r.Seq
		}
		if err := s.send(result); err != nil {
			return errClientGone
		}
		if r.Status.Final() {
			done = true
			return nil
		}
		asks := r.Status == run.StatusWaitingInput
		text := ""
		switch {
		case req.Resume: // the next step forgets what came up to next
			renew := func() error {
				_, err := client.Step(s.ctx, runID, run.StepRequest{Mode: run.ModeContinue, From: &next, LeaseMS: step.LeaseMS})
				return err
			}
			if text, err = s.heard(next, asks, renew); err != nil {
				return err
			}
		case asks:
			m, err := s.recv(24 * time.Hour)
			if err != nil {
				return err
			}
			text = string(m.data)
		}
		if asks {
			step.Mode, step.Code, step.InputSeq = run.ModeInput, text, r.Seq-1
			if step.Code == api.InputEOF {
				step.Code, step.EOF = "", true
			}
		}
	}
}

// streamPTY is a terminal as browsers speak it: JSON with base64 inside.
func (a *API) streamPTY(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	start := run.PTYStart{
		Terminal: p.Text("terminal", ""), Rows: uint16(p.Number("rows", 24, 1, 4096)), Cols: uint16(p.Number("cols", 80, 1, 4096)),
	}
	if err := p.Err(); err != nil {
		return err
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	s, err := c.upgrade()
	if err != nil {
		return err
	}
	pinged := make(chan struct{})
	go func() { defer close(pinged); s.ping() }()
	code, why := websocket.StatusNormalClosure, ""
	defer func() { s.end(code, why); <-pinged }()
	for {
		again, err := a.terminal(s, client, start)
		if c, w, ours := a.ending(s.ctx); ours {
			code, why = c, w
			return nil
		}
		if err != nil && s.ctx.Err() == nil {
			msg := problemOf(err).Msg
			_ = s.send(api.PTYMessage{Type: api.PTYError, Text: msg})
			code, why = websocket.StatusInternalError, msg
		}
		if !again {
			return nil
		}
		start.Restart = true
	}
}

// terminal joins a socket and a terminal until either ends; again says that the client asked for a fresh shell.
func (a *API) terminal(s *socket, client *run.Client, start run.PTYStart) (again bool, err error) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	t, err := client.PTY(ctx, start)
	if err != nil {
		return false, err
	}
	out := make(chan error, 1)
	go func() {
		for {
			f, err := t.Recv()
			if err == nil && f.Type == run.FrameExit {
				err = errShellEnded
			}
			if err == nil && (f.Type == run.FrameStdout || f.Type == run.FrameStderr) {
				err = s.send(api.PTYMessage{Type: api.PTYOut, Bytes: notNull(f.Data)})
			}
			if err != nil {
				out <- err
				return
			}
		}
	}()
	defer func() {
		t.Close()
		if out != nil {
			<-out
		}
	}()
	for {
		select {
		case <-s.ctx.Done():
			return false, nil
		case err := <-out:
			out = nil
			if errors.Is(err, errShellEnded) {
				return false, nil
			}
			return false, fault.Unavailablef("the terminal's stream broke off").WithCause(err)
		case m := <-s.in:
			var r api.PTYMessage
			if err := json.Unmarshal(m.data, &r); err != nil {
				return false, fault.Invalidf("a terminal takes JSON messages")
			}
			switch r.Type {
			case api.PTYStdin:
				_, err = t.Write(r.Bytes)
			case api.PTYResize:
				start.Rows, start.Cols = r.Size.Rows, r.Size.Cols
				err = t.Resize(r.Size.Rows, r.Size.Cols)
			case api.PTYRestart:
				return true, nil
			case api.PTYPing:
			default:
				err = fault.Invalidf("a terminal does not know messages of type %.40q", r.Type)
			}
			if err != nil {
				return false, err
			}
		}
	}
}

var errShellEnded = errors.New("the shell ended")

// execStart reads what to start: cmd is a JSON list, or repeated.
func execStart(p *params.Set) run.ExecStart {
	start := run.ExecStart{
		Argv: p.List("cmd"), Dir: p.Text("dir", ""), Env: p.Texts("env"), TTY: p.Flag("tty", false),
		Rows: uint16(p.Number("rows", 24, 0, 4096)), Cols: uint16(p.Number("cols", 80, 0, 4096)),
	}
	if len(start.Argv) == 1 && strings.HasPrefix(start.Argv[0], "[") {
		var argv []string
		if err := json.Unmarshal([]byte(start.Argv[0]), &argv); err != nil {
			p.Fail("cmd", "must be a JSON list of texts")
		}
		start.Argv = argv
	}
	if len(start.Argv) == 0 || start.Argv[0] == "" {
		p.Fail("cmd", "is required: the program and its arguments as a JSON list")
	}
	return start
}

// streamExec runs a command in the session as its user; our extension, see docs/api-extensions.md.
// Every message is binary and begins with a channel byte; the last one is the exit.
func (a *API) streamExec(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	start := execStart(p)
	if err := p.Err(); err != nil {
		return err
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	s, err := c.upgrade()
	if err != nil {
		return err
	}
	pinged := make(chan struct{})
	go func() { defer close(pinged); s.ping() }()
	code, why := websocket.StatusNormalClosure, ""
	defer func() { s.end(code, why); <-pinged }()
	err = a.exec(s, client, start)
	ended, words, ours := a.ending(s.ctx)
	switch {
	case ours:
		code, why = ended, words
	case err != nil && s.ctx.Err() == nil:
		code, why = websocket.StatusInternalError, problemOf(err).Msg
		c.w.note = err.Error()
	}
	return nil
}

func (a *API) exec(s *socket, client *run.Client, start run.ExecStart) error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	t, err := client.Exec(ctx, start)
	if err != nil {
		return err
	}
	out := make(chan error, 1)
	go func() { out <- s.copyExec(t) }()
	ended := false
	defer func() {
		t.Close()
		if !ended {
			<-out
		}
	}()
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case err := <-out:
			ended = true
			return err
		case m := <-s.in:
			// A process that takes no more input is in its right; its exit is on the way.
			if err := execInput(t, m); fault.Is(err, fault.Invalid) {
				return err
			}
		}
	}
}

// copyExec passes output on until the exit.
func (s *socket) copyExec(t *run.Stream) error {
	for {
		f, err := t.Recv()
		if err != nil {
			return fault.Unavailablef("the command's stream broke off").WithCause(err)
		}
		switch f.Type {
		case run.FrameStdout:
			err = s.writeChannel(api.ChannelStdout, f.Data)
		case run.FrameStderr:
			err = s.writeChannel(api.ChannelStderr, f.Data)
		case run.FrameExit:
			var e run.Exit
			if err := f.Decode(&e); err != nil {
				return err
			}
			if e.Error != "" {
				if err := s.writeChannel(api.ChannelStderr, []byte(e.Error+"\n")); err != nil {
					return err
				}
			}
			text, err := json.Marshal(api.ExitStatus{ExitCode: e.Code, Signal: e.Signal})
			if err != nil {
				return fmt.Errorf("encode the exit: %w", err)
			}
			return s.write(websocket.MessageBinary, append([]byte{api.ChannelExit}, text...))
		}
		if err != nil {
			return err
		}
	}
}

func (s *socket) writeChannel(channel byte, data []byte) error {
	for len(data) > 0 {
		n := min(len(data), api.MaxExecFrame)
		if err := s.write(websocket.MessageBinary, append([]byte{channel}, data[:n]...)); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func execInput(t *run.Stream, m message) error {
	if len(m.data) == 0 {
		return fault.Invalidf("a message of a command begins with its channel")
	}
	switch data := m.data[1:]; m.data[0] {
	case api.ChannelStdin:
		_, err := t.Write(data)
		return err
	case api.ChannelStdinEOF:
		return t.CloseInput()
	case api.ChannelResize:
		var size api.TerminalSize
		if err := json.Unmarshal(data, &size); err != nil {
			return fault.Invalidf("a size is JSON with rows and cols")
		}
		return t.Resize(size.Rows, size.Cols)
	case api.ChannelSignal:
		return t.Send(run.Frame{Type: run.FrameSignal, Data: data})
	}
	return nil // a channel of some later version
}
