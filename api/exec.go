package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/coder/websocket"
)

// Channels of an exec stream: the first byte of every binary frame.
const (
	ChannelStdin    = 0 // to the process
	ChannelStdout   = 1 // from the process; all output of a terminal
	ChannelStderr   = 2 // from the process
	ChannelResize   = 3 // JSON TerminalSize
	ChannelExit     = 4 // JSON ExitStatus; always last
	ChannelStdinEOF = 5 // empty; the end of the input
	ChannelSignal   = 6 // the name of a signal, such as INT
)

// MaxExecFrame bounds the payload of one exec frame in bytes, without the channel byte.
const MaxExecFrame = 64 << 10

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExitStatus is how a process ended; 128 + n stands for the signal n.
type ExitStatus struct {
	ExitCode int `json:"exitCode"`
	Signal   int `json:"signal"`
}

// Exec is a process to start beside the session's own.
type Exec struct {
	// Command is the program and its arguments; no shell is involved.
	Command []string
	TTY     bool
	Size    TerminalSize
}

// Query returns the query string form of e.
func (e Exec) Query() url.Values {
	argv, err := json.Marshal(e.Command)
	if err != nil {
		panic("marshal strings: " + err.Error())
	}
	q := url.Values{"cmd": {string(argv)}}
	if e.TTY {
		q.Set("tty", "true")
		q.Set("rows", strconv.Itoa(int(e.Size.Rows)))
		q.Set("cols", strconv.Itoa(int(e.Size.Cols)))
	}
	return q
}

// ExecStreams connects a process to its caller. Resize may be nil.
type ExecStreams struct {
	// Stdin is copied until its end, which the process then sees; nil is an empty input.
	// A Read that blocks when the process ends is left behind; nothing waits for it.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan TerminalSize
}

// Exec runs a process inside a running session and returns its exit code. When ctx ends
// before the process, the manager ends the process.
func (c *Client) Exec(ctx context.Context, session string, e Exec, s ExecStreams) (int, error) {
	path, err := sessionPath("/stream/session", session, "exec")
	if err != nil {
		return 0, err
	}
	if len(e.Command) == 0 {
		return 0, errors.New("no command to execute")
	}
	conn, err := c.dial(ctx, path, e.Query())
	if err != nil {
		return 0, err
	}
	defer conn.CloseNow()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	input := make(chan []byte)
	go pumpInput(ctx, s.Stdin, input)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sendExec(ctx, conn, input, s.Resize)
	}()
	code, err := receiveExec(ctx, conn, s)
	cancel()
	<-sent
	return code, err
}

// execInput is the size of the frames we send: whole frames fit into 32 KiB, the read
// limit that WebSocket libraries commonly start with.
const execInput = 32 << 10

// pumpInput reads until the end of the input and then closes out.
func pumpInput(ctx context.Context, in io.Reader, out chan<- []byte) {
	defer close(out)
	if in == nil {
		return
	}
	for {
		buf := make([]byte, execInput)
		n, err := in.Read(buf[1:])
		if n > 0 {
			select {
			case out <- buf[:1+n]:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// sendExec owns the writing side. Its errors show on the reading side.
func sendExec(ctx context.Context, conn *websocket.Conn, input <-chan []byte, resize <-chan TerminalSize) {
	for {
		var frame []byte
		select {
		case <-ctx.Done():
			return
		case b, ok := <-input:
			if ok {
				frame = b
				frame[0] = ChannelStdin
			} else {
				frame, input = []byte{ChannelStdinEOF}, nil
			}
		case size, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			b, err := json.Marshal(size)
			if err != nil {
				return
			}
			frame = append([]byte{ChannelResize}, b...)
		}
		if conn.Write(ctx, websocket.MessageBinary, frame) != nil {
			return
		}
	}
}

func receiveExec(ctx context.Context, conn *websocket.Conn, s ExecStreams) (int, error) {
	for {
		_, b, err := conn.Read(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return 0, cause
			}
			return 0, streamError("exec", err)
		}
		if len(b) == 0 {
			continue
		}
		switch b[0] {
		case ChannelStdout:
			_, err = s.Stdout.Write(b[1:])
		case ChannelStderr:
			_, err = s.Stderr.Write(b[1:])
		case ChannelExit:
			var exit ExitStatus
			if err := json.Unmarshal(b[1:], &exit); err != nil {
				return 0, fmt.Errorf("exec: read exit status: %w", err)
			}
			return exit.ExitCode, nil
		}
		if err != nil {
			return 0, fmt.Errorf("exec: write output: %w", err)
		}
	}
}
