package forward

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
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
	sid, own := proved(t, "sid=1; Path=/")
	for _, fields := range []string{
		"Accept: */*\r\nX-Own: 1\r\nX-Own: 2\r\n",
		"Cookie: a=b; berth-1=secret; __Host-berth-2=secret; c=d\r\nCookie: berth-3=secret\r\n",
		"Cookie: a=b\r\nX-Own: 1\r\nCookie: " + own + "; x=y\r\nCookie: " + sid + "\r\n",
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
		for _, jar := range []circuit.Jar{{}, aJar()} {
			who := visitor{"192.0.2.1", "https", jar}
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
}

// aJar is that of a circuit in port mode.
func aJar() circuit.Jar {
	return circuit.New(proxy.Circuit{ID: "c1", Mode: proxy.ModePort, Owner: "tenant"}).Jar([][]byte{[]byte("a key that is long enough")})
}

// proved is a cookie that an app sets, with its proof, as a browser sends them back.
func proved(t *testing.T, setCookie string) (cookie, proof string) {
	t.Helper()
	value, ok := aJar().Proof(setCookie)
	require.True(t, ok)
	cookie, _, _ = strings.Cut(setCookie, ";")
	proof, _, _ = strings.Cut(value, ";")
	return cookie, proof
}

// In port mode an app hears of the cookies alone that an app of its own tenant set.
func TestCookiesOfTenantsOnPorts(t *testing.T) {
	t.Parallel()
	sid, own := proved(t, "sid=1; Path=/")
	for cookies, want := range map[string]string{
		"Cookie: sid=1\r\n":                                          "", // of an app on another port, or of a script
		"Cookie: " + own + "; " + sid + "\r\n":                       "sid=1",
		"Cookie: " + sid + "\r\nX-Own: 1\r\nCookie: " + own + "\r\n": "sid=1",
		"Cookie: " + own + "; sid=2\r\n":                             "", // another app has set it since
		"Cookie: " + own + "; other=1\r\n":                           "",
		"Cookie: " + own + "; =1; sid\r\n":                           "",
		"Cookie: " + own + "; sid=2; sid=1\r\n":                      "sid=1",
	} {
		var r request
		require.Nil(t, parseRequest(&r, "GET / HTTP/1.1\r\nHost: ports.example.org:20001\r\n"+cookies+"\r\n", 100))
		sent, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(appendRequest(nil, &r, visitor{"192.0.2.1", "https", aJar()})))))
		require.NoError(t, err)
		require.Equal(t, want, strings.Join(sent.Header.Values("Cookie"), "|"), "%q", cookies)
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
		"NEL: {\"report_to\":\"x\"}\r\nReport-To: {}\r\nreporting-endpoints: x=\"https://evil\"\r\nReport_To: {}\r\n",
		"Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n",
		"Authorization: x\r\nCookie: a=b\r\nExpect: x\r\nX-Forwarded-For: x\r\n",
		"X-BackendAI-Token: t\r\nVary: Accept\r\n",
	} {
		raw := "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + fields + "\r\n"
		var r response
		require.Nil(t, parseResponse(&r, raw, 100), "%q", fields)
		for _, jar := range []circuit.Jar{{}, aJar()} {
			own, err := http.ReadResponse(bufio.NewReader(strings.NewReader(string(appendResponse(nil, &r, sizedBody, "app.example.org", jar,
				false, 1)))), nil)
			require.NoError(t, err, "%q", fields)
			require.NoError(t, own.Body.Close())
			lib, err := http.ReadResponse(bufio.NewReader(strings.NewReader(raw)), nil)
			require.NoError(t, err)
			require.NoError(t, lib.Body.Close())
			cleanResponse(lib.Header, "app.example.org", jar)
			require.Equal(t, withoutFraming(own.Header), withoutFraming(lib.Header), "%q", fields)
			for _, name := range []string{"Nel", "Report-To", "Reporting-Endpoints"} {
				require.Empty(t, own.Header.Values(name), name)
			}
		}
	}
}
