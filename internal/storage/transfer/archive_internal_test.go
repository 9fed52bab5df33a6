package transfer

import (
	"archive/zip"
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// zeros reads as so many zero bytes.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	clear(p[:n])
	z.left -= n
	return int(n), nil
}

// holes keeps what is written but long runs of zeros, which read as zeros again.
type holes struct {
	at     int64
	pieces map[int64][]byte
}

var nothing = make([]byte, 1<<20)

func (h *holes) Write(p []byte) (int, error) {
	if len(p) < 64<<10 || len(p) > len(nothing) || !bytes.Equal(p, nothing[:len(p)]) {
		h.pieces[h.at] = bytes.Clone(p)
	}
	h.at += int64(len(p))
	return len(p), nil
}

func (h *holes) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	for at, piece := range h.pieces {
		if from, to := max(at, off), min(at+int64(len(piece)), off+int64(len(p))); from < to {
			copy(p[from-off:to-off], piece[from-at:])
		}
	}
	if off+int64(len(p)) > h.at {
		return int(max(h.at-off, 0)), io.EOF
	}
	return len(p), nil
}

// A file beyond 4 GiB, and one that begins behind it, can only be described by zip64.
func TestZip64(t *testing.T) {
	const size = 4<<30 + 12345
	out := &holes{pieces: map[int64][]byte{}}
	p := newZip(out)
	src := &pieces{r: &exactly{r: &zeros{left: size}, left: size}, buf: make([]byte, 1<<20)}
	require.NoError(t, p.file("big", 0o644, time.Unix(1e9, 0), size, src))
	require.NoError(t, p.file("small", 0o644, time.Unix(1e9, 0), 4, bytes.NewReader([]byte("tail"))))
	require.NoError(t, p.close())
	z, err := zip.NewReader(out, out.at)
	require.NoError(t, err)
	require.Len(t, z.File, 2)
	require.EqualValues(t, size, z.File[0].UncompressedSize64)
	require.EqualValues(t, 4, z.File[1].UncompressedSize64)
	offset, err := z.File[1].DataOffset()
	require.NoError(t, err)
	require.Greater(t, offset, int64(size))
	in, err := z.File[1].Open()
	require.NoError(t, err)
	tail, err := io.ReadAll(in)
	require.NoError(t, err)
	require.Equal(t, "tail", string(tail))
}

func TestSafeNames(t *testing.T) {
	for name, want := range map[string]string{"a/b c.txt": "a/b c.txt", "한글": "한글", "...": "...", "a:b": "a_b~", "a\\..\\b": "a_.._b~",
		"\x1b[2J": "_[2J~", "\xff": "_~"} {
		got := safeName(name)
		if want[len(want)-1] == '~' {
			require.Equal(t, want, got[:len(want)], name)
			require.Len(t, got, len(want)+8)
		} else {
			require.Equal(t, want, got)
		}
	}
	require.NotEqual(t, safeName("a\\b"), safeName("a\x01b"))
}
