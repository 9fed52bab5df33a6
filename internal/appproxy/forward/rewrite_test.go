package forward

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// framingFields are those that the two implementations write in ways of their own.
var framingFields = []string{"Connection", "Content-Length", "Transfer-Encoding", "Upgrade", "Te"}

func withoutFraming(h http.Header) http.Header {
	for _, name := range framingFields {
		h.Del(name)
	}
	return h
}

// The engine and the part that goes through net/http pass the same fields to apps.
func TestRequestFieldsOfBothEngines(t *testing.T) {
	t.Parallel()
	for _, fields := range []string{
		"Accept: */*\r\nX-Own: 1\r\nX-Own: 2\r\n",
		"Cookie: a=b; berth-1=secret; __Host-berth-2=secret; c=d\r\nCookie: berth-3=secret\r\n",
		"Authorization: Berth abc\r\nAuthorization: Basic abc\r\n",
		"authorization: berth abc\r\n",
		"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nForwarded: for=1.2.3.4\r\nX-Real-Ip: 1.2.3.4\r\n",
		"X-BackendAI-Token: t\r\nX_Forwarded_For: 1.2.3.4\r\nProxy: http://evil\r\n",
		"Keep-Alive: 300\r\nProxy-Authorization: x\r\nProxy-Connection: keep-alive\r\n",
		"Connection: X-Private\r\nX-Private: 1\r\nX-Public: 2\r\n",
		"Service-Worker: script\r\nOrigin: https://x\r\nSec-Fetch-Site: none\r\n",
	} {
		raw := "GET /path?q HTTP/1.1\r\nHost: app.example.org\r\n" + fields + "\r\n"
		var r request
		require.Nil(t, parseRequest(&r, raw, 100), "%q", fields)
		who := visitor{"192.0.2.1", "https"}
		own, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(appendRequest(nil, &r, who)))))
		require.NoError(t, err, "%q", fields)
		lib, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		require.NoError(t, err)
		// The library's proxy removes the fields that Connection names before it asks us.
		for _, name := range strings.Split(lib.Header.Get("Connection"), ",") {
			lib.Header.Del(strings.TrimSpace(name))
		}
		cleanRequest(lib.Header, lib.Host, who)
		require.Equal(t, withoutFraming(own.Header), withoutFraming(lib.Header), "%q", fields)
	}
}

// The engine and the part that goes through net/http pass the same fields to visitors.
func TestResponseFieldsOfBothEngines(t *testing.T) {
	t.Parallel()
	for _, fields := range []string{
		"Content-Type: text/html\r\nX-Own: 1\r\nX-Own: 2\r\n",
		"Set-Cookie: a=b; Domain=example.org; Path=/\r\nSet-Cookie: c=d; Domain=.app.example.org\r\nSet-Cookie: e=f\r\n",
		"Set-Cookie: berth-1=x\r\nSet-Cookie: __Host-berth-1=x\r\nSet-Cookie: berth-1\r\nSet-Cookie: =berth-1=x\r\n",
		"Alt-Svc: h3=\":443\"\r\nClear-Site-Data: \"*\"\r\nStrict-Transport-Security: max-age=1\r\n",
		"Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n",
		"Authorization: x\r\nCookie: a=b\r\nExpect: x\r\nX-Forwarded-For: x\r\n",
		"X-BackendAI-Token: t\r\nVary: Accept\r\n",
	} {
		raw := "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + fields + "\r\n"
		var r response
		require.Nil(t, parseResponse(&r, raw, 100), "%q", fields)
		own, err := http.ReadResponse(bufio.NewReader(strings.NewReader(string(appendResponse(nil, &r, sizedBody, "app.example.org", false,
			1)))), nil)
		require.NoError(t, err, "%q", fields)
		require.NoError(t, own.Body.Close())
		lib, err := http.ReadResponse(bufio.NewReader(strings.NewReader(raw)), nil)
		require.NoError(t, err)
		require.NoError(t, lib.Body.Close())
		cleanResponse(lib.Header, "app.example.org")
		require.Equal(t, withoutFraming(own.Header), withoutFraming(lib.Header), "%q", fields)
	}
}
