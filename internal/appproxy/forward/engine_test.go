package forward

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlainRequests(t *testing.T) {
	r := newRig(t, nil)
	big := strings.Repeat("0123456789abcdef", 64<<10)
	r.server("app", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/big":
			w.Header().Set("Content-Length", "1048576")
			_, _ = io.WriteString(w, big)
		case "/chunked":
			for i := range 10 {
				_, _ = io.WriteString(w, big[:i*1000])
				_ = http.NewResponseController(w).Flush()
			}
		case "/echo":
			_ = http.NewResponseController(w).EnableFullDuplex()
			_, _ = io.Copy(w, q.Body)
		default:
			_, _ = io.WriteString(w, "hello "+q.URL.Path)
		}
	}))
	c := r.client()
	for range 3 {
		for path, want := range map[string]string{"/": "hello /", "/a%20b?c=d": "hello /a b", "/big": big, "/chunked": big[:0] + func() string {
			var s strings.Builder
			for i := range 10 {
				s.WriteString(big[:i*1000])
			}
			return s.String()
		}()} {
			resp, err := c.Get("http://app" + path)
			require.NoError(t, err, path)
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err, path)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, want, string(b), path)
		}
		for _, body := range []io.Reader{strings.NewReader("short"), strings.NewReader(big),
			io.MultiReader(strings.NewReader("chunked "), strings.NewReader(big))} {
			resp, err := c.Post("http://app/echo", "text/plain", body)
			require.NoError(t, err)
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.True(t, string(b) == "short" || string(b) == big || string(b) == "chunked "+big, "%d bytes came back", len(b))
		}
	}
	c.CloseIdleConnections()
	until(t, "everything is counted", func() bool { return r.e.Live().Connections == 0 })
	a := r.e.Activity()
	require.Len(t, a, 1)
	require.EqualValues(t, 21, a[0].Requests)
	require.Greater(t, a[0].BytesIn, int64(6<<20))
	require.Greater(t, a[0].BytesOut, int64(9<<20))
	require.Empty(t, r.e.Activity())
}

// A mistake met by one visitor is nobody else's trouble.
func TestMistakesEndOneConnection(t *testing.T) {
	r := newRig(t, nil)
	r.server("app", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { _, _ = io.WriteString(w, "hello") }))
	r.onRoute = func(h Head) {
		if h.Path == "/mistake" {
			panic("a mistake")
		}
	}
	c := r.client()
	_, err := c.Get("http://app/mistake")
	require.Error(t, err)
	resp, err := c.Get("http://app/")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
}
