package forward

import (
	"errors"
	"net"
	"os"
	"strings"
	"sync"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/wire/proxy"
)

// composed keeps buffers for heads. A body that has arrived with its head is put behind it, to save a write.
var composed = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// maxComposed is the largest buffer that is kept.
const maxComposed = 64 << 10

func compose() *[]byte { return composed.Get().(*[]byte) }

func composedBack(b *[]byte, used []byte) {
	if cap(used) <= maxComposed {
		*b = used[:0]
		composed.Put(b)
	}
}

// maxInterim bounds the 1xx answers to one request.
const maxInterim = 16

// forward lets a target of the circuit answer the request and reports whether the connection can carry another.
func (h *http1) forward(c *circuit.Circuit, t proxy.Target, keep bool) bool {
	limit := h.e.bodyLimit(c)
	if limit > 0 && h.req.length > limit {
		return h.fail(bodyTooLarge(limit), keep)
	}
	asked, answered := compose(), compose()
	h.up.out, h.down.out = (*asked)[:0], (*answered)[:0]
	keep, switched := h.exchange(c, t, limit, keep)
	composedBack(asked, h.up.out)
	composedBack(answered, h.down.out)
	h.up.out, h.down.out = nil, nil
	if switched != nil {
		h.req, h.resp = request{}, response{} // long-lived: their memory is not needed any more
		h.relay(&switched.sock)
	}
	return keep
}

// exchange sends the request and passes the answer on. switched is set when both sides agreed to speak something else.
func (h *http1) exchange(c *circuit.Circuit, t proxy.Target, limit int64, keep bool) (again bool, switched *upstream) {
	r := &h.req
	h.up.out = appendRequest(h.up.out, r, h.told)
	rest := r.length
	if b := h.sock.buffered(); rest > 0 && len(b) > 0 {
		n := int(min(int64(len(b)), rest))
		h.up.out = append(h.up.out, b[:n]...)
		h.sock.take(n)
		h.group.sent(n, h.e.now.Load())
		rest -= int64(n)
	}
	replay := !r.chunked && rest == 0 && r.replayable()
	for attempt := 0; ; attempt++ {
		u, err := h.upstream(c, t, attempt == 0, !replay)
		if err != nil {
			if h.ended.Load() != nil {
				return false, nil
			}
			return h.fail(dialProblem(err), keep), nil
		}
		up, p := h.ask(u, rest, limit, replay)
		switch {
		case p == nil:
			return h.passAnswer(u, up, keep)
		case p == errStale:
			h.use(nil)
			continue
		}
		h.stopUpload(up)
		h.use(nil)
		if p == errSilent || h.ended.Load() != nil {
			return false, nil
		}
		return h.fail(p, keep && up == nil), nil
	}
}

// upstream takes or opens a connection to the target.
func (h *http1) upstream(c *circuit.Circuit, t proxy.Target, kept, careful bool) (*upstream, error) {
	if kept {
		if u := h.e.idleUpstream(h.group, t.ID(), careful); u != nil {
			if !h.use(&u.sock) {
				return nil, errEnded
			}
			return u, nil
		}
	}
	h.arm(phaseWait, 0)
	return h.e.connect(&h.visit, c, t)
}

// errSilent says that there is nobody to answer: the visitor is gone. errStale says that the app closed a kept connection before
// it can have read the request, which may be sent again on another connection.
var errSilent, errStale = &problem{}, &problem{}

// ask sends the request head that was composed, starts sending the body, and reads the head of the answer into resp. replay
// says that the request may be sent a second time.
func (h *http1) ask(u *upstream, rest, limit int64, replay bool) (*upload, *problem) {
	r := &h.req
	h.arm(phaseSend, h.e.cfg.StallTimeout)
	_, err := u.sock.write(h.up.out)
	if err != nil && u.used && replay {
		return nil, errStale
	}
	var up *upload
	if err == nil && (r.chunked || rest > 0) {
		h.up.out = h.up.out[:0]
		up = h.startUpload(u, rest, limit)
	} else {
		h.arm(phaseWait, h.e.cfg.ResponseTimeout)
	}
	for interim := 0; ; interim++ {
		head, p := h.readAnswer(u, up, replay && interim == 0)
		if p != nil {
			return up, p
		}
		if bad := parseResponse(&h.resp, head, h.e.cfg.HeaderCount); bad != nil {
			return up, badAnswer(bad)
		}
		switch s := h.resp.status; {
		case s == 101 && (r.protocol == "" || !h.resp.framing.upgrade || !strings.EqualFold(h.resp.protocol, r.protocol)):
			return up, badAnswer(malformed("it switches to a protocol that nobody asked for"))
		case s >= 200 || s == 101:
			return up, nil
		case interim == maxInterim:
			return up, badAnswer(malformed("there is no end of interim answers"))
		}
		if r.minor == 1 {
			h.down.out = appendResponse(h.down.out[:0], &h.resp, noBody, r.host, h.told.jar, false, 1)
			_, err := h.sock.write(h.down.out)
			h.down.out = h.down.out[:0]
			if err != nil {
				return up, errSilent
			}
		}
	}
}

// readAnswer reads one response head from the app.
func (h *http1) readAnswer(u *upstream, up *upload, replay bool) (string, *problem) {
	scan := 0
	for {
		b := u.sock.buffered()
		end, next, bad := headEnd(b, scan)
		switch {
		case bad != nil:
			return "", badAnswer(bad)
		case end > h.e.cfg.HeaderBytes:
			return "", badAnswer(headTooLarge(h.e.cfg.HeaderBytes))
		case end > 0:
			head := string(b[:end])
			u.sock.take(end)
			return head, nil
		}
		scan = next
		err := u.sock.fill(h.e.cfg.HeaderBytes)
		switch {
		case err == nil:
			continue
		case errors.Is(err, errTooLarge):
			return "", badAnswer(headTooLarge(h.e.cfg.HeaderBytes))
		case h.ended.Load() != nil:
			return "", errSilent
		case up.failed() != nil:
			return "", uploadProblem(up.failed(), up.limit)
		case len(b) == 0 && u.used && replay && !errors.Is(err, os.ErrDeadlineExceeded):
			return "", errStale
		case errors.Is(err, os.ErrDeadlineExceeded):
			return "", &problem{504, "no-answer", "The app did not answer in time.", "Try again; see the app's log when it goes on.", 0}
		}
		return "", &problem{502, "no-answer", "The app closed the connection without an answer.", "See the app's log.", 0}
	}
}

// upload is the sending of a request's body to the app, in a goroutine of its own, while the answer is read.
type upload struct {
	done  chan struct{}
	err   error // valid after done
	limit int64
}

func (u *upload) finished() bool {
	if u == nil {
		return true
	}
	select {
	case <-u.done:
		return true
	default:
		return false
	}
}

// failed returns why the visitor's side of the upload ended early. It is nil when the upload goes on or is complete, and when it
// was the app that stopped reading.
func (u *upload) failed() error {
	var app writeError
	if u == nil || !u.finished() || u.err == nil || errors.As(u.err, &app) {
		return nil
	}
	return u.err
}

func (h *http1) startUpload(u *upstream, rest, limit int64) *upload {
	up := &upload{done: make(chan struct{}), limit: limit}
	m := &h.up
	m.dst, m.src, m.moved, m.limit = &u.sock, &h.sock, 0, limit
	chunked := h.req.chunked
	go func() {
		var err error
		if chunked {
			err = m.chunks(true, h.e.cfg.HeaderCount)
		} else {
			err = m.data(rest)
		}
		if err == nil {
			err = m.flush()
		}
		if err == nil {
			// From here on it is the app that is waited for, unless its answer is on the way.
			if s := h.state.Load(); s != expired && phase(s&phaseMask) == phaseSend {
				h.state.CompareAndSwap(s, int64(phaseWait)|(h.e.now.Load()+int64(h.e.cfg.ResponseTimeout))&^phaseMask)
			}
		}
		up.err = err
		close(up.done)
		if up.failed() != nil {
			u.sock.kill() // wakes who reads the answer
		}
	}()
	return up
}

// stopUpload ends an upload whose answer is over, and waits for it.
func (h *http1) stopUpload(up *upload) {
	if up.finished() {
		return
	}
	h.mu.Lock()
	if h.visit.up != nil {
		h.visit.up.kill()
	}
	h.mu.Unlock()
	_ = h.sock.conn.SetReadDeadline(past)
	<-up.done
}

// uploadProblem is the answer to a visitor whose body did not arrive.
func uploadProblem(err error, limit int64) *problem {
	var bad *problem
	switch {
	case errors.Is(err, errTooLarge):
		return bodyTooLarge(limit)
	case errors.As(err, &bad):
		return bad
	case errors.Is(err, os.ErrDeadlineExceeded):
		return trouble(408, "slow-body", "The request's body did not arrive in time.")
	}
	return errSilent
}

// form decides how the end of the answer's body is marked for the visitor.
func (h *http1) form() bodyForm {
	f := &h.resp.framing
	switch {
	case h.resp.bodyless(h.req.method):
		return noBody
	case f.chunked && h.req.minor == 0:
		return plainBody
	case f.chunked:
		return chunkedBody
	case f.length >= 0:
		return sizedBody
	}
	return endlessBody
}

// passAnswer sends the visitor the answer whose head is in resp. again says that the visitor's connection can carry another
// request; switched is the app's connection when both sides speak another protocol from now on.
func (h *http1) passAnswer(u *upstream, up *upload, keep bool) (again bool, switched *upstream) {
	m := &h.down
	m.dst, m.src, m.moved = &h.sock, &u.sock, 0
	if h.resp.status == 101 {
		m.out = appendResponse(m.out[:0], &h.resp, noBody, h.req.host, h.told.jar, false, 1)
		if m.flush() != nil {
			h.use(nil)
			return false, nil
		}
		return false, u
	}
	form := h.form()
	uploaded := up.finished() && (up == nil || up.err == nil)
	last := !keep || form == plainBody || form == endlessBody || !uploaded
	if h.listener.Port != 0 {
		h.resp.fields = append(h.resp.fields, field{"Vary", "Cookie", other})
	}
	if h.e.binds(h.listener) { // the app's own was taken out: it may say less, or more
		h.resp.fields = append(h.resp.fields, field{"Strict-Transport-Security", chassis.HSTS, other})
	}
	m.out = appendResponse(m.out[:0], &h.resp, form, h.req.host, h.told.jar, last, h.req.minor)
	var err error
	switch form {
	case sizedBody:
		err = m.data(h.resp.framing.length)
	case chunkedBody, plainBody:
		err = m.chunks(form == chunkedBody, h.e.cfg.HeaderCount)
	case endlessBody:
		err = m.data(-1)
	}
	if err == nil {
		err = m.flush()
	}
	h.stopUpload(up)
	if err != nil {
		h.use(nil)
		if !errors.Is(err, net.ErrClosed) {
			h.sock.reset() // the visitor has to see that something is missing
		}
		return false, nil
	}
	if uploaded && h.resp.minor == 1 && !h.resp.framing.close && form != endlessBody && len(u.sock.buffered()) == 0 {
		if h.part() {
			h.e.keepUpstream(h.group, u)
		} else {
			u.sock.kill()
		}
	} else {
		h.use(nil)
	}
	if last && !uploaded {
		h.linger()
	}
	return !last, nil
}
