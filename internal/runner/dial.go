package runner

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// maxCarried bounds the tunnels whose bytes this process copies because their caller takes no sockets. Those that are
// handed over count only until then.
const maxCarried = 512

// dialWait is how long an app may take to accept; within one machine only a full queue of connections takes time.
const dialWait = 5 * time.Second

// serveDial connects to a port of the container and gives the connection away.
func (r *Runner) serveDial(w http.ResponseWriter, q *http.Request) {
	port, err := dialPort(q)
	if err == nil {
		select {
		case r.carried <- struct{}{}:
			defer func() { <-r.carried }()
		default:
			err = fault.Exhaustedf("%d connections to apps of the session are open already", maxCarried).WithReason("too-many-connections").
				WithNext("close some of them")
		}
	}
	var target net.Conn
	if err == nil {
		if a, ok := r.own.on(port); ok {
			target, err = r.own.connect(a)
		} else if err = r.apps.Serves(port); err == nil {
			target, err = dialLoopback(q.Context(), port)
		}
	}
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	// It is counted above and must not keep ordinary calls from the socket.
	if c, ok := q.Context().Value(connKey{}).(*boundedConn); ok {
		c.release()
	}
	if _, _, err := tunnel.Accept(w, q, target); err != nil {
		r.log.Debug("a tunnel was not opened", "port", port, "err", err)
	}
}

func dialPort(q *http.Request) (int, error) {
	if !tunnel.Asked(q) {
		return 0, fault.Invalidf("this call takes an upgrade to %s", tunnel.Protocol).WithReason("no-upgrade")
	}
	text := q.URL.Query().Get("port")
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return 0, fault.Invalidf("%q is no port", text).WithNext("name a port between 1 and 65535")
	}
	return port, nil
}

// dialLoopback connects to what listens on the container's loopback address.
func dialLoopback(ctx context.Context, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: dialWait, KeepAlive: -1} // nothing between the two can vanish
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		return conn, nil
	}
	if conn, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port))); err6 == nil {
		return conn, nil
	}
	var late net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fault.Unavailablef("nothing listens on port %d in the session", port).WithReason("app-refused").
			WithNext("start the program that should listen on port %d (on 127.0.0.1 or 0.0.0.0), then try again", port).WithCause(err)
	case errors.As(err, &late) && late.Timeout():
		return nil, fault.New(fault.Timeout, "what listens on port %d in the session does not accept connections", port).WithReason("app-busy").
			WithNext("wait until the program has less to do, or start it again").WithCause(err)
	}
	return nil, fault.Unavailablef("port %d in the session cannot be reached", port).WithReason("app-unreachable").WithCause(err)
}
