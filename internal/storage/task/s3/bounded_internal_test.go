package s3

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// A store whose answer never ends holds nobody, whether it says nothing more or more and more.
func TestAnswersEnd(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "<ListBucketResult>")
		_ = http.NewResponseController(w).Flush()
		for r.URL.Path == "/more" {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
		<-r.Context().Done()
	}))
	defer server.Close()
	get := func(path string, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		resp, err := bounded{http.DefaultTransport, patience, 1 << 20}.RoundTrip(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, ctx.Err())
		return err
	}
	require.Equal(t, ReasonAway, fault.ReasonOf(get("/", 50*time.Millisecond)))
	require.Equal(t, ReasonAway, fault.ReasonOf(get("/more", time.Hour)))
}

func TestPartsOfLargeFiles(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]uint64{
		0: uploadPart, uploadPart + 1: uploadPart, maxParts * uploadPart: uploadPart, maxParts*uploadPart + 1: 2 * uploadPart,
		5 << 40: 33 * uploadPart,
	} {
		require.Equal(t, want, partFor(size), size)
		require.LessOrEqual(t, size, maxParts*int64(partFor(size)))
	}
}
