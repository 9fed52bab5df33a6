package httpapi

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/params"
)

func paramsOf(t *testing.T, method, target, contentType, body string) (*params.Set, error) {
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
		require.Equal(t, "query", p.Text("a", ""))
		require.Equal(t, "body", p.Text("missing|b", ""))
		require.Equal(t, "q", p.Text("only", ""))
		require.True(t, p.Flag("flag", false))
		require.Equal(t, 7, p.Number("n", 0, 0, 10))
		require.Nil(t, p.Optional("null"))
		require.Equal(t, "def", p.Text("null", "def"))
		require.Equal(t, []string{"1", "2"}, p.List("files"))
		require.Equal(t, []string{"x", "1"}, p.List("list"))
		require.Equal(t, []string{"query"}, p.List("a"))
		require.Equal(t, map[string]string{"k": "v", "n": "1"}, p.Texts("obj"))
		require.Equal(t, "v", p.Object("obj").Text("k", ""))
		require.Equal(t, "01234567-89ab-cdef-0123-456789abcdef", p.UUID("id"))
		require.NoError(t, p.Err())
	}
}

func TestParamsOfTextPlainWithoutABody(t *testing.T) {
	t.Parallel()
	p, err := paramsOf(t, "POST", "/x?name=fresh", "text/plain", "")
	require.NoError(t, err)
	require.Equal(t, "fresh", p.Need("name"))
}

func TestParamsReportEveryBadFieldAtOnce(t *testing.T) {
	t.Parallel()
	p, err := paramsOf(t, "POST", "/x", "application/json", `{"flag":"perhaps","n":"many","big":11,"id":"no","s":[1],"o":"[","c":{"r":3}}`)
	require.NoError(t, err)
	p.Flag("flag", false)
	p.Number("n", 0, 0, 10)
	p.Number("big", 0, 0, 10)
	p.UUID("id")
	p.Text("s", "")
	p.Object("o")
	p.Object("c").Texts("r")
	p.Need("missing|alias")
	err = p.Err()
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
		createRequest(p, p.Need)
		if err := p.Err(); err != nil && fault.KindOf(err) != fault.Invalid {
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
