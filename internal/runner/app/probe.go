package app

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"berth.dev/berth/internal/wire/run"
)

// answers reports whether an app is ready at its port: it accepts a connection, and for HTTP says anything at all to a
// request, or refuses it by ending the connection, as servers of gRPC do.
func answers(ctx context.Context, port int, protocol run.AppProtocol) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := connect(ctx, port)
	if err != nil {
		return false
	}
	defer conn.Close()
	if protocol != run.AppHTTP {
		return true
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost:"+strconv.Itoa(port)+"\r\nConnection: close\r\n\r\n"); err != nil {
		return false
	}
	n, err := conn.Read(make([]byte, 1))
	return n > 0 || !errors.Is(err, os.ErrDeadlineExceeded)
}

// await asks until the app answers or ctx ends; asking becomes rarer, down to four times a second.
func await(ctx context.Context, port int, protocol run.AppProtocol) bool {
	pause := 20 * time.Millisecond
	for {
		if answers(ctx, port, protocol) {
			return true
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false
		}
		pause = min(pause*3/2, 250*time.Millisecond)
	}
}
