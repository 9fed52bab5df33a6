package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

const (
	vectorAccess = "AKTESTVECTOR00000001"
	vectorSecret = "sk-test-vector-0123456789abcdefghijklmno"
)

func TestSignMatchesThePublishedVectors(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct{ method, target, contentType, want string }{
		{"GET", "/session/demo?owner_access_key=AKX", "text/plain", "dc8d4c44020c22260885ee942e3b5f8caf0c20e789a1e7d91b667fbb6248541f"},
		{"POST", "/admin/gql", "application/json", "ee3d16e531625aa2dc7783b9446a475959081ac8d1205d418966b6ece02d811a"},
		{"GET", "/stream/session/demo/execute", "", "d66b6e64ba72f48847477289eff30d5388124851649e202258d12e1541815d6f"},
		{"POST", "/session/demo/upload", "multipart/form-data; boundary=xyz", "d11657ea792e84bdce5f41bf731faf87d228467c140736a3fc08c70ee4ac3744"},
	} {
		t.Run(tc.method+" "+tc.target, func(t *testing.T) {
			t.Parallel()

			got := api.Sign(vectorSecret, "20261120", api.Signed{
				Method:      tc.method,
				Target:      tc.target,
				Date:        "2026-11-20T08:21:13.659045+00:00",
				Host:        "127.0.0.1:8081",
				ContentType: tc.contentType,
				Version:     "v8.20240915",
			})
			require.Equal(t, tc.want, got)
		})
	}
}

func TestSignRequestSignsWhatIsSent(t *testing.T) {
	t.Parallel()

	r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:8081/session/demo?owner_access_key=AKX", nil)
	require.NoError(t, err)
	r.Header.Set("Content-Type", "text/plain")
	api.SignRequest(r, vectorAccess, vectorSecret, time.Date(2026, 11, 20, 8, 21, 13, 659045000, time.UTC))

	require.Equal(t, "2026-11-20T08:21:13.659045+00:00", r.Header.Get("Date"))
	require.Equal(t, "v8.20240915", r.Header.Get("X-BackendAI-Version"))
	require.Equal(t, "BackendAI signMethod=HMAC-SHA256, credential="+vectorAccess+
		":dc8d4c44020c22260885ee942e3b5f8caf0c20e789a1e7d91b667fbb6248541f", r.Header.Get("Authorization"))
}

func TestSignRequestWithoutKeyStaysAnonymous(t *testing.T) {
	t.Parallel()

	r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:8081/", nil)
	require.NoError(t, err)
	api.SignRequest(r, "", "", time.Unix(0, 0))

	require.Empty(t, r.Header.Get("Authorization"))
	require.NotEmpty(t, r.Header.Get("Date"))
}
