package httpapi_test

import (
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/httpapi"
)

// TestRoutesOfClients asks for each address that the official clients and the official Web UI call. What this version does not do has an
// answer of its own there, so that nobody takes it for a wrong address.
func TestRoutesOfClients(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	raw, err := os.ReadFile("testdata/routes.txt")
	require.NoError(t, err)
	asked := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		method, path, ok := strings.Cut(line, " ")
		if method == "#" {
			continue
		}
		require.True(t, ok, line)
		require.False(t, asked[line], "%s is there twice", line)
		asked[line] = true
		r := &http.Request{Method: method, URL: &url.URL{Path: path}}
		if !httpapi.Routed(s.api, r) {
			t.Errorf("%s has no answer of its own", line)
		}
	}
	require.False(t, httpapi.Routed(s.api, &http.Request{Method: "GET", URL: &url.URL{Path: "/nothing"}}))
	require.False(t, httpapi.Routed(s.api, &http.Request{Method: "PUT", URL: &url.URL{Path: "/auth/role"}}))
}
