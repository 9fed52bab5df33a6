package forward

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/address"
)

// recorder is an app that keeps the requests it got as they came, and answers 200.
type recorder struct{ got chan string }

func record(r *rig, name string) *recorder {
	rec := &recorder{got: make(chan string, 64)}
	r.app(name, func(c net.Conn) {
		b := bufio.NewReader(c)
		for {
			var head strings.Builder
			length := 0
			for {
				line, err := b.ReadString('\n')
				if err != nil {
					return
				}
				head.WriteString(line)
				if line == "\r\n" {
					break
				}
				_, _ = fmt.Sscanf(line, "Content-Length: %d", &length)
			}
			_, _ = io.CopyN(io.Discard, b, int64(length))
			rec.got <- head.String()
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
				return
			}
		}
	})
	return rec
}

func TestRequestsThatAreRefused(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HeaderBytes, c.HeaderCount, c.BodyBytes = 8<<10, 20, 1000 })
	rec := record(r, "app")
	for name, one := range map[string]struct{ text, status string }{
		"length and coding": {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"coding and length": {"POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", "400"},
		"two lengths":       {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", "400"},
		"same length twice": {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd", "400"},
		"list of lengths":   {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 4, 4\r\n\r\nabcd", "400"},
		"length with sign":  {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: +4\r\n\r\nabcd", "400"},
		"hex length":        {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 0x4\r\n\r\nabcd", "400"},
		"huge length":       {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 99999999999999999999\r\n\r\nabcd", "400"},
		"empty length":      {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length:\r\n\r\nabcd", "400"},
		"two codings": {"POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n" +
			"\r\n", "501"},
		"coding twice": {"POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" +
			"\r\n", "400"},
		"other coding":             {"POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"},
		"strange coding":           {"POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501"},
		"coding with vertical tab": {"POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", "400"},
		"coding in HTTP/1.0":       {"POST / HTTP/1.0\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"space before colon":       {"GET / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding : chunked\r\n\r\n", "400"},
		"space before field":       {"GET / HTTP/1.1\r\n Host: app\r\n\r\n", "400"},
		"folded field":             {"GET / HTTP/1.1\r\nHost: app\r\nX: a\r\n b\r\n\r\n", "400"},
		"bare LF":                  {"GET / HTTP/1.1\nHost: app\n\n", "400"},
		"bare LF in head":          {"GET / HTTP/1.1\r\nHost: app\r\nX: a\nY: b\r\n\r\n", "400"},
		"bare CR":                  {"GET / HTTP/1.1\r\nHost: app\r\nX: a\rY: b\r\n\r\n", "400"},
		"bare CR in target":        {"GET /\rx HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"NUL":                      {"GET / HTTP/1.1\r\nHost: app\r\nX: a\x00b\r\n\r\n", "400"},
		"name with space":          {"GET / HTTP/1.1\r\nHost: app\r\nX Y: a\r\n\r\n", "400"},
		"name missing":             {"GET / HTTP/1.1\r\nHost: app\r\n: a\r\n\r\n", "400"},
		"colon missing":            {"GET / HTTP/1.1\r\nHost: app\r\nabc\r\n\r\n", "400"},
		"no Host":                  {"GET / HTTP/1.1\r\nX: y\r\n\r\n", "400"},
		"two Hosts":                {"GET / HTTP/1.1\r\nHost: app\r\nHost: app\r\n\r\n", "400"},
		"Host with path":           {"GET / HTTP/1.1\r\nHost: app/x\r\n\r\n", "400"},
		"Host with user":           {"GET / HTTP/1.1\r\nHost: own@app\r\n\r\n", "400"},
		"Host with comma":          {"GET / HTTP/1.1\r\nHost: app, own\r\n\r\n", "400"},
		"absolute form, other":     {"GET http://own/ HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"absolute form, user":      {"GET http://x@app/ HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"absolute form, ftp":       {"GET ftp://app/ HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"target without slash":     {"GET app HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"target with fragment":     {"GET /#a HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"star for GET":             {"GET * HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"two spaces":               {"GET  / HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"tab in line":              {"GET\t/ HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"no version":               {"GET /\r\nHost: app\r\n\r\n", "400"},
		"lower-case version":       {"GET / http/1.1\r\nHost: app\r\n\r\n", "400"},
		"version 1.2":              {"GET / HTTP/1.2\r\nHost: app\r\n\r\n", "505"},
		"version 3":                {"GET / HTTP/3.0\r\nHost: app\r\n\r\n", "505"},
		"method with bracket":      {"G(T / HTTP/1.1\r\nHost: app\r\n\r\n", "400"},
		"CONNECT":                  {"CONNECT app:80 HTTP/1.1\r\nHost: app:80\r\n\r\n", "405"},
		"TRACE":                    {"TRACE / HTTP/1.1\r\nHost: app\r\n\r\n", "405"},
		"other expectation":        {"GET / HTTP/1.1\r\nHost: app\r\nExpect: tea\r\n\r\n", "417"},
		"Connection names framing": {"POST / HTTP/1.1\r\nHost: app\r\nConnection: Content-Length\r\nContent-Length: 2\r\n\r\nab", "400"},
		"upgrade with a body": {"GET / HTTP/1.1\r\nHost: app\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nab",
			"400"},
		"large head":   {"GET / HTTP/1.1\r\nHost: app\r\nX: " + strings.Repeat("a", 9<<10) + "\r\n\r\n", "431"},
		"many fields":  {"GET / HTTP/1.1\r\nHost: app\r\n" + strings.Repeat("X: a\r\n", 30) + "\r\n", "431"},
		"large body":   {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 1001\r\n\r\n" + strings.Repeat("a", 1001), "413"},
		"unknown host": {"GET / HTTP/1.1\r\nHost: nobody\r\nConnection: close\r\n\r\n", "404"},
		"TLS hello":    {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.conn()
			_, err := io.WriteString(c, one.text)
			require.NoError(t, err)
			require.NoError(t, c.(*net.TCPConn).CloseWrite())
			all, err := io.ReadAll(c)
			require.NoError(t, err, "the answer has to arrive whole")
			require.True(t, strings.HasPrefix(status(string(all)), one.status+" "), "%s", all)
			require.Equal(t, 1, strings.Count(string(all), "HTTP/1.1 "), "%s", all)
			require.Contains(t, string(all), "Connection: close\r\n")
			select {
			case got := <-rec.got:
				t.Fatalf("the app got %q", got)
			default:
			}
		})
	}
}

func TestRequestHeadsAsAppsSeeThem(t *testing.T) {
	r := newRig(t, nil)
	rec := record(r, "app")
	tail := "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: app\r\n\r\n"
	for name, one := range map[string]struct{ sent, want string }{
		"plain": {"GET /a?b=c%20 HTTP/1.1\r\nHost: app\r\nAccept: x\r\nX-Dup: 1\r\nx-dup: 2\r\n\r\n",
			"GET /a?b=c%20 HTTP/1.1\r\nHost: app\r\nAccept: x\r\nX-Dup: 1\r\nx-dup: 2\r\n" + tail},
		"absolute form": {"GET http://APP/a HTTP/1.1\r\nHost: app\r\n\r\n",
			"GET /a HTTP/1.1\r\nHost: APP\r\n" + strings.Replace(tail, "app", "APP", 1)},
		"absolute, query": {"GET http://app?x HTTP/1.1\r\nHost: app\r\n\r\n", "GET /?x HTTP/1.1\r\nHost: app\r\n" + tail},
		"star":            {"OPTIONS * HTTP/1.1\r\nHost: app\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: app\r\n" + tail},
		"HTTP/1.0":        {"GET / HTTP/1.0\r\nHost: app\r\nConnection: keep-alive\r\n\r\n", "GET / HTTP/1.1\r\nHost: app\r\n" + tail},
		"own cookies": {"GET / HTTP/1.1\r\nHost: app\r\nCookie: a=b; berth-1234=secret; __Host-berth-5=secret; c=d\r\n" +
			"Cookie: berth-6=secret\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\nCookie: a=b; c=d\r\n" + tail},
		"cookies hidden in quotes": {"GET / HTTP/1.1\r\nHost: app\r\nCookie: a=\"x; berth-1=secret; y\"\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\nCookie: a=\"x; y\"\r\n" + tail},
		"own credentials": {"GET / HTTP/1.1\r\nHost: app\r\nauthorization: bErTh secret\r\nX: y\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\nX: y\r\n" + tail},
		"the app's credentials": {"GET / HTTP/1.1\r\nHost: app\r\nAuthorization: Bearer x\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\nAuthorization: Bearer x\r\n" + tail},
		"platform and forwarded": {"GET / HTTP/1.1\r\nHost: app\r\nX-BackendAI-Token: s\r\nX_BackendAI_Token: s\r\n" +
			"X-Forwarded-For: 1.2.3.4\r\nx_forwarded_for: 1.2.3.4\r\nX-FORWARDED-Proto: https\r\nForwarded: for=1.2.3.4\r\n" +
			"X-Real-IP: 1.2.3.4\r\nProxy: x\r\nContent_Length: 3\r\nX_Other: y\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\nX_Other: y\r\n" + tail},
		"hop by hop": {"GET / HTTP/1.1\r\nHost: app\r\nConnection: X-A, keep-alive, Cookie\r\nX-A: 1\r\nX-B: 2\r\nCookie: a=b\r\n" +
			"Keep-Alive: 5\r\nProxy-Authorization: s\r\nProxy-Connection: x\r\nTE: gzip\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\nX-B: 2\r\n" + tail},
		"trailers wanted": {"GET / HTTP/1.1\r\nHost: app\r\nTE: trailers\r\nConnection: TE\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\n" + strings.TrimSuffix(tail, "\r\n") + "Connection: TE\r\nTE: trailers\r\n\r\n"},
		"h2c is not for apps": {"GET / HTTP/1.1\r\nHost: app\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" +
			"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\n" + tail},
		"upgrade without Connection": {"GET / HTTP/1.1\r\nHost: app\r\nUpgrade: websocket\r\n\r\n", "GET / HTTP/1.1\r\nHost: app\r\n" + tail},
		"blank lines before":         {"\r\n\r\nGET / HTTP/1.1\r\nHost: app\r\n\r\n", "GET / HTTP/1.1\r\nHost: app\r\n" + tail},
		"values are trimmed": {"GET / HTTP/1.1\r\nHost:app\r\nX: \t a b \t\r\nEmpty:\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: app\r\nX: a b\r\nEmpty: \r\n" + tail},
		"body with GET": {"GET / HTTP/1.1\r\nHost: app\r\nContent-Length: 3\r\n\r\nabc",
			"GET / HTTP/1.1\r\nHost: app\r\nContent-Length: 3\r\n" + tail},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.conn()
			_, err := io.WriteString(c, one.sent)
			require.NoError(t, err)
			head := readHeadOf(t, bufio.NewReader(c))
			require.Equal(t, "200 OK", status(head))
			require.Equal(t, one.want, <-rec.got)
		})
	}
}

func TestAnswersAsVisitorsSeeThem(t *testing.T) {
	for name, one := range map[string]struct{ app, request, want string }{
		"plain": {"HTTP/1.1 200 Fine\r\nB: 2\r\nA: 1\r\nContent-Length: 2\r\n\r\nok", "",
			"HTTP/1.1 200 Fine\r\nB: 2\r\nA: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"},
		"no reason": {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "", "HTTP/1.1 200 \r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		"two cookies": {"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX: y\r\nSet-Cookie: b=2; Path=/\r\nContent-Length: 0\r\n\r\n", "",
			"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX: y\r\nSet-Cookie: b=2; Path=/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		"cookies not for others": {"HTTP/1.1 200 OK\r\nSet-Cookie: berth-1=x\r\nSet-Cookie: __Host-berth-1=x; Secure\r\n" +
			"Set-Cookie: =berth-1=x\r\nSet-Cookie:  = berth-1=x; Path=/\r\nSet-Cookie: berth-1\r\nSet-Cookie: a=b; Domain=.bench; Path=/\r\n" +
			"Set-Cookie: c=d;domain = app ; Secure\r\nContent-Length: 0\r\n\r\n", "",
			"HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nSet-Cookie: c=d;domain = app ; Secure\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		"hop by hop": {"HTTP/1.1 200 OK\r\nConnection: X-A, keep-alive\r\nX-A: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: x\r\n" +
			"Upgrade: h2\r\nContent-Length: 0\r\n\r\n", "", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		"not the app's to say": {"HTTP/1.1 200 OK\r\nStrict-Transport-Security: max-age=9\r\nAlt-Svc: h3=x\r\nClear-Site-Data: \"*\"\r\n" +
			"X-Accel-Redirect: /x\r\nX-Accel-Buffering: no\r\nContent-Length: 0\r\n\r\n", "",
			"HTTP/1.1 200 OK\r\nX-Accel-Buffering: no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		"chunks": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n003;ext=\"1\"\r\nabc\r\nA;x\r\n0123456789\r\n0\r\n" +
			"T: 1\r\nContent-Length: 5\r\n\r\n", "",
			"HTTP/1.1 200 OK\r\nTrailer: T\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n" +
				"T: 1\r\n\r\n"},
		"chunks for HTTP/1.0": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\n",
			"GET / HTTP/1.0\r\nHost: app\r\n\r\n", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"},
		"until the end": {"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nabc", "", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"},
		"HEAD": {"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", "HEAD / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n",
			"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nConnection: close\r\n\r\n"},
		"HEAD, chunked": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
			"HEAD / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"},
		"204": {"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "",
			"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"},
		"304": {"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n", "",
			"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\nConnection: close\r\n\r\n"},
		"early hints": {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n" +
			"\r\n", "",
			"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n" +
				"Connection: close\r\n\r\n"},
		"early hints for HTTP/1.0": {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
			"GET / HTTP/1.0\r\nHost: app\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.app("app", canned(one.app))
			if one.request == "" {
				one.request = get("app", "/")
			}
			require.Equal(t, one.want, r.say(one.request))
		})
	}
}

// What an app answers badly becomes 502 with words, or is cut short where the answer has begun.
func TestHostileApps(t *testing.T) {
	for name, one := range map[string]struct{ app, status string }{
		"no HTTP":            {"SSH-2.0-OpenSSH\r\n", "502"},
		"HTTP/2":             {"HTTP/2 200\r\n\r\n", "502"},
		"closes":             {"", "502"},
		"closes in head":     {"HTTP/1.1 200 OK\r\nCont", "502"},
		"huge head":          {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 70<<10) + "\r\n\r\n", "502"},
		"many fields":        {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: a\r\n", 200) + "\r\n", "502"},
		"bare LF":            {"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "502"},
		"status 99":          {"HTTP/1.1 099 No\r\n\r\n", "502"},
		"status 600":         {"HTTP/1.1 600 No\r\n\r\n", "502"},
		"status text":        {"HTTP/1.1 2x0 No\r\n\r\n", "502"},
		"two lengths":        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "502"},
		"length and chunks":  {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "502"},
		"folded":             {"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "502"},
		"CR in a value":      {"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: x\r\n\r\n", "502"},
		"101 unasked":        {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "502"},
		"endless interim":    {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100), "102"},
		"short body":         {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", ""},
		"bad chunk":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n", ""},
		"space after size":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", ""},
		"long chunk":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", ""},
		"chunks without end": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", ""},
		"chunk with bare LF": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", ""},
		"huge chunk size":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", ""},
		"endless chunk line": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;" + strings.Repeat("x", 5000) + "\r\nabc\r\n0\r\n\r\n",
			""},
		"chunk with bad tail": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX y: z\r\n\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.app("app", func(c net.Conn) {
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, one.app)
			})
			c := r.conn()
			_, err := io.WriteString(c, get("app", "/"))
			require.NoError(t, err)
			resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: "GET"})
			if one.status != "" {
				require.NoError(t, err)
				defer resp.Body.Close()
				require.Equal(t, one.status, fmt.Sprint(resp.StatusCode))
				if one.status == "502" {
					b, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					require.Contains(t, string(b), "The app")
				}
				return
			}
			if err == nil {
				defer resp.Body.Close()
				_, err = io.ReadAll(resp.Body)
			}
			require.Error(t, err, "the visitor must see that the answer is not whole")
		})
	}
}

func TestAnswersOfTheProxy(t *testing.T) {
	r := newRig(t, nil)
	r.circuit("away", "http", address.Hold(t))
	answer := r.say(get("away", "/", "Accept: text/html,*/*\r\n"))
	require.Equal(t, "503 Service Unavailable", status(answer))
	require.Contains(t, answer, "<h1>503 Service Unavailable</h1><p>The app does not listen.</p><p>Start it again.</p>")
	require.Contains(t, answer, "Retry-After: 5\r\n")
	answer = r.say(get("away", "/"))
	require.Contains(t, answer, `{"msg":"The app does not listen.","next":"Start it again.","reason":"app-away"}`)
	require.NotContains(t, r.say("HEAD / HTTP/1.1\r\nHost: away\r\nConnection: close\r\n\r\n"), "msg")
	// A refusal without a body leaves the connection to its next request.
	c := r.conn()
	b := bufio.NewReader(c)
	for range 3 {
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: away\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(b, nil)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 503, resp.StatusCode)
	}
	c2 := r.circuit("raw", "tcp", "127.0.0.1:1")
	require.False(t, c2.HTTP())
	require.Equal(t, "404 Not Found", status(r.say(get("raw", "/"))))
}
