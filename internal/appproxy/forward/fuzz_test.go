package forward

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"berth.dev/berth/internal/appproxy/circuit"
)

// FuzzRequest: what is accepted, net/http reads in the same way, and so would what the app gets.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: app\r\n\r\n", "POST /a?b HTTP/1.1\r\nHost: app:80\r\nContent-Length: 3\r\n\r\n",
		"GET http://app/x HTTP/1.1\r\nHost: app\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\nCookie: berth-1=x; a=b\r\nX-Forwarded-For: y\r\n\r\n",
		"OPTIONS * HTTP/1.0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: app\r\nConnection: upgrade, x\r\nUpgrade: websocket\r\nX: \t y \r\n\r\n",
		"GET / HTTP/1.1\r\nHost: app\r\nX : y\r\n z\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		end, _, bad := headEnd(b, 0)
		if bad != nil || end == 0 {
			return
		}
		var r request
		if parseRequest(&r, string(b[:end]), 64) != nil {
			return
		}
		check := func(text []byte, what string) *http.Request {
			q, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
			if err != nil {
				// What net/http refuses beyond the grammar of messages: URLs that it cannot parse.
				if strings.Contains(err.Error(), "parse ") || strings.Contains(err.Error(), "invalid URI") {
					return nil
				}
				t.Fatalf("%s: net/http refuses what is accepted: %v: %q", what, err, text)
			}
			if q.Method != r.method || q.ProtoMinor != r.minor && what == "sent" {
				t.Fatalf("%s: %s %d, net/http %s %d", what, r.method, r.minor, q.Method, q.ProtoMinor)
			}
			if chunked := len(q.TransferEncoding) > 0; chunked != r.chunked || !chunked && q.ContentLength != r.length {
				t.Fatalf("%s: framing %v %d, net/http %v %d", what, r.chunked, r.length, q.TransferEncoding, q.ContentLength)
			}
			if r.host != "" && q.Host != r.host {
				t.Fatalf("%s: host %q, net/http %q", what, r.host, q.Host)
			}
			return q
		}
		check(b[:end], "sent")
		if r.host == "" {
			return
		}
		out := appendRequest(nil, &r, visitor{addr: "1.2.3.4", proto: "http"})
		q := check(out, "passed on")
		if q == nil {
			return
		}
		if q.RequestURI != r.target {
			t.Fatalf("target %q became %q", r.target, q.RequestURI)
		}
		for name, values := range q.Header {
			switch kindOf(name) {
			case platformField, hopField:
				t.Fatalf("%s passed: %q", name, values)
			case forwardedField:
				if len(values) != 1 {
					t.Fatalf("%s passed: %q", name, values)
				}
			case authorizationField:
				for _, v := range values {
					if platformAuthorization(v) {
						t.Fatalf("%s passed: %q", name, values)
					}
				}
			}
		}
		for _, c := range q.Cookies() {
			if strings.HasPrefix(c.Name, "berth-") || strings.HasPrefix(c.Name, "__Host-berth-") {
				t.Fatalf("cookie %s passed", c.Name)
			}
		}
	})
}

// FuzzResponse: what is accepted, net/http reads in the same way, before and after the rewrite.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "HTTP/1.0 404 Not Found\r\nSet-Cookie: berth-1=x\r\nSet-Cookie: a=b; Domain=x\r\n\r\n",
		"HTTP/1.1 204\r\n\r\n", "HTTP/1.1 304 x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close, x\r\nX: y\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		end, _, bad := headEnd(b, 0)
		if bad != nil || end == 0 {
			return
		}
		var r response
		if parseResponse(&r, string(b[:end]), 64) != nil {
			return
		}
		ask := &http.Request{Method: "GET"}
		sent, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b[:end])), ask)
		if err != nil {
			t.Fatalf("net/http refuses what is accepted: %v: %q", err, b[:end])
		}
		_ = sent.Body.Close()
		h := http1{req: request{method: "GET", minor: 1}, resp: r}
		form := h.form()
		if sent.StatusCode != r.status || form == sizedBody && sent.ContentLength != r.framing.length || form != noBody &&
			(form == chunkedBody) != (len(sent.TransferEncoding) > 0) {
			t.Fatalf("status %d form %d length %d, net/http %d %v %d", r.status, form, r.framing.length, sent.StatusCode, sent.TransferEncoding,
				sent.ContentLength)
		}
		out := appendResponse(nil, &r, form, "app", circuit.Jar{}, form == endlessBody, 1)
		passed, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(out)), ask)
		if err != nil {
			t.Fatalf("net/http refuses what is passed on: %v: %q", err, out)
		}
		_ = passed.Body.Close()
		if passed.StatusCode != sent.StatusCode || passed.ContentLength != sent.ContentLength || form != noBody &&
			len(passed.TransferEncoding) != len(sent.TransferEncoding) {
			t.Fatalf("%q became %q", b[:end], out)
		}
		for _, c := range passed.Cookies() {
			if strings.HasPrefix(c.Name, "berth-") || c.Domain != "" && !strings.EqualFold(strings.TrimPrefix(c.Domain, "."), "app") {
				t.Fatalf("cookie %v passed", c)
			}
		}
	})
}

// FuzzChunks: what is accepted as a chunked body, net/http reads as the same bytes, and so it does what is passed on.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "a;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\n", "3\nabc\r\n0\r\n\r\n",
		"3\r\nabcd\r\n", "fffffffffffffffff\r\n", "0x3\r\nabc\r\n0\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		move := func(framed bool) ([]byte, error) {
			var src, dst sock
			src.init(&text{r: bytes.NewReader(b)})
			out := &text{}
			dst.init(out)
			m := mover{dst: &dst, src: &src, progress: func(waiting, int) {}}
			err := m.chunks(framed, 64)
			if err == nil {
				err = m.flush()
			}
			return out.w.Bytes(), err
		}
		plain, err := move(false)
		framed, err2 := move(true)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("%v but %v", err, err2)
		}
		if err != nil {
			return
		}
		read := func(b []byte) []byte {
			resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"+
				"\r\n"), bytes.NewReader(b))), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			all, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatalf("net/http refuses %q: %v", b, err)
			}
			return all
		}
		if got := read(framed); !bytes.Equal(got, plain) {
			t.Fatalf("%q but %q", got, plain)
		}
		if got := read(b); !bytes.Equal(got, plain) {
			t.Fatalf("%q but %q", got, plain)
		}
	})
}

// FuzzCookies: no cookie of the platform's passes to an app or from one, and none is set for other hosts.
func FuzzCookies(f *testing.F) {
	f.Add("a=b; berth-x=y", "sid=1; Domain=.example.org; Path=/", "app.example.org:8443")
	f.Add("\"berth-x\"=y;;", "berth-x", "[::1]:80")
	f.Add(" berth-own-a =1", "; domain=app.example.org; DOMAIN = evil", "app.example.org")
	f.Fuzz(func(t *testing.T, sent, set, host string) {
		for pair := range strings.SplitSeq(stripCookies(sent), ";") {
			name, _, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
			if circuit.PlatformCookie(strings.Trim(name, " \t\"")) {
				t.Fatalf("%q passes as %q", sent, stripCookies(sent))
			}
		}
		if !isText(set) {
			return // heads with such values are refused
		}
		out := cleanSetCookie(set, host)
		if out == "" {
			return
		}
		name, _, _ := strings.Cut(out, "=")
		name, _, _ = strings.Cut(name, ";")
		if circuit.PlatformCookie(strings.Trim(name, " \t")) {
			t.Fatalf("%q sets %q", set, out)
		}
		_, attributes, _ := strings.Cut(out, ";")
		for attribute := range strings.SplitSeq(attributes, ";") {
			key, domain, _ := strings.Cut(attribute, "=")
			if strings.EqualFold(strings.Trim(key, " \t"), "domain") &&
				!strings.EqualFold(strings.TrimPrefix(strings.Trim(domain, " \t"), "."), hostname(host)) {
				t.Fatalf("%q sets %q for another host than %q", set, out, host)
			}
		}
	})
}

// text is a connection of given bytes.
type text struct {
	net.Conn
	r *bytes.Reader
	w bytes.Buffer
}

func (c *text) Read(p []byte) (int, error)  { return c.r.Read(p) }
func (c *text) Write(p []byte) (int, error) { return c.w.Write(p) }
