package httpapi

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

func paramsOf(t *testing.T, method, target, contentType, body string) (*params, error) {
	t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return (&call{w: &responseWriter{ResponseWriter: httptest.NewRecorder()}, r: r}).params()
}

func TestParamsMergeQueryAndBodyOfEveryMethod(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "POST", "PATCH", "DELETE"} {
		p, err := paramsOf(
			t, method, "/x?a=query&only=q&files=1&files=2", "application/json",
			`{"a":"body","b":"body","flag":"True","n":"7","null":null,"list":["x",1],"obj":{"k":"v","n":1,"z":null},`+
				`"id":"0123456789abcdef0123456789ABCDEF"}`,
		)
		require.NoError(t, err, method)
		require.Equal(t, "query", p.text("a", ""))
		require.Equal(t, "body", p.text("missing|b", ""))
		require.Equal(t, "q", p.text("only", ""))
		require.True(t, p.flag("flag", false))
		require.Equal(t, 7, p.number("n", 0, 0, 10))
		require.Nil(t, p.optional("null"))
		require.Equal(t, "def", p.text("null", "def"))
		require.Equal(t, []string{"1", "2"}, p.list("files"))
		require.Equal(t, []string{"x", "1"}, p.list("list"))
		require.Equal(t, []string{"query"}, p.list("a"))
		require.Equal(t, map[string]string{"k": "v", "n": "1"}, p.texts("obj"))
		require.Equal(t, "v", p.object("obj").text("k", ""))
		require.Equal(t, "01234567-89ab-cdef-0123-456789abcdef", p.uuid("id"))
		require.NoError(t, p.err())
	}
}

func TestParamsOfTextPlainWithoutABody(t *testing.T) {
	t.Parallel()
	p, err := paramsOf(t, "POST", "/x?name=fresh", "text/plain", "")
	require.NoError(t, err)
	require.Equal(t, "fresh", p.need("name"))
}

func TestParamsReportEveryBadFieldAtOnce(t *testing.T) {
	t.Parallel()
	p, err := paramsOf(t, "POST", "/x", "application/json", `{"flag":"perhaps","n":"many","big":11,"id":"no","s":[1],"o":"[","c":{"r":3}}`)
	require.NoError(t, err)
	p.flag("flag", false)
	p.number("n", 0, 0, 10)
	p.number("big", 0, 0, 10)
	p.uuid("id")
	p.text("s", "")
	p.object("o")
	p.object("c").texts("r")
	p.need("missing|alias")
	err = p.err()
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	doc := problemOf(err)
	require.Equal(t, problemBase+"invalid-api-params", doc.Type)
	var data map[string]string
	require.NoError(t, json.Unmarshal(doc.Data, &data))
	require.ElementsMatch(t, []string{"flag", "n", "big", "id", "s", "o", "c.r", "missing"}, sortedKeys(data))
}

func TestMalformedBodies(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"{", "[1]", `"x"`, "{} {}", "nul", `{"a":}`, "\x00", strings.Repeat(`{"a":`, 20_000)} {
		_, err := paramsOf(t, "POST", "/x", "application/json", body)
		require.Equal(t, reasonInvalidParams, problemOf(err).Code, "%.20q", body)
	}
	for _, body := range []string{"", "  ", "null", "{}"} {
		_, err := paramsOf(t, "POST", "/x", "application/json", body)
		require.NoError(t, err, body)
	}
}

func TestOversizedBody(t *testing.T) {
	t.Parallel()
	_, err := paramsOf(t, "POST", "/x", "application/json", `{"a":"`+strings.Repeat("x", maxBody)+`"}`)
	doc := problemOf(err)
	require.Equal(t, 413, doc.status)
	require.Contains(t, doc.Msg, "larger than")
}

func TestSpans(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"90": 90 * time.Second, "90s": 90 * time.Second, "10m": 10 * time.Minute, "1.5h": 90 * time.Minute, "2d": 48 * time.Hour, "": 0,
	} {
		p := &params{body: map[string]any{"x": text}, bad: map[string]string{}}
		require.Equal(t, want, p.span("x"), text)
		require.NoError(t, p.err(), text)
	}
	for _, text := range []string{"m", "ten", "-5", "1e400", "99999w", "NaN"} {
		p := &params{body: map[string]any{"x": text}, bad: map[string]string{}}
		p.span("x")
		require.Error(t, p.err(), text)
	}
}

func FuzzParams(f *testing.F) {
	f.Add("a=1&b=2", `{"a":1,"config":{"resources":{"cpu":1}}}`)
	f.Fuzz(func(t *testing.T, query, body string) {
		r := httptest.NewRequest("POST", "/session", strings.NewReader(body))
		r.URL.RawQuery = query
		p, err := (&call{w: &responseWriter{ResponseWriter: httptest.NewRecorder()}, r: r}).params()
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatalf("%v", err)
			}
			return
		}
		createRequest(p)
		if err := p.err(); err != nil && fault.KindOf(err) != fault.Invalid {
			t.Fatalf("%v", err)
		}
	})
}

func TestUploadPaths(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a.py": "a.py", "d/e/f": "d/e/f", "./a": "a", "a/../b": "b", "/home/work/x": "x", "..a": "..a"} {
		got, err := uploadPath(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", ".", "..", "../x", "a/../../x", "/etc/passwd", "/home/work", "a\x00b", "/home/work/../x",
		strings.Repeat("a/", 3000) + "a"} {
		_, err := uploadPath(in)
		require.Equal(t, reasonInvalidParams, problemOf(err).Code, "%.20q", in)
	}
}
