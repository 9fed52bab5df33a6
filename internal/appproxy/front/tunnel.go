package front

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// TunnelPath is where tunnels begin, with ?circuit=ID.
const TunnelPath = "/v2/tunnel"

// Bearer is the scheme of tickets in Authorization. Requests that have it are ours to answer; apps never see the field.
const Bearer = "Berth "

// The subprotocols of tunnels in a WebSocket: the first is what is spoken, the second carries the ticket of a browser, which
// can set no header.
const (
	socketProtocol = "berth-conn-1"
	socketTicket   = "berth-ticket."
)

// awaitCircuit is how long a tunnel waits for a circuit that its ticket names and the proxy does not know yet. It is less than clients
// wait for an answer (api, proxyConnect): that a circuit is gone has to reach them, so that they fetch another ticket.
const awaitCircuit = 5 * time.Second

// admit finds the circuit that a request for a tunnel names and lets its ticket decide.
func (f *Front) admit(r *http.Request, ticket string) (*circuit.Circuit, error) {
	id := r.URL.Query().Get("circuit")
	now := f.o.Clock.Now()
	t, ok := proxy.ReadTicket(ticket, f.o.Manager.Table().Keys())
	if !ok || t.Circuit != id || !now.Before(t.Expires) {
		return nil, fault.New(fault.Unauthenticated, "the ticket is not valid, or not any more").WithReason("bad-ticket").
			WithNext("get another one from the manager")
	}
	c := f.o.Manager.Table().ByID(id)
	if c == nil || c.Epoch < t.Epoch { // its event is on the way
		ctx, cancel := context.WithTimeout(r.Context(), awaitCircuit)
		c = f.o.Manager.AwaitCircuit(ctx, id, t.Epoch)
		cancel()
	}
	if c == nil {
		return nil, fault.NotFoundf("the app is not published any more").WithReason("circuit-gone").WithNext("see whether its session still runs")
	}
	v := c.Admit(f.o.Manager.Table().Keys(), circuit.Visitor{At: now, Addr: visitor(r), Method: r.Method, Upgrade: true, Bearer: ticket})
	switch v.Decision {
	case circuit.Pass:
		return c, nil
	case circuit.Login:
		return nil, fault.New(fault.Unauthenticated, "%s", v.Words).WithReason(v.Reason).WithNext("get another ticket from the manager")
	}
	return nil, fault.Deniedf("%s", v.Words).WithReason(v.Reason)
}

// tunnel connects a program with an app of any protocol: after the upgrade the connection carries the app's bytes.
func (f *Front) tunnel(w http.ResponseWriter, r *http.Request) {
	if !tunnel.Asked(r) {
		run.WriteFailure(w, fault.Invalidf("this address is for tunnels").WithReason("no-upgrade").WithNext("send Upgrade: %s", tunnel.Protocol))
		return
	}
	ticket, _ := strings.CutPrefix(r.Header.Get("Authorization"), Bearer)
	c, err := f.admit(r, ticket)
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	f.o.Tunnel(w, r, c)
}

// socket is the tunnel for browsers: the same bytes in binary messages of a WebSocket.
func (f *Front) socket(w http.ResponseWriter, r *http.Request) {
	ticket, ok := strings.CutPrefix(r.Header.Get("Authorization"), Bearer)
	if !ok {
		for _, p := range strings.Split(r.Header.Get("Sec-WebSocket-Protocol"), ",") {
			if t, found := strings.CutPrefix(strings.TrimSpace(p), socketTicket); found {
				ticket = t
			}
		}
	}
	c, err := f.admit(r, ticket)
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	app, target, err := f.o.Dial(r.Context(), c, visitor(r))
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	// Pages of every origin may connect: what counts is the ticket that they show, never a cookie.
	ws, err := websocket.Accept(&switching{ResponseWriter: w}, r, &websocket.AcceptOptions{
		Subprotocols: []string{socketProtocol}, InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		_ = app.Close()
		return // Accept has answered
	}
	ws.SetReadLimit(1 << 20)
	// The WebSocket outlives this request.
	f.o.Join(websocket.NetConn(context.WithoutCancel(r.Context()), ws, websocket.MessageBinary), app, c, target)
}

// switching sends the head of a 101 itself when the connection is hijacked, because servers differ in whether they do.
type switching struct {
	http.ResponseWriter
	asked bool
}

// WriteHeader sends the head, except for 101, which Hijack sends.
func (s *switching) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols {
		s.asked = true
		return
	}
	s.ResponseWriter.WriteHeader(status)
}

// Hijack takes the connection over.
func (s *switching) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, ahead, err := http.NewResponseController(s.ResponseWriter).Hijack()
	if err != nil || !s.asked {
		return conn, ahead, err
	}
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = s.Header().Write(&head) // to memory
	head.WriteString("\r\n")
	if _, err := conn.Write(head.Bytes()); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, ahead, nil
}
