package forward

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/tunnel"
)

// answerOwn lets a handler answer an HTTP/1 request.
func (h *http1) answerOwn(handler http.Handler, keep bool, limit int64) bool {
	r := &h.req
	if limit > 0 && r.length > limit {
		return h.fail(bodyTooLarge(limit), keep)
	}
	u, err := url.ParseRequestURI(r.target)
	if err != nil {
		return h.fail(malformed("the target is no path"), keep)
	}
	header := make(http.Header, len(r.fields))
	for _, f := range r.fields {
		if f.kind != hostField {
			name := http.CanonicalHeaderKey(f.name)
			header[name] = append(header[name], f.value)
		}
	}
	// What a handler leaves unread is read after it, if that is little and certain to come; else the connection ends.
	keep = keep && !r.chunked && !r.expect && r.length <= maxUnread
	body := &ownBody{h: h, left: r.length, most: limit}
	if r.expect {
		body.proceed = "HTTP/1.1 100 Continue\r\n\r\n"
	}
	// ReverseProxy ends a cut answer with a panic only where it sees a server.
	ctx, cancel := context.WithCancel(context.WithValue(h.ctx, http.ServerContextKey, h.e.h2.base))
	defer cancel()
	req := (&http.Request{Method: r.method, URL: u, Proto: "HTTP/1." + strconv.Itoa(r.minor), ProtoMajor: 1, ProtoMinor: r.minor,
		Header: header, Host: r.host, RequestURI: r.target, ContentLength: r.length, Body: http.NoBody, Close: r.close,
		RemoteAddr: net.JoinHostPort(h.client.String(), strconv.Itoa(int(h.remote.Port())))}).WithContext(ctx)
	if r.body() {
		req.Body = body
	}
	if r.chunked {
		req.ContentLength, req.TransferEncoding = -1, []string{"chunked"}
		body.chunked = httputil.NewChunkedReader(rawBody{h})
	}
	if t, ok := h.sock.conn.(*tls.Conn); ok {
		state := t.ConnectionState()
		req.TLS = &state
	}
	w := &ownWriter{h: h, header: http.Header{}, minor: r.minor, head: r.method == http.MethodHead, keep: keep}
	h.e.guard(w.header, h.listener)
	h.arm(phaseWait, h.e.cfg.ResponseTimeout)
	if !run(handler, w, req, h) {
		if w.hijacked {
			return false
		}
		if w.began {
			h.sock.reset()
			return false
		}
		return h.fail(trouble(500, "internal", "The proxy failed at this request."), false)
	}
	if w.hijacked {
		return false
	}
	if w.finish() != nil {
		return false
	}
	if !w.keep && r.body() {
		h.linger()
	}
	if w.keep && body.left > 0 {
		_, err := io.Copy(io.Discard, body)
		return err == nil
	}
	return w.keep
}

// maxUnread is how many bytes of a body are read for nobody, to keep a connection.
const maxUnread = 1 << 20

// run calls the handler and reports whether it returned.
func run(handler http.Handler, w http.ResponseWriter, req *http.Request, h *http1) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler { //nolint:errorlint // it is the value itself
				h.e.log.Error("handler panicked", "path", req.URL.Path, "panic", p)
			}
			ok = false
		}
	}()
	handler.ServeHTTP(w, req)
	return true
}

// ownBody is the body of a request that a handler answers.
type ownBody struct {
	h       *http1
	left    int64 // of a body with a length
	most    int64 // 0 is without limit
	read    int64
	chunked io.Reader
	proceed string // the interim answer that the visitor waits for
}

func (b *ownBody) Read(p []byte) (int, error) {
	if b.proceed != "" {
		if _, err := io.WriteString(b.h.sock.conn, b.proceed); err != nil {
			return 0, err
		}
		b.proceed = ""
	}
	var n int
	var err error
	switch {
	case b.chunked != nil:
		n, err = b.chunked.Read(p)
	case b.left == 0:
		return 0, io.EOF
	default:
		n, err = rawBody{b.h}.Read(p[:min(int64(len(p)), b.left)])
		b.left -= int64(n)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	if b.read += int64(n); b.most > 0 && b.read > b.most {
		return 0, &http.MaxBytesError{Limit: b.most}
	}
	return n, err
}

func (b *ownBody) Close() error { return nil }

// rawBody reads what follows a head.
type rawBody struct{ h *http1 }

func (b rawBody) Read(p []byte) (int, error) {
	s := &b.h.sock
	if len(s.buffered()) == 0 {
		b.h.arm(phaseUpload, b.h.e.cfg.StallTimeout)
		err := s.fill(pageSize)
		b.h.arm(phaseWait, b.h.e.cfg.ResponseTimeout)
		if err != nil {
			return 0, err
		}
	}
	n := copy(p, s.buffered())
	s.take(n)
	if g := b.h.group; g != nil {
		g.sent(n, b.h.e.now.Load())
	}
	return n, nil
}

// ownWriter is the ResponseWriter of a handler. Small answers get a Content-Length, others are chunked.
type ownWriter struct {
	h        *http1
	header   http.Header
	status   int
	minor    int
	head     bool
	keep     bool
	began    bool // the head is written
	chunked  bool
	hijacked bool
	buf      []byte
	err      error
}

// maxBuffered is how much of a handler's answer is held to learn its length.
const maxBuffered = 32 << 10

func (w *ownWriter) Header() http.Header { return w.header }

func (w *ownWriter) WriteHeader(status int) {
	switch {
	case w.hijacked || w.status != 0:
	case status >= 100 && status < 200 && status != 101:
		if w.minor == 1 {
			w.send(w.appendHead(fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status)), "\r\n"))
		}
	default:
		w.status = status
	}
}

func (w *ownWriter) Write(p []byte) (int, error) {
	if w.hijacked {
		return 0, http.ErrHijacked
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if !w.hasBody() {
		if w.head {
			return len(p), nil
		}
		return 0, http.ErrBodyNotAllowed
	}
	w.buf = append(w.buf, p...)
	if len(w.buf) > maxBuffered {
		w.push()
	}
	return len(p), w.err
}

func (w *ownWriter) hasBody() bool {
	return !w.head && w.status >= 200 && w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

// Flush sends what there is.
func (w *ownWriter) Flush() { _ = w.FlushError() }

// FlushError is Flush for http.ResponseController.
func (w *ownWriter) FlushError() error {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.push()
	return w.err
}

// push writes the head, when it is not, and what is buffered.
func (w *ownWriter) push() {
	var b []byte
	if !w.began {
		w.began = true
		_, sized := w.header["Content-Length"]
		w.chunked = w.hasBody() && !sized && w.minor == 1
		if w.hasBody() && !sized && w.minor == 0 {
			w.keep = false
		}
		b = w.top()
	}
	if len(w.buf) > 0 {
		if w.chunked {
			b = fmt.Appendf(b, "%x\r\n", len(w.buf))
		}
		b = append(b, w.buf...)
		if w.chunked {
			b = append(b, "\r\n"...)
		}
		w.buf = w.buf[:0]
	}
	w.send(b)
}

func (w *ownWriter) finish() error {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.began {
		w.push()
		if w.chunked {
			w.send([]byte("0\r\n\r\n"))
		}
		return w.err
	}
	w.began = true
	if w.hasBody() {
		w.header.Set("Content-Length", strconv.Itoa(len(w.buf)))
	}
	w.send(append(w.top(), w.buf...))
	return w.err
}

func (w *ownWriter) send(b []byte) {
	if w.err != nil || len(b) == 0 {
		return
	}
	w.h.arm(phaseStall, w.h.e.cfg.StallTimeout)
	_, w.err = w.h.sock.conn.Write(b)
	w.h.arm(phaseWait, w.h.e.cfg.ResponseTimeout)
	if g := w.h.group; g != nil {
		g.out.Add(int64(len(b)))
	}
}

// top is the head of the final answer.
func (w *ownWriter) top() []byte {
	end := ""
	if w.chunked {
		end += "Transfer-Encoding: chunked\r\n"
	}
	if strings.EqualFold(w.header.Get("Connection"), "close") {
		w.keep = false
	}
	switch {
	case !w.keep:
		end += "Connection: close\r\n"
	case w.minor == 0:
		end += "Connection: keep-alive\r\n"
	}
	if _, ok := w.header["Date"]; !ok {
		end += "Date: " + w.h.e.clock.Now().UTC().Format(http.TimeFormat) + "\r\n"
	}
	return w.appendHead(fmt.Appendf(nil, "HTTP/1.1 %03d %s\r\n", w.status, http.StatusText(w.status)), end+"\r\n")
}

var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

func (w *ownWriter) appendHead(b []byte, end string) []byte {
	for _, name := range slices.Sorted(maps.Keys(w.header)) {
		if name == "Connection" || name == "Transfer-Encoding" || !isToken(name) {
			continue
		}
		for _, v := range w.header[name] {
			b = appendField(b, name, oneLine.Replace(v))
		}
	}
	return append(b, end...)
}

// Hijack hands the connection over. What the visitor has sent ahead is in the reader.
func (w *ownWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.hijacked || w.began {
		return nil, nil, errors.New("the answer has begun")
	}
	w.hijacked = true
	h := w.h
	h.arm(phaseOpen, 0) // whoever takes it over sees to its end
	var r io.Reader = h.sock.conn
	ahead := len(h.sock.buffered())
	if ahead > 0 {
		r = &unread{Conn: h.sock.conn, ahead: slices.Clone(h.sock.buffered())}
		h.sock.take(ahead)
	}
	reader := bufio.NewReaderSize(r, max(ahead, 512))
	if ahead > 0 {
		if _, err := reader.Peek(ahead); err != nil {
			return nil, nil, err
		}
	}
	_ = h.sock.conn.SetDeadline(time.Time{})
	return h.sock.conn, bufio.NewReadWriter(reader, bufio.NewWriterSize(h.sock.conn, 512)), nil
}

// Tunnel answers a request to upgrade to tunnel.Protocol, which was admitted, with 101 and carries raw bytes between the visitor
// and the circuit's app until both directions have ended. w is what a Handler of this engine got, wrapped or not; where
// the app cannot be reached it answers with why.
func (e *Engine) Tunnel(w http.ResponseWriter, r *http.Request, c *circuit.Circuit) {
	own := ownBelow(w)
	if own == nil || own.began || !tunnel.Asked(r) {
		writeProblem(w, r, trouble(http.StatusUpgradeRequired, "no-tunnel", "This address is for tunnels over HTTP/1.1 alone."))
		return
	}
	v := &own.h.visit
	if v.group != nil {
		v.group.leave(v)
		v.group = nil
	}
	g, ok := e.join(c, v)
	if !ok {
		writeProblem(w, r, busy("Too many connections to this app are open."))
		return
	}
	v.group = g
	v.arm(phaseWait, 0)
	u, err := e.connectAny(v, c)
	if err != nil {
		writeProblem(w, r, dialProblem(err))
		return
	}
	g.requests.Add(1)
	own.hijacked = true
	_ = v.sock.conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(v.sock.conn,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+tunnel.Protocol+"\r\n\r\n"); err != nil {
		return
	}
	v.relay(&u.sock)
}

func ownBelow(w http.ResponseWriter) *ownWriter {
	for {
		if own, ok := w.(*ownWriter); ok {
			return own
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return nil
		}
		w = u.Unwrap()
	}
}

// unread is a connection with bytes put back before what it reads.
type unread struct {
	net.Conn
	ahead []byte
}

func (u *unread) Read(p []byte) (int, error) {
	if len(u.ahead) == 0 {
		return u.Conn.Read(p)
	}
	n := copy(p, u.ahead)
	u.ahead = u.ahead[n:]
	return n, nil
}

func (u *unread) NetConn() net.Conn { return u.Conn }

func (u *unread) CloseWrite() error {
	if c, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.New("cannot be closed by half")
}
