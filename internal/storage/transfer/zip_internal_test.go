package transfer

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/storage/volume"
)

// Writers that take turns make the same zip as one: around every count of entries at which something changes.
func TestZipOfManyEntries(t *testing.T) {
	when := time.Unix(1e9, 0)
	for _, n := range []int{0, 1, zipTurn - 1, zipTurn, zipTurn + 1, 2*zipTurn + 7, 70_000} {
		var out bytes.Buffer
		p := newZip(&out)
		for i := range n {
			var err error
			switch i % 3 {
			case 0:
				err = p.file(fmt.Sprintf("f%d", i), 0o644, when, 4, strings.NewReader(fmt.Sprintf("%04d", i%10_000)))
			case 1:
				err = p.dir(fmt.Sprintf("d%d", i), volume.Entry{Mode: 0o755, Modified: when})
			default:
				err = p.link(fmt.Sprintf("l%d", i), "target", volume.Entry{Modified: when})
			}
			require.NoError(t, err)
		}
		require.NoError(t, p.close())
		z, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
		require.NoError(t, err)
		require.Len(t, z.File, n)
		for i, f := range z.File {
			want, text := "", []byte(nil)
			switch i % 3 {
			case 0:
				want, text = fmt.Sprintf("f%d", i), fmt.Appendf(nil, "%04d", i%10_000)
			case 1:
				want = fmt.Sprintf("d%d/", i)
			default:
				want, text = fmt.Sprintf("l%d", i), []byte("target")
			}
			require.Equal(t, want, f.Name)
			if i%997 == 0 || i > n-5 {
				in, err := f.Open()
				require.NoError(t, err)
				got, err := io.ReadAll(in)
				require.NoError(t, err)
				require.Equal(t, string(text), string(got))
			}
		}
	}
}

// A folder of very many files must not fill the proxy's memory with the directory of its archive.
func TestZipOfManyEntriesNeedsLittleMemory(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	p := newZip(io.Discard)
	before := heap()
	for i := range 120_000 {
		require.NoError(t, p.file(fmt.Sprintf("some/directory/with/files/number-%d.json", i), 0o644, time.Unix(1e9, 0), 0, strings.NewReader("")))
	}
	after := heap()
	require.Less(t, int64(after)-int64(before), int64(16<<20))
	require.NoError(t, p.close())
}

// zip64 also where a turn ends beyond 4 GiB.
func TestZip64InTurns(t *testing.T) {
	const size = 4<<30 + 12345
	out := &holes{pieces: map[int64][]byte{}}
	p := newZip(out)
	src := &pieces{r: &exactly{r: &zeros{left: size}, left: size}, buf: make([]byte, 1<<20)}
	require.NoError(t, p.file("big", 0o644, time.Unix(1e9, 0), size, src))
	const n = zipTurn + 10
	for i := range n {
		require.NoError(t, p.file(fmt.Sprintf("small%d", i), 0o644, time.Unix(1e9, 0), 4, strings.NewReader("tail")))
	}
	require.NoError(t, p.close())
	z, err := zip.NewReader(out, out.at)
	require.NoError(t, err)
	require.Len(t, z.File, n+1)
	require.EqualValues(t, size, z.File[0].UncompressedSize64)
	in, err := z.File[n].Open()
	require.NoError(t, err)
	tail, err := io.ReadAll(in)
	require.NoError(t, err)
	require.Equal(t, "tail", string(tail))
}
