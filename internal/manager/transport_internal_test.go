package manager

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlainRequestsAreNotRedirected: a client that sends its secrets to the plain port of ACME is to notice.
func TestPlainRequestsAreNotRedirected(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "HEAD", "POST", "DELETE"} {
		w := httptest.NewRecorder()
		onlyTLS(w, httptest.NewRequest(method, "/auth/authorize", strings.NewReader(`{"password":"p"}`)))
		require.Equal(t, 403, w.Code, method)
		require.Empty(t, w.Header().Get("Location"), method)
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	}
}
