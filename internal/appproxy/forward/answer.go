package forward

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// problem is the answer of the proxy itself to a request that the app does not answer.
type problem struct {
	status int
	reason string // slug
	words  string
	next   string
	retry  time.Duration // Retry-After; 0 says nothing
}

func (p *problem) Error() string { return p.words }

func trouble(status int, reason, words string) *problem {
	return &problem{status: status, reason: reason, words: words}
}

func malformed(what string) *problem {
	return trouble(400, "malformed", "The message is malformed: "+what+".")
}

func tooManyFields(most int) *problem {
	return trouble(431, "too-many-fields", fmt.Sprintf("The head has more than %d fields.", most))
}

func headTooLarge(most int) *problem {
	return trouble(431, "head-too-large", fmt.Sprintf("The head is larger than %d bytes.", most))
}

func bodyTooLarge(most int64) *problem {
	return trouble(413, "body-too-large", fmt.Sprintf("The request's body is larger than %d bytes.", most))
}

func tooManyRequests(who string, wait time.Duration) *problem {
	return &problem{429, "too-many-requests", "Too many requests of " + who + ".", "Try again in a moment.", max(wait, time.Second)}
}

func busy(words string) *problem {
	return &problem{503, "busy", words, "Try again in a moment.", 2 * time.Second}
}

// badAnswer is the answer to a visitor whose app sent a message that is malformed.
func badAnswer(bad *problem) *problem {
	return &problem{502, "bad-answer", "The app answered with something that is not HTTP. " + bad.words, "See the app's log.", 0}
}

// dialProblem says in words why the app was not reached.
func dialProblem(err error) *problem {
	p := &problem{502, "unreachable", "The app cannot be reached.", "", 5 * time.Second}
	var f *fault.Error
	if errors.As(err, &f) {
		switch f.Kind {
		case fault.Timeout:
			p.status = 504
		case fault.Unavailable, fault.Conflict:
			p.status = 503
		case fault.NotFound:
			p.status = 404
		}
		if f.Msg != "" {
			p.words = sentence(f.Msg)
		}
		if f.Reason != "" {
			p.reason = f.Reason
		}
	}
	if next := fault.NextOf(err); next != "" {
		p.next = sentence(next)
	}
	return p
}

func sentence(s string) string {
	s = strings.ToUpper(s[:1]) + s[1:]
	if !strings.HasSuffix(s, ".") {
		s += "."
	}
	return s
}

// body renders the problem as HTML for clients that accept it, else as JSON.
func (p *problem) body(accept string) (kind string, text []byte) {
	if strings.Contains(accept, "text/html") {
		title := html.EscapeString(strconv.Itoa(p.status) + " " + http.StatusText(p.status))
		return "text/html; charset=utf-8", fmt.Appendf(nil,
			`<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%s</title>`+
				`<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:15vh auto;padding:0 1em;color:#222}`+
				`@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}}</style>`+
				"<h1>%s</h1><p>%s</p><p>%s</p>\n", title, title, html.EscapeString(p.words), html.EscapeString(p.next))
	}
	text, _ = json.Marshal(map[string]string{"reason": p.reason, "msg": p.words, "next": p.next}) // strings encode
	return "application/json", append(text, '\n')
}

// problemPolicy is the Content-Security-Policy of problems: nothing but their own style, and no frames.
const problemPolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// binds reports whether answers at a listener tell browsers to come by TLS alone from then on.
func (e *Engine) binds(l Listener) bool { return e.cfg.HSTS && l.TLS }

// guard sets the fields that every answer of the proxy itself has; a handler may change them.
func (e *Engine) guard(h http.Header, l Listener) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	if e.binds(l) {
		h.Set("Strict-Transport-Security", chassis.HSTS)
	}
}

// fail answers with a problem and reports whether the connection can carry another request.
func (h *http1) fail(p *problem, keep bool) bool {
	h.e.log.Debug("request not forwarded", "host", h.req.host, "status", p.status, "reason", p.reason)
	keep = keep && !h.req.body() && p.status != http.StatusRequestTimeout
	kind, text := p.body(Header{h.req.fields}.Get("Accept"))
	b := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n"+
		"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nContent-Security-Policy: "+problemPolicy+"\r\n",
		p.status, http.StatusText(p.status), kind, len(text))
	if h.e.binds(h.listener) {
		b = appendField(b, "Strict-Transport-Security", chassis.HSTS)
	}
	if p.retry > 0 {
		b = appendField(b, "Retry-After", retryAfter(p.retry))
	}
	switch {
	case !keep:
		b = append(b, "Connection: close\r\n"...)
	case h.req.minor == 0:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	b = append(b, "\r\n"...)
	if h.req.method != http.MethodHead {
		b = append(b, text...)
	}
	h.arm(phaseStall, h.e.cfg.StallTimeout)
	_ = h.sock.conn.SetDeadline(time.Time{}) // a deadline that struck has done its work
	if _, err := h.sock.conn.Write(b); err != nil {
		return false
	}
	if !keep {
		h.linger()
	}
	return keep
}

// retryAfter is d in whole seconds, rounded up.
func retryAfter(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

const (
	lingerTime  = 2 * time.Second
	lingerBytes = 1 << 20
)

// linger closes the sending direction and reads on for a moment. Closing a connection with unread bytes makes the kernel send a
// reset, and the visitor would lose the answer.
func (h *http1) linger() {
	h.arm(phaseStall, lingerTime)
	_ = h.sock.conn.SetReadDeadline(time.Time{})
	if h.sock.halfClose() != nil {
		return
	}
	for left := lingerBytes; left > 0; {
		n := len(h.sock.buffered())
		h.sock.take(n)
		left -= n
		if h.sock.fill(pageSize) != nil {
			return
		}
	}
}

// refuse answers a connection that is not accepted, and closes it.
func (h *http1) refuse(err error) {
	p := dialProblem(err)
	_, text := p.body("")
	_ = h.sock.conn.SetDeadline(time.Now().Add(time.Second)) // the kernel's clock, not the engine's
	_, _ = io.WriteString(h.sock.conn, fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"+
		"Retry-After: 5\r\nConnection: close\r\n\r\n%s", len(text), text))
	_ = h.sock.conn.Close()
}
