package frame

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// halfCloser is a connection whose one direction can end before the other.
type halfCloser interface{ CloseWrite() error }

// lingering is how long a connection that cannot be closed by half stays open for answers after our direction has ended.
const lingering = time.Minute

// EndWrite passes the end of our direction on; err is what ended it. A connection that cannot be closed by half is closed
// after a minute.
func EndWrite(app net.Conn, err error) {
	h, ok := app.(halfCloser)
	switch {
	case err != nil:
		_ = app.Close() // the local side is gone, or the app's
	case !ok:
		time.AfterFunc(lingering, func() { _ = app.Close() })
	case h.CloseWrite() != nil:
		_ = app.Close()
	}
}

// Join carries bytes both ways between a local connection and an app's until both directions have ended, and closes the
// app's. The end of one direction is passed on as a half-close where the connection can; where it cannot, the other direction
// goes on for a minute. It returns why the
// app's side could not go on, nil when one of the two just went away.
func Join(ctx context.Context, local, app net.Conn) error {
	defer app.Close()
	stop := context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_ = local.SetDeadline(past)
		_ = app.SetDeadline(past)
		_ = app.Close() // not every kind of connection heeds a deadline that lies in the past
	})
	defer stop()
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, err := io.Copy(app, local)
		EndWrite(app, err)
	}()
	_, err := io.Copy(local, app)
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "write" || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) {
		err = nil // a side went away, which the other one sees
	}
	if h, ok := local.(halfCloser); ok && err == nil {
		_ = h.CloseWrite()
		if _, ok := app.(halfCloser); !ok {
			_ = local.SetReadDeadline(time.Unix(1, 0)) // nobody reads any more
		}
	} else {
		_ = local.SetDeadline(time.Unix(1, 0))
	}
	<-up
	return err
}
