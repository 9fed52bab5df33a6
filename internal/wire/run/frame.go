package run

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// FrameType says what a frame of a stream carries.
type FrameType byte

// The frame types. To the runner: start, stdin, stdin-close, resize, signal, ping.
// From the runner: ready, stdout, stderr, exit, pong. Unknown types are skipped.
const (
	FrameStart      FrameType = 1  // JSON PTYStart or ExecStart; always first
	FrameReady      FrameType = 2  // empty; the process runs
	FrameStdin      FrameType = 3  // bytes
	FrameStdinClose FrameType = 4  // empty; end of input
	FrameResize     FrameType = 5  // JSON Resize
	FrameSignal     FrameType = 6  // signal name as text, such as INT
	FrameStdout     FrameType = 7  // bytes; also all output of a terminal
	FrameStderr     FrameType = 8  // bytes
	FrameExit       FrameType = 9  // JSON Exit; always last
	FramePing       FrameType = 10 // payload comes back in a pong
	FramePong       FrameType = 11
)

// MaxFrame bounds the payload of one frame in bytes.
const MaxFrame = 256 << 10

// frameHeader is one byte of type and four of length, big endian.
const frameHeader = 5

// Frame is one message of a stream.
type Frame struct {
	Type FrameType
	Data []byte
}

// JSONFrame makes a frame of a value that marshals without error.
func JSONFrame(t FrameType, v any) Frame {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshal frame %d: %v", t, err))
	}
	return Frame{Type: t, Data: b}
}

// Decode reads the frame's JSON payload.
func (f Frame) Decode(v any) error {
	if err := json.Unmarshal(f.Data, v); err != nil {
		return fmt.Errorf("read frame of type %d: %w", f.Type, err)
	}
	return nil
}

// WriteFrame writes one frame with a single Write. It is not safe for concurrent use on one w.
func WriteFrame(w io.Writer, f Frame) error {
	if len(f.Data) > MaxFrame {
		return fmt.Errorf("write frame of %d bytes: the limit is %d", len(f.Data), MaxFrame)
	}
	b := make([]byte, frameHeader+len(f.Data))
	b[0] = byte(f.Type)
	binary.BigEndian.PutUint32(b[1:], uint32(len(f.Data)))
	copy(b[frameHeader:], f.Data)
	_, err := w.Write(b)
	return err
}

// ReadFrame reads one frame. io.EOF means that the stream ended between frames.
func ReadFrame(r io.Reader) (Frame, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if err == io.EOF {
			return Frame{}, io.EOF
		}
		return Frame{}, fmt.Errorf("read frame header: %w", err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return Frame{}, fmt.Errorf("read frame of %d bytes: the limit is %d", n, MaxFrame)
	}
	f := Frame{Type: FrameType(head[0]), Data: make([]byte, n)}
	if _, err := io.ReadFull(r, f.Data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, fmt.Errorf("read frame body: %w", err)
	}
	return f, nil
}
