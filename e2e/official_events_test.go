package e2e_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// followEvents runs `session events NAME` of the official client and returns when the manager has answered it, so that the stream misses
// nothing of what happens from then on. The client itself does not say when it is connected; a proxy between the two does. The returned
// function waits until the client has ended by itself and gives what it printed.
func (o *official) followEvents(t *testing.T, name string) (ended func() string) {
	t.Helper()
	at := slices.IndexFunc(o.env, func(v string) bool { return strings.HasPrefix(v, "BACKEND_ENDPOINT=") })
	require.GreaterOrEqual(t, at, 0, "the environment names no manager")
	manager, err := url.Parse(strings.TrimPrefix(o.env[at], "BACKEND_ENDPOINT="))
	require.NoError(t, err)
	answered := make(chan int, 1)
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(manager)
			r.Out.Host = r.In.Host // the request's signature covers it
		},
		ModifyResponse: func(r *http.Response) error {
			if strings.HasSuffix(r.Request.URL.Path, "/events/session") {
				select {
				case answered <- r.StatusCode:
				default:
				}
			}
			return nil
		},
	})
	t.Cleanup(proxy.Close)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	through := *o
	through.env = append(slices.Delete(slices.Clone(o.env), at, at+1), "BACKEND_ENDPOINT="+proxy.URL)
	cmd, _, _ := through.command(ctx, "", "session", "events", name)
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	select {
	case status := <-answered:
		require.Equal(t, http.StatusOK, status, out.String())
	case err := <-end:
		t.Fatalf("events of %s ended before they began: %v: %s", name, err, out.String())
	}
	return func() string {
		t.Helper()
		require.NoError(t, <-end, "events of %s: %s", name, out.String()) // the context bounds it
		return out.String()
	}
}
