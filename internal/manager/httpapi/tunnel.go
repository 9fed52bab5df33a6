package httpapi

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
)

const (
	// maxTunnels bounds the streams to apps that one manager carries; app proxies are made for many.
	maxTunnels = 4096
	// openPatience is how long an app may take to accept a connection.
	openPatience = 20 * time.Second
	tunnelBuffer = 32 << 10
)

// tunnel carries the bytes of one connection to an app in binary messages: the older way of clients, through the manager
// itself. Failures before the upgrade are problems; after it, closing with 1013 says that nothing listens, 1001 that the app
// closed.
func (a *API) tunnel(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	want, err := wanted(p, "app|service")
	if err != nil {
		return err
	}
	if !isUpgrade(c) {
		return fault.Invalidf("%.200s is a WebSocket", c.r.URL.Path).
			WithReason(reasonBadRequest).
			WithNext("connect with a WebSocket client")
	}
	if a.tunnels.Add(1) > maxTunnels {
		a.tunnels.Add(-1)
		return fault.Unavailablef("this manager carries %d connections to apps already", maxTunnels).
			WithNext("use the app proxy, or try again later")
	}
	defer a.tunnels.Add(-1)
	way, err := a.apps.Reach(c.ctx(), c.actor, ref, who, want)
	if err != nil {
		return err
	}
	// The signature proves the caller; a browser cannot make one for a foreign page.
	conn, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		c.w.note = err.Error()
		return errResponded
	}
	c.w.status = 101
	conn.SetReadLimit(-1) // messages are passed on in parts, whatever their size
	defer func() { _ = conn.CloseNow() }()
	ctx, cancel := context.WithCancel(c.ctx())
	defer cancel()
	late := time.AfterFunc(openPatience, cancel)
	stream, err := way.Open(ctx)
	if err != nil || !late.Stop() {
		if err == nil {
			_ = stream.Close()
			err = fault.New(fault.Timeout, "app %s took too long to accept a connection", way.App)
		}
		c.w.note = err.Error()
		closeWith(conn, websocket.StatusTryAgainLater, problemOf(err).Msg)
		return nil
	}
	code, why := a.carry(ctx, conn, stream, way)
	closeWith(conn, code, why)
	return nil
}

func closeWith(conn *websocket.Conn, code websocket.StatusCode, why string) {
	_ = conn.Close(code, fault.Cut(why, maxCloseReason))
}

// carry moves bytes both ways until either side ends.
func (a *API) carry(ctx context.Context, conn *websocket.Conn, stream io.ReadWriteCloser, way *app.Way) (websocket.StatusCode, string) {
	ctx, cancel := context.WithCancel(ctx)
	// The end of ctx ends the stream, and with it the reads below.
	unhook := context.AfterFunc(ctx, func() { _ = stream.Close() })
	var stuck atomic.Bool // the app takes nothing, so neither messages nor pongs are read
	up := make(chan struct{})
	go func() {
		defer close(up)
		defer cancel() // the client has gone
		to := &toApp{stream: stream, way: way, stuck: &stuck}
		buf := make([]byte, tunnelBuffer)
		for {
			// Ending the context of a Reader would cut the connection before the last words.
			_, r, err := conn.Reader(context.WithoutCancel(ctx))
			if err != nil {
				return
			}
			if _, err := io.CopyBuffer(to, onlyReader{r}, buf); err != nil {
				return
			}
		}
	}()
	pinged := make(chan struct{})
	go func() { defer close(pinged); pingTunnel(ctx, conn, &stuck) }()
	buf := make([]byte, tunnelBuffer)
	for {
		n, err := stream.Read(buf)
		if n > 0 {
			wctx, done := context.WithTimeout(context.WithoutCancel(ctx), writePatience)
			werr := conn.Write(wctx, websocket.MessageBinary, buf[:n])
			done()
			if werr != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	gone := ctx.Err() != nil
	endCode, endWhy, ours := a.ending(ctx)
	cancel()
	unhook()
	_ = stream.Close()
	code, why := websocket.StatusGoingAway, "the app closed the connection"
	if ours {
		code, why = endCode, endWhy
	} else if gone {
		code, why = websocket.StatusNormalClosure, ""
	}
	closeWith(conn, code, why)
	_ = conn.CloseNow()
	<-up
	<-pinged
	return code, why
}

// onlyReader keeps io.CopyBuffer to its buffer.
type onlyReader struct{ io.Reader }

// toApp notes that the client sends something, and while the app does not take it.
type toApp struct {
	stream io.Writer
	way    *app.Way
	stuck  *atomic.Bool
}

func (t *toApp) Write(b []byte) (int, error) {
	t.way.Used()
	t.stuck.Store(true)
	defer t.stuck.Store(false)
	return t.stream.Write(b)
}

// pingTunnel finds out about clients that vanished without a word.
func pingTunnel(ctx context.Context, conn *websocket.Conn, stuck *atomic.Bool) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if stuck.Load() {
			continue
		}
		pctx, cancel := context.WithTimeout(ctx, writePatience)
		err := conn.Ping(pctx)
		cancel()
		if err != nil && !stuck.Load() {
			_ = conn.CloseNow()
			return
		}
	}
}
