// Package zmtp is the connecting half of ZMTP 3.0 with the NULL mechanism over one
// stream: enough to talk to the sockets of a Jupyter kernel, which always binds.
//
// It reconnects nothing, queues nothing and starts no goroutine; jupyter calls it.
package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// The bounds on what a peer can make us keep.
const (
	// MaxMessage is the largest message kept, in bytes over all frames. Of a larger one the
	// excess is skipped and the message is marked Truncated.
	MaxMessage = 128 << 20
	// MaxFrames is the most frames of one message.
	MaxFrames = 64
	// maxCommand is the largest command frame.
	maxCommand = 64 << 10
)

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// Message is a list of frames.
type Message struct {
	Frames    [][]byte
	Truncated bool
}

// Conn is one connected socket. One goroutine may receive while others send.
type Conn struct {
	c    net.Conn
	r    *bufio.Reader
	mu   sync.Mutex // orders writers
	peer map[string]string
}

// Handshake greets over c as a socket of the given type (DEALER, SUB, REQ); identity may
// be empty. A SUB socket subscribes to everything. On failure c is closed.
func Handshake(c net.Conn, socketType, identity string, timeout time.Duration) (*Conn, error) {
	z := &Conn{c: c, r: bufio.NewReaderSize(c, 64<<10)}
	_ = c.SetDeadline(time.Now().Add(timeout)) // a connection without deadlines fails below
	if err := z.handshake(socketType, identity); err != nil {
		c.Close()
		return nil, fmt.Errorf("greet a %s peer: %w", socketType, err)
	}
	_ = c.SetDeadline(time.Time{})
	return z, nil
}

func (z *Conn) handshake(socketType, identity string) error {
	var greeting [64]byte
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	if _, err := z.c.Write(greeting[:]); err != nil {
		return err
	}
	var theirs [64]byte
	if _, err := io.ReadFull(z.r, theirs[:]); err != nil {
		return err
	}
	switch {
	case theirs[0] != 0xff || theirs[9]&1 != 1:
		return errors.New("the peer does not speak ZMTP")
	case theirs[10] < 3:
		return fmt.Errorf("the peer speaks ZMTP %d, not 3", theirs[10])
	case !bytes.Equal(bytes.TrimRight(theirs[12:32], "\x00"), []byte("NULL")):
		return fmt.Errorf("the peer wants the mechanism %q", bytes.TrimRight(theirs[12:32], "\x00"))
	}
	ready := []byte("\x05READY")
	ready = property(ready, "Socket-Type", socketType)
	if socketType != "SUB" {
		ready = property(ready, "Identity", identity)
	}
	if err := z.write(flagCommand, ready); err != nil {
		return err
	}
	flags, body, _, err := z.frame(maxCommand)
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 {
		return errors.New("the peer sent a message before READY")
	}
	name, props, err := parseCommand(body)
	if err != nil {
		return err
	}
	if name != "READY" {
		return fmt.Errorf("the peer answered %q instead of READY", name)
	}
	if z.peer, err = parseProperties(props); err != nil {
		return err
	}
	if socketType == "SUB" {
		return z.Send([]byte{1})
	}
	return nil
}

// Peer returns a property of the peer's READY, such as Socket-Type.
func (z *Conn) Peer(name string) string { return z.peer[name] }

func property(b []byte, name, value string) []byte {
	b = append(b, byte(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

func parseCommand(b []byte) (name string, rest []byte, err error) {
	if len(b) == 0 || int(b[0]) > len(b)-1 {
		return "", nil, errors.New("malformed command")
	}
	n := int(b[0])
	return string(b[1 : 1+n]), b[1+n:], nil
}

func parseProperties(b []byte) (map[string]string, error) {
	out := map[string]string{}
	for len(b) > 0 {
		name, rest, err := parseCommand(b)
		if err != nil || len(rest) < 4 {
			return nil, errors.New("malformed property")
		}
		n := binary.BigEndian.Uint32(rest)
		if uint64(n) > uint64(len(rest)-4) {
			return nil, errors.New("malformed property value")
		}
		out[name] = string(rest[4 : 4+n])
		b = rest[4+n:]
	}
	return out, nil
}

// Send writes one message.
func (z *Conn) Send(frames ...[]byte) error {
	size := 0
	for _, f := range frames {
		size += len(f) + 9
	}
	b := make([]byte, 0, size)
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, f)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	_, err := z.c.Write(b)
	return err
}

func (z *Conn) write(flags byte, body []byte) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	_, err := z.c.Write(appendFrame(nil, flags, body))
	return err
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) < 256 {
		b = append(b, flags, byte(len(body)))
	} else {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	}
	return append(b, body...)
}

// frame reads one frame; of a body over limit the rest is skipped and cut is true.
func (z *Conn) frame(limit int) (flags byte, body []byte, cut bool, err error) {
	var head [9]byte
	if _, err := io.ReadFull(z.r, head[:1]); err != nil {
		return 0, nil, false, err
	}
	flags = head[0]
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&(flagCommand|flagMore) == flagCommand|flagMore {
		return 0, nil, false, fmt.Errorf("malformed frame flags %#x", flags)
	}
	n := uint64(0)
	if flags&flagLong != 0 {
		if _, err := io.ReadFull(z.r, head[:8]); err != nil {
			return 0, nil, false, unexpected(err)
		}
		n = binary.BigEndian.Uint64(head[:8])
	} else {
		if _, err := io.ReadFull(z.r, head[:1]); err != nil {
			return 0, nil, false, unexpected(err)
		}
		n = uint64(head[0])
	}
	if n > 1<<40 {
		return 0, nil, false, fmt.Errorf("a frame of %d bytes is absurd", n)
	}
	keep := min(n, uint64(max(limit, 0)))
	if n == keep && n <= 64<<10 {
		body = make([]byte, n)
		if _, err := io.ReadFull(z.r, body); err != nil {
			return 0, nil, false, unexpected(err)
		}
		return flags, body, false, nil
	}
	// Memory grows with what really arrives, not with what the header promises.
	var buf bytes.Buffer
	buf.Grow(int(min(keep, 1<<20)) + bytes.MinRead) // with room for the read that finds the end: it would double the buffer
	if _, err := io.CopyN(&buf, z.r, int64(keep)); err != nil {
		return 0, nil, false, unexpected(err)
	}
	if skip := n - keep; skip > 0 {
		cut = true
		if _, err := io.CopyN(io.Discard, z.r, int64(skip)); err != nil {
			return 0, nil, false, unexpected(err)
		}
	}
	return flags, buf.Bytes(), cut, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Recv reads the next message, answering pings on the way.
func (z *Conn) Recv() (Message, error) {
	var m Message
	size := 0
	for {
		flags, body, cut, err := z.frame(MaxMessage - size)
		if err != nil {
			if len(m.Frames) > 0 {
				err = unexpected(err)
			}
			return Message{}, err
		}
		if flags&flagCommand != 0 {
			if len(m.Frames) > 0 {
				return Message{}, errors.New("a command stands inside a message")
			}
			if err := z.command(body); err != nil {
				return Message{}, err
			}
			continue
		}
		if len(m.Frames) == MaxFrames {
			return Message{}, fmt.Errorf("a message has more than %d frames", MaxFrames)
		}
		m.Frames = append(m.Frames, body)
		m.Truncated = m.Truncated || cut
		size += len(body)
		if flags&flagMore == 0 {
			return m, nil
		}
	}
}

func (z *Conn) command(body []byte) error {
	name, rest, err := parseCommand(body)
	if err != nil {
		return err
	}
	switch name {
	case "PING":
		if len(rest) < 2 {
			return errors.New("malformed PING")
		}
		return z.write(flagCommand, append([]byte("\x04PONG"), rest[2:min(len(rest), 18)]...))
	case "ERROR":
		return fmt.Errorf("the peer reports %q", rest)
	}
	return nil // unknown commands are skipped
}

// Close ends the connection; a blocked Recv returns an error.
func (z *Conn) Close() error { return z.c.Close() }
