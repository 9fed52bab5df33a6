package webserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/shape"
)

// TestAnswersOfReference makes each request that testdata/reference.txt names, in its order, and looks for each member that official
// clients read of the answer, for its JSON type, and for the header fields that they read. Each line is made with the login of the one
// before, except where it says "nobody".
func TestAnswersOfReference(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	raw, err := os.ReadFile("testdata/reference.txt")
	require.NoError(t, err)
	token := ""
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.SplitN(line, " | ", 7)
		require.Len(t, part, 7, line)
		method, target, ok := strings.Cut(part[2], " ")
		require.True(t, ok, line)
		headers := []string{"Content-Type: application/json"}
		if part[1] == "login" {
			require.NotEmpty(t, token, "%s: nobody is logged in", line)
			headers = append(headers, "Cookie: AIOHTTP_SESSION="+token)
		}
		a := s.do(method, target, strings.TrimPrefix(part[3], "-"), headers...)
		if part[4] != strconv.Itoa(a.status) {
			t.Errorf("%s\nanswers %d %s", line, a.status, a.body)
			continue
		}
		for _, name := range strings.Fields(strings.TrimPrefix(part[5], "-")) {
			name, want, _ := strings.Cut(name, "=")
			if is := a.header.Get(name); is == "" || !strings.HasPrefix(is, want) {
				t.Errorf("%s\nhas %s: %q", line, name, is)
			}
		}
		if got := a.header.Get("X-BackendAI-SessionID"); got != "" {
			token = got
		}
		if part[6] == "-" {
			continue
		}
		if wrong := shape.Differences(part[6], a.body); len(wrong) > 0 {
			t.Errorf("%s\n%s\n%s", line, wrong[0], a.body)
		}
	}
}

// TestForwardingOfReference: what a manager gets of each kind of request to /func, and what the client gets of its answer.
func TestForwardingOfReference(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	token, cookie := s.login()
	s.manager.serve = func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for k, v := range map[string]string{"Content-Type": "application/octet-stream", "Content-Disposition": `attachment; filename="a b"`,
			"ETag": `"e"`, "X-RateLimit-Remaining": "9", "Location": "/elsewhere", "Keep-Alive": "timeout=5", "Tus-Resumable": "1.0.0",
			"Upload-Offset": "7"} {
			h.Set(k, v)
		}
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		w.WriteHeader(max(status, 200))
		if r.Method != http.MethodHead && status != 204 && status != 304 {
			_, _ = io.WriteString(w, "answer of "+r.Method)
		}
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"} {
		body := "{}"
		if method == "GET" || method == "HEAD" {
			body = ""
		}
		r := s.do(method, "/func/folders/x%2Fy?a=%41&b=+", body, cookie, "Content-Type: application/json", "Accept-Language: ko",
			"X-BackendAI-Version: v6.20220615", "User-Agent: fox/1").has(t, 200)
		got, sent := s.manager.last(t)
		require.Equal(t, method, got.Method)
		require.Equal(t, "/folders/x%2Fy?a=%41&b=+", got.RequestURI, "every character of the target goes on")
		require.Equal(t, body, sent)
		for name, want := range map[string]string{"Content-Type": "application/json", "Accept-Language": "ko", "User-Agent": "fox/1",
			"X-BackendAI-Version": "v6.20220615", "X-BackendAI-Domain": "default", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http",
			"X-Forwarded-Host": strings.TrimPrefix(s.URL, "http://"), "Authorization": "BerthLogin " + token} {
			require.Equal(t, want, got.Header.Get(name), "%s: %s", method, name)
		}
		for name, want := range map[string]string{"Content-Type": "application/octet-stream", "ETag": `"e"`, "X-RateLimit-Remaining": "9",
			"Content-Disposition": `attachment; filename="a b"`, "Keep-Alive": "", "Upload-Offset": "7"} {
			require.Equal(t, want, r.header.Get(name), "%s: %s", method, name)
		}
		if method != "HEAD" {
			require.Equal(t, "answer of "+method, r.body)
		}
	}
	s.do("GET", "/func/x", "", cookie).has(t, 200)
	got, _ := s.manager.last(t)
	require.Equal(t, "v8.20240915", got.Header.Get("X-BackendAI-Version"), "who says no version speaks this one")
	for _, status := range []int{201, 204, 302, 304, 400, 401, 403, 404, 409, 412, 429, 500, 503, 504} {
		r := s.do("POST", fmt.Sprintf("/func/x?status=%d", status), "{}", cookie)
		require.Equal(t, status, r.status, "what a manager answers is passed on, redirects too")
		require.Equal(t, "/elsewhere", r.header.Get("Location"))
	}
	// The header goes before the cookie.
	s.do("GET", "/func/x", "", "Cookie: AIOHTTP_SESSION="+strings.Repeat("f", 64), "X-BackendAI-SessionID: "+token).has(t, 200)
	s.do("GET", "/func/x", "", cookie, "X-BackendAI-SessionID: "+strings.Repeat("f", 64)).has(t, 401, "auth-failed")
	for _, method := range []string{"TRACE", "BREW"} {
		s.do(method, "/func/x", "", cookie).has(t, 405, "method-not-allowed")
	}
}

// TestWebSocketsOfReference: a WebSocket goes through with its subprotocol and messages both ways, for the login alone.
func TestWebSocketsOfReference(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	token, cookie := s.login()
	s.manager.serve = func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"binary"}, InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		for {
			kind, data, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			said, _ := json.Marshal(map[string]string{"target": r.RequestURI, "who": r.Header.Get("Authorization"), "said": string(data)})
			if conn.Write(r.Context(), kind, said) != nil {
				return
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const target = "/func/stream/session/lab/tcpproxy?app=ssh"
	dial := func(cookie string) (*websocket.Conn, *http.Response, error) {
		h := http.Header{}
		if name, value, ok := strings.Cut(cookie, ": "); ok {
			h.Set(name, value)
		}
		return websocket.Dial(ctx, strings.Replace(s.URL, "http", "ws", 1)+target,
			&websocket.DialOptions{HTTPHeader: h, Subprotocols: []string{"text", "binary"}})
	}
	_, resp, err := dial("")
	require.Error(t, err)
	require.Equal(t, 401, resp.StatusCode)
	conn, resp, err := dial(cookie)
	require.NoError(t, err)
	defer func() { _ = conn.CloseNow() }()
	require.Equal(t, 101, resp.StatusCode)
	require.Equal(t, "binary", conn.Subprotocol())
	for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
		require.NoError(t, conn.Write(ctx, kind, []byte("hi")))
		got, data, err := conn.Read(ctx)
		require.NoError(t, err)
		require.Equal(t, kind, got)
		require.JSONEq(t, `{"target":"/stream/session/lab/tcpproxy?app=ssh","who":"BerthLogin `+token+`","said":"hi"}`, string(data))
	}
	s.do("POST", "/server/logout", "{}", cookie).has(t, 200)
	_, _, err = conn.Read(ctx)
	require.Error(t, err, "the WebSocket ends with the login")
	require.NoError(t, ctx.Err())
}
