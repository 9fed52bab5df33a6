package forward

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"strings"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/wire/proxy"
)

// http1 is a visitor's HTTP/1 connection: its requests one after the other.
type http1 struct {
	visit
	listener Listener
	req      request
	resp     response
	down, up mover // of answers to the visitor, of requests' bodies to the app

	client     netip.Addr // the visitor's
	secure     bool
	told       visitor // what apps are told of them
	byAddress  *bucket
	user       string
	byUser     *bucket
	lastClient netip.Addr // whose bucket and text are kept
}

var preface = []byte("PRI * HTTP/2.0\r\n\r\n")

// serve answers requests until one of the sides has enough.
func (h *http1) serve() {
	h.down.progress, h.up.progress = h.onDown, h.onUp
	defer h.sock.release()
	for first := true; ; first = false {
		head, ok := h.readHead(first)
		if !ok {
			return
		}
		if head == "" {
			h.e.h2.serve(&h.visit, &unread{Conn: h.sock.conn, ahead: bytes.Clone(h.sock.buffered())}, h.listener)
			return
		}
		if !h.serveRequest(head) || h.ended.Load() != nil {
			return
		}
	}
}

// readHead waits for a request and returns its head; "" when HTTP/2 begins, whose preface stays unread.
func (h *http1) readHead(first bool) (string, bool) {
	if len(h.sock.buffered()) == 0 {
		d := h.e.cfg.IdleTimeout
		if first {
			d = h.e.cfg.HeaderTimeout
		}
		h.arm(phaseIdle, d)
		if h.sock.fill(h.e.cfg.HeaderBytes) != nil {
			return "", false
		}
	}
	scan, armed := 0, false
	for {
		b := h.sock.buffered()
		for scan == 0 && len(b) >= 2 && b[0] == '\r' && b[1] == '\n' { // what old clients send after a body
			h.sock.take(2)
			b = b[2:]
		}
		end, next, bad := headEnd(b, scan)
		switch {
		case bad != nil:
			h.fail(bad, false)
			return "", false
		case end > h.e.cfg.HeaderBytes:
			h.fail(headTooLarge(h.e.cfg.HeaderBytes), false)
			return "", false
		case end > 0 && first && !h.listener.TLS && bytes.HasPrefix(b, preface):
			return "", true
		case end > 0:
			head := string(b[:end])
			h.sock.take(end)
			return head, true
		}
		scan = next
		if !armed {
			armed = true
			h.arm(phaseHead, h.e.cfg.HeaderTimeout)
		}
		switch err := h.sock.fill(h.e.cfg.HeaderBytes); {
		case errors.Is(err, errTooLarge):
			h.fail(headTooLarge(h.e.cfg.HeaderBytes), false)
			return "", false
		case errors.Is(err, os.ErrDeadlineExceeded):
			h.fail(trouble(408, "slow-head", "The request did not arrive in time."), false)
			return "", false
		case err != nil:
			return "", false
		}
	}
}

// serveRequest answers one request and reports whether the connection can carry another.
func (h *http1) serveRequest(head string) bool {
	r := &h.req
	if bad := parseRequest(r, head, h.e.cfg.HeaderCount); bad != nil {
		h.fail(bad, false)
		return false
	}
	h.lookAtVisitor()
	defer h.aim(proxy.TargetID{})
	keep := !r.close && (r.minor == 1 || r.keepAlive)
	now := h.e.ticks()
	if wait, ok := h.byAddress.take(now, h.e.cfg.RequestsPerAddress); !ok {
		return h.fail(tooManyRequests("your address", wait), keep)
	}
	path, query, _ := strings.Cut(r.target, "?")
	for range maxRoutes {
		closes := h.e.closes.Load()
		route := h.e.router(Head{Listener: h.listener, Method: r.method, Host: strings.ToLower(r.host), Path: path, RawQuery: query,
			Header: Header{r.fields}, Remote: h.remote, Client: h.client, Secure: h.secure, TLS: h.listener.TLS, Upgrade: r.protocol, Major: 1})
		c := route.Circuit
		switch {
		case route.Handler != nil:
			return h.answerOwn(route.Handler, keep, h.e.cfg.OwnBody)
		case c == nil:
			return h.fail(trouble(404, "no-app", "There is no app at this address."), keep)
		case !c.HTTP():
			return h.fail(trouble(404, "no-http", "This app does not speak HTTP."), keep)
		}
		if h.group == nil || h.group.id != c.ID {
			if h.group != nil {
				h.group.leave(&h.visit)
				h.group = nil
			}
			g, ok := h.e.join(c, &h.visit)
			if !ok {
				return h.fail(busy("Too many connections to this app are open."), keep)
			}
			h.group = g
		}
		t, ok := c.Pick(route.Key)
		if !ok {
			return h.fail(dialProblem(Drained()), keep)
		}
		h.aim(t.ID()) // no target once serveRequest is over
		if h.e.closes.Load() != closes {
			continue // a circuit or a target was closed meanwhile: it may have been this one
		}
		if h.ended.Load() != nil {
			return false
		}
		if p := h.overRate(c, route.User, now); p != nil {
			return h.fail(p, keep)
		}
		h.group.requests.Add(1)
		h.group.sent(len(head), h.e.now.Load())
		h.told.jar = route.Jar
		if multiplexed(c) {
			return h.answerOwn(h.e.h2.toApp(c, t, h.group, h.told), keep, h.e.bodyLimit(c))
		}
		if strings.HasPrefix(r.protocol, "berth-") { // ours: apps have nothing to do with it
			r.protocol = ""
		}
		return h.forward(c, t, keep)
	}
	return h.fail(busy("The app is being changed."), keep)
}

// maxRoutes is how often a Router is asked about one request when circuits are closed meanwhile.
const maxRoutes = 8

// overRate takes a token of the circuit and of its visitor.
func (h *http1) overRate(c *circuit.Circuit, user string, now int64) *problem {
	if user != "" && user != h.user {
		h.user, h.byUser = user, h.e.byUser.of(user, now)
	}
	var b *bucket
	if user != "" {
		b = h.byUser
	}
	return h.e.overRate(c, h.group, b, now)
}

func (e *Engine) overRate(c *circuit.Circuit, g *group, user *bucket, now int64) *problem {
	rate := e.cfg.RequestsPerCircuit
	if c.Limits.RequestsPerSecond > 0 {
		rate = c.Limits.RequestsPerSecond
	}
	if user != nil {
		if wait, ok := user.take(now, e.cfg.RequestsPerUser); !ok {
			return tooManyRequests("you", wait)
		}
	}
	if wait, ok := g.rate.take(now, rate); !ok {
		return tooManyRequests("this app's visitors", wait)
	}
	return nil
}

// bodyLimit is the largest body that a request to the circuit may have; 0 is without limit.
func (e *Engine) bodyLimit(c *circuit.Circuit) int64 {
	if c.Limits.BodyBytes > 0 {
		return c.Limits.BodyBytes
	}
	return e.cfg.BodyBytes
}

// lookAtVisitor finds who asks: the other end, or whom a trusted proxy there speaks for.
func (h *http1) lookAtVisitor() {
	client, secure := h.remote.Addr(), h.listener.TLS
	if !h.e.cfg.Trusted.Empty() {
		client, secure = h.e.visitorBehind(client, secure, Header{h.req.fields}.Values)
	}
	if client != h.lastClient || h.byAddress == nil || secure != h.secure {
		h.lastClient = client
		h.byAddress = h.e.byAddress.of(circuit.Network(client), h.e.now.Load())
		h.told = told(client, secure)
	}
	h.client, h.secure = client, secure
}

func told(client netip.Addr, secure bool) visitor {
	v := visitor{addr: "unknown", proto: "http"}
	if client.IsValid() {
		v.addr = client.Unmap().String()
	}
	if secure {
		v.proto = "https"
	}
	return v
}

// visitorBehind finds the visitor behind the other end of a connection, see clientaddr.
func (e *Engine) visitorBehind(client netip.Addr, secure bool, values func(string) []string) (netip.Addr, bool) {
	if !e.Trusted(client) {
		return client, secure
	}
	trusted := e.cfg.Trusted
	secure = trusted.Secure(client, secure, values(clientaddr.ForwardedProto))
	return trusted.Client(client, values(clientaddr.ForwardedFor)), secure
}

// onDown and onUp are told by movers what they wait for and what has moved.
func (h *http1) onDown(w waiting, moved int) {
	switch {
	case moved > 0:
		h.group.out.Add(int64(moved))
	case w == forSource:
		h.arm(phaseStream, h.e.cfg.OpenIdle)
	default:
		h.arm(phaseStall, h.e.cfg.StallTimeout)
	}
}

func (h *http1) onUp(w waiting, moved int) {
	if w == forTarget && moved > 0 {
		h.group.sent(moved, h.e.now.Load())
	}
	if w == forSource {
		h.arm(phaseUpload, h.e.cfg.StallTimeout)
	} else {
		h.arm(phaseSend, h.e.cfg.StallTimeout)
	}
}
