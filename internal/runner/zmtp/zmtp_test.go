package zmtp_test

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/zmtp"
	"berth.dev/berth/internal/testkit/await"
)

// greeting is what a peer sends first: signature, version 3.1, NULL, then READY.
func greeting() []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, 1
	copy(g[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"
	return append(append(g, 4, byte(len(ready))), ready...)
}

// peer answers a handshake with the given bytes and collects what we send.
func peer(t testing.TB, send []byte) (*zmtp.Conn, net.Conn, error) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	go func() { _, _ = theirs.Write(send) }()
	go func() { // drain the greeting, READY and whatever follows in the handshake
		buf := make([]byte, 4096)
		for {
			if _, err := theirs.Read(buf); err != nil {
				return
			}
		}
	}()
	c, err := zmtp.Handshake(ours, "DEALER", "id", time.Minute)
	return c, theirs, err
}

func TestReceives(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 300)
	stream := greeting()
	stream = append(stream, 1, 1, 'a', 3, 0, 0, 0, 0, 0, 0, 1, 44)
	stream = append(stream, long...)
	stream = append(stream, 0, 0)                                   // last frame, empty
	stream = append(stream, 4, 8, 4, 'P', 'I', 'N', 'G', 0, 1, 'z') // answered, not delivered
	stream = append(stream, 4, 4, 3, 'X', 'Y', 'Z')                 // unknown commands are skipped
	stream = append(stream, 0, 1, 'b')
	c, _, err := peer(t, stream)
	require.NoError(t, err)
	require.Equal(t, "ROUTER", c.Peer("Socket-Type"))
	m, err := c.Recv()
	require.NoError(t, err)
	require.Equal(t, zmtp.Message{Frames: [][]byte{[]byte("a"), long, nil}}.Frames[1], m.Frames[1])
	require.Len(t, m.Frames, 3)
	m, err = c.Recv()
	require.NoError(t, err)
	require.Equal(t, "b", string(m.Frames[0]))
	require.NoError(t, c.Close())
	_, err = c.Recv()
	require.Error(t, err)
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte) []byte{
		"another protocol": func(b []byte) []byte { return bytes.Repeat([]byte("HTTP/1.1 "), 20) },
		"old version":      func(b []byte) []byte { b[10] = 2; return b },
		"other mechanism":  func(b []byte) []byte { copy(b[12:], "CURVE"); return b },
		"no READY":         func(b []byte) []byte { return append(b[:64], 0, 1, 'x') },
		"error":            func(b []byte) []byte { return append(b[:64], 4, 8, 5, 'E', 'R', 'R', 'O', 'R', 1, 'x') },
		"bad property":     func(b []byte) []byte { b[72] = 200; return b },
	} {
		_, _, err := peer(t, change(greeting()))
		require.Error(t, err, name)
	}
	for name, after := range map[string][]byte{
		"flags":            {0x80, 0},
		"more and command": {5, 0},
		"absurd length":    {2, 0xff, 0, 0, 0, 0, 0, 0, 0},
		"command inside":   {1, 1, 'a', 4, 4, 3, 'X', 'Y', 'Z'},
		"bad command":      {4, 1, 9},
		"too many frames":  bytes.Repeat([]byte{1, 0}, 100),
	} {
		c, _, err := peer(t, append(greeting(), after...))
		require.NoError(t, err, name)
		_, err = c.Recv()
		require.Error(t, err, name)
	}
}

func TestSends(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	got := make(chan []byte, 1)
	go func() {
		go func() { _, _ = theirs.Write(greeting()) }()
		b := make([]byte, 64+2+6+4+11+6+13+2)
		_, _ = io.ReadFull(theirs, b)
		rest := make([]byte, 3)
		_, _ = io.ReadFull(theirs, rest)
		got <- append(b, rest...)
	}()
	c, err := zmtp.Handshake(ours, "SUB", "", time.Minute)
	require.NoError(t, err)
	defer c.Close()
	go func() { _ = c.Send([]byte("ab"), bytes.Repeat([]byte("y"), 256)) }()
	b := await.Value(t, got)
	require.Contains(t, string(b), "READY\x0bSocket-Type\x00\x00\x00\x03SUB")
	require.Contains(t, string(b), "\x00\x01\x01", "a SUB socket subscribes to everything")
}

func FuzzRecv(f *testing.F) {
	f.Add([]byte{0, 1, 'a'})
	f.Add([]byte{1, 1, 'a', 2, 0, 0, 0, 0, 0, 0, 0, 2, 'b', 'c'})
	f.Add([]byte{4, 7, 4, 'P', 'I', 'N', 'G', 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		go func() {
			_, _ = theirs.Write(append(greeting(), in...))
			theirs.Close()
		}()
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, theirs)
		}()
		c, err := zmtp.Handshake(ours, "DEALER", "", time.Minute)
		if err != nil {
			return
		}
		for {
			m, err := c.Recv()
			if err != nil {
				break
			}
			if len(m.Frames) == 0 || len(m.Frames) > zmtp.MaxFrames {
				t.Fatalf("a message of %d frames", len(m.Frames))
			}
		}
		c.Close()
		await.Value(t, read)
	})
}

func FuzzHandshake(f *testing.F) {
	f.Add(greeting())
	f.Fuzz(func(t *testing.T, in []byte) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(in)
			theirs.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		if c, err := zmtp.Handshake(ours, "SUB", "", time.Minute); err == nil {
			c.Close()
		}
	})
}
