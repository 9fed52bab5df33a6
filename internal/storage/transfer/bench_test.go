package transfer_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkChunk is what one PATCH of 1 MiB costs without the network; look at its allocations.
func BenchmarkChunk(b *testing.B) {
	r := newRig(b)
	const size = 1 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	tok := r.uploadToken("x", int64(b.N+1)*size)
	req, err := http.NewRequest("PATCH", "/upload?"+token(tok).Encode(), nil)
	require.NoError(b, err)
	req.Header.Set("Content-Type", chunkMT)
	req.ContentLength = size
	b.ReportAllocs()
	b.SetBytes(size)
	b.ResetTimer()
	for i := range b.N {
		req.Header.Set("Upload-Offset", strconv.Itoa(i*size))
		req.Body = io.NopCloser(bytes.NewReader(data))
		w := discard{h: http.Header{}}
		r.s.ServeHTTP(w, req)
		if w.h.Get("Upload-Offset") != strconv.Itoa((i+1)*size) {
			b.Fatal(w.h)
		}
	}
}
