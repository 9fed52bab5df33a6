package tunnel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// replyLimit bounds the writing of a reply.
const replyLimit = 10 * time.Second

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n\r\n"

// Asked reports whether r is a request of this protocol.
func Asked(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.EqualFold(r.Header.Get("Upgrade"), Protocol)
}

// Accept answers r with the connection target, which it owns from here on: it hands it over where the caller can take it,
// else it carries bytes both ways until both directions have ended or either connection breaks. Closing target ends it. It
// returns the bytes carried each way (0 after a hand-over) when that is over.
func Accept(w http.ResponseWriter, r *http.Request, target net.Conn) (in, out int64, err error) {
	defer target.Close()
	conn, buffered, err := answer(w)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	reply := switching
	if r.Header.Get(HeaderHandOver) == HandOverFD {
		// What the caller has sent already cannot go along with the socket.
		if unix := unixConn(conn); unix != nil && buffered.Reader.Buffered() == 0 {
			unsent, err := handOver(unix, []byte(reply+string(handed)), target)
			if err == nil {
				return 0, 0, nil
			}
			if !unsent {
				return 0, 0, fmt.Errorf("hand over: %w", err)
			}
		}
		reply += string(carried) // a target without a descriptor of its own, for one
	}
	return carry(conn, buffered.Reader, reply, target)
}

// answer takes the connection of a request over, with a deadline for the reply in place of the server's own.
func answer(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		run.WriteFailure(w, fault.New(fault.Internal, "this connection cannot become a tunnel"))
		return nil, nil, fmt.Errorf("take over the connection: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(replyLimit)); err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("answer: %w", err)
	}
	return conn, buffered, nil
}

// carry sends the reply and carries bytes both ways from then on, those first that the caller had sent too early.
func carry(conn net.Conn, early *bufio.Reader, reply string, target net.Conn) (in, out int64, err error) {
	if _, err := io.WriteString(conn, reply); err != nil {
		return 0, 0, fmt.Errorf("answer: %w", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return 0, 0, fmt.Errorf("answer: %w", err)
	}
	ahead, err := readAhead(early)
	if err == nil && len(ahead) > 0 {
		_, err = target.Write(ahead)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("pass on what the caller had sent: %w", err)
	}
	in, out = Join(conn, target)
	return in + int64(len(ahead)), out, nil
}

// readAhead takes what a server has read beyond the request.
func readAhead(r *bufio.Reader) ([]byte, error) { return r.Peek(r.Buffered()) }

// Join copies between two connections, with splice where both are sockets, until both directions have ended; the end of one
// direction is passed on as a half-close. It closes neither. in counts the bytes from a to b, out those back.
func Join(a, b net.Conn) (in, out int64) {
	done := make(chan int64, 1)
	go func() {
		n, err := io.Copy(a, b)
		finish(a, b, err)
		done <- n
	}()
	in, err := io.Copy(b, a)
	finish(b, a, err)
	return in, <-done
}

// finish ends the direction towards to. After an error the other direction has no purpose either.
func finish(to, from net.Conn, err error) {
	if err == nil && closeWrite(to) == nil {
		return
	}
	past := time.Unix(1, 0)
	_ = to.SetDeadline(past)
	_ = from.SetDeadline(past)
}

// closeWrite finds the half-close below wrappers that only count or name their connection.
func closeWrite(c net.Conn) error {
	for {
		switch t := c.(type) {
		case interface{ CloseWrite() error }:
			return t.CloseWrite()
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return errors.New("cannot be closed by half")
		}
	}
}
