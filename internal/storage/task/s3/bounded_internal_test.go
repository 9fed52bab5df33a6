package s3

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
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
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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

// early answers before it has read what is sent, and goes on reading, as package http does.
type early struct {
	read chan error
	next chan struct{}
}

func (e early) RoundTrip(r *http.Request) (*http.Response, error) {
	go func() {
		<-e.next
		_, err := io.ReadAll(r.Body)
		e.read <- err
	}()
	return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
}

// TestWhatIsSentEndsWithTheAnswer: the file is the caller's again, who may send it once more from its beginning.
func TestWhatIsSentEndsWithTheAnswer(t *testing.T) {
	t.Parallel()
	e := early{make(chan error, 1), make(chan struct{})}
	file := strings.NewReader("all of it")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://store/key", io.NopCloser(file))
	require.NoError(t, err)
	resp, err := bounded{e, time.Minute, 1 << 20}.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	close(e.next)
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	require.ErrorContains(t, await.Value(t, e.read), "answered before it read all")
	require.Equal(t, len("all of it"), file.Len())
}
