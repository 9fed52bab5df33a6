package sshd

import (
	"bufio"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/cpu"
)

// version is what clients know the server by. They look for OpenSSH in it; where they miss it they do without that project's
// extensions (the library that VS Code's forks use forwards no sockets then) and write the two paths of a symbolic link in the
// other order. What this server speaks is OpenSSH's dialect.
const version = "SSH-2.0-OpenSSH_9.9 Berth"

// The client's list of ciphers decides, and OpenSSH's begins with chacha20-poly1305, which costs this process several times
// as much as AES-GCM where the processor has instructions for AES. So whoever knows AES-GCM is offered nothing else there. For that the
// greeting and the client's first packet, which come unencrypted and unasked, are read ahead.

// offer is what the client can do; its zero value is a client that waits for us.
type offer struct{ ciphers []string }

var gcm = []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM}

func fastAES() bool {
	return cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ || cpu.ARM64.HasAES && cpu.ARM64.HasPMULL
}

func (o offer) algorithms() ssh.Config {
	if fastAES() && slices.ContainsFunc(gcm, func(name string) bool { return slices.Contains(o.ciphers, name) }) {
		return ssh.Config{Ciphers: gcm}
	}
	return ssh.Config{}
}

// peekTime is how long a client may take to send its first packet after its greeting before it is served without
// knowing it: some wait for ours.
const peekTime = 500 * time.Millisecond

// maxKexInit bounds what is read ahead; those of clients have below 3 KiB.
const maxKexInit = 32 << 10

// greet exchanges greetings and returns the connection as it was before, for the library to do so again.
func greet(conn net.Conn) (net.Conn, offer, error) {
	if _, err := conn.Write([]byte(version + "\r\n")); err != nil {
		return nil, offer{}, err
	}
	in := bufio.NewReaderSize(conn, maxKexInit)
	line, err := in.ReadSlice('\n')
	if err != nil {
		return nil, offer{}, err
	}
	if !strings.HasPrefix(string(line), "SSH-2.0-") && !strings.HasPrefix(string(line), "SSH-1.99-") || len(line) > 255 {
		return nil, offer{}, errors.New("this is no client of SSH 2")
	}
	g := &greeted{Conn: conn, in: in, line: slices.Clone(line), skip: len(version) + 2}
	_ = conn.SetReadDeadline(time.Now().Add(peekTime))
	o, err := peekOffer(in)
	_ = conn.SetReadDeadline(time.Now().Add(loginTime))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, offer{}, err
	}
	return g, o, nil
}

// peekOffer reads the client's key exchange packet (RFC 4253 7.1) without taking it.
func peekOffer(in *bufio.Reader) (offer, error) {
	head, err := in.Peek(6)
	if err != nil {
		return offer{}, err
	}
	const msgKexInit = 20
	size, padding := binary.BigEndian.Uint32(head), int(head[4])
	if size > maxKexInit-4 || int(size) < padding+18 || head[5] != msgKexInit {
		return offer{}, nil // the library says what is wrong with it
	}
	packet, err := in.Peek(4 + int(size))
	if err != nil {
		return offer{}, err
	}
	rest := packet[6+16 : 4+int(size)-padding]
	var list []byte
	for range 3 { // key exchange, host keys, ciphers from client to server
		if len(rest) < 4 || uint64(len(rest)-4) < uint64(binary.BigEndian.Uint32(rest)) {
			return offer{}, nil
		}
		n := binary.BigEndian.Uint32(rest)
		list, rest = rest[4:4+n], rest[4+n:]
	}
	return offer{ciphers: strings.Split(string(list), ",")}, nil
}

// greeted gives what was read ahead again and drops the greeting that was sent already. It is used by one reader and one writer.
type greeted struct {
	net.Conn
	in   *bufio.Reader // nil when it is empty
	line []byte
	skip int
}

func (g *greeted) Read(p []byte) (int, error) {
	if len(g.line) > 0 {
		n := copy(p, g.line)
		g.line = g.line[n:]
		return n, nil
	}
	if g.in != nil {
		if g.in.Buffered() > 0 {
			return g.in.Read(p)
		}
		g.in = nil
	}
	return g.Conn.Read(p)
}

func (g *greeted) Write(p []byte) (int, error) {
	if g.skip > 0 {
		n := min(g.skip, len(p))
		g.skip -= n
		if n == len(p) {
			return n, nil
		}
		m, err := g.Conn.Write(p[n:])
		return n + m, err
	}
	return g.Conn.Write(p)
}
