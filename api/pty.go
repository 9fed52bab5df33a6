package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coder/websocket"
)

// PTYMessage is one message of the terminal stream, in either direction.
// To the session: stdin (Chars), resize (Rows, Cols), ping, restart.
// From the session: out (Data), error (Text).
type PTYMessage struct {
	Type string
	// Bytes is the input or output; it travels as base64.
	Bytes []byte
	Size  TerminalSize
	Text  string
}

// Types of PTYMessage.
const (
	PTYStdin   = "stdin"
	PTYResize  = "resize"
	PTYPing    = "ping"
	PTYRestart = "restart"
	PTYOut     = "out"
	PTYError   = "error"
)

type ptyWire struct {
	Type  string          `json:"type"`
	Chars []byte          `json:"chars,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`
	Rows  uint16          `json:"rows,omitempty"`
	Cols  uint16          `json:"cols,omitempty"`
}

// MarshalJSON writes the wire form.
func (m PTYMessage) MarshalJSON() ([]byte, error) {
	w := ptyWire{Type: m.Type}
	var err error
	switch m.Type {
	case PTYStdin:
		w.Chars = m.Bytes
	case PTYResize:
		w.Rows, w.Cols = m.Size.Rows, m.Size.Cols
	case PTYOut:
		w.Data, err = json.Marshal(m.Bytes)
	case PTYError:
		w.Data, err = json.Marshal(m.Text)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads the wire form.
func (m *PTYMessage) UnmarshalJSON(b []byte) error {
	var w ptyWire
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*m = PTYMessage{Type: w.Type, Bytes: w.Chars, Size: TerminalSize{Rows: w.Rows, Cols: w.Cols}}
	switch w.Type {
	case PTYOut:
		return json.Unmarshal(w.Data, &m.Bytes)
	case PTYError:
		if json.Unmarshal(w.Data, &m.Text) != nil {
			m.Text = string(w.Data)
		}
	}
	return nil
}

// PTY is the shared terminal of a session. Exec serves most callers better.
type PTY struct{ conn *websocket.Conn }

// OpenPTY attaches to the session's terminal.
func (c *Client) OpenPTY(ctx context.Context, session string) (*PTY, error) {
	path, err := sessionPath("/stream/session", session, "pty")
	if err != nil {
		return nil, err
	}
	conn, err := c.dial(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	return &PTY{conn: conn}, nil
}

// Send sends a message; it may be called beside Receive.
func (p *PTY) Send(ctx context.Context, m PTYMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := p.conn.Write(ctx, websocket.MessageText, b); err != nil {
		return streamError("terminal", err)
	}
	return nil
}

// Receive waits for the next message; ErrStreamEnded follows the last one.
func (p *PTY) Receive(ctx context.Context) (PTYMessage, error) {
	_, b, err := p.conn.Read(ctx)
	if err != nil {
		var ce websocket.CloseError
		if errors.As(err, &ce) && ce.Code == websocket.StatusNormalClosure {
			return PTYMessage{}, ErrStreamEnded
		}
		return PTYMessage{}, streamError("terminal", err)
	}
	var m PTYMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("terminal: read message: %w", err)
	}
	return m, nil
}

// Close detaches.
func (p *PTY) Close() error { return p.conn.Close(websocket.StatusNormalClosure, "") }
