package diskspace

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/chassis"
)

func TestMarks(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 50, Mark{Percent: 5, Bytes: 400}.Of(1000))
	require.EqualValues(t, 400, Mark{Percent: 50, Bytes: 400}.Of(1000))
	require.EqualValues(t, 500, Mark{Percent: 50}.Of(1000))
	require.EqualValues(t, 7, Mark{Bytes: 7}.Of(1000))
	require.Zero(t, Mark{}.Of(1000))
	m := Mark{Percent: 10}
	require.False(t, Usage{Total: 1000, Free: 100}.Below(m))
	require.True(t, Usage{Total: 1000, Free: 99}.Below(m))
	require.True(t, Usage{Total: 1000, Free: 900, Inodes: 1000, FreeInodes: 9}.Below(m), "no files are left")
	require.False(t, Usage{Total: 1000, Free: 900}.Below(m), "a file system that counts no files")
	require.True(t, Full(&os.PathError{Err: unix.ENOSPC}))
	require.True(t, Full(unix.EDQUOT))
	require.False(t, Full(errors.New("no space")))
}

func TestUsageOfARealDirectory(t *testing.T) {
	t.Parallel()
	u, err := Of(t.TempDir())
	require.NoError(t, err)
	require.Positive(t, u.Total)
	require.LessOrEqual(t, u.Free, u.Total)
	_, err = Of(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, unix.ENOENT)
}

// stopped is a clock that a test moves.
type stopped struct {
	chassis.Clock
	now time.Time
}

func (s *stopped) Now() time.Time { return s.now }

func TestReserveComesAndGoes(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	path := filepath.Join(t.TempDir(), "reserve")
	now := Usage{Total: 1000 * size, Free: 500 * size}
	clock := &stopped{Clock: chassis.RealClock(), now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	open := func() *Reserve {
		r := NewReserve(path, size, slog.New(slog.DiscardHandler), clock)
		r.of = func(string) (Usage, error) { return now, nil }
		return r
	}
	r := open()
	require.EqualValues(t, size, r.Look())
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	require.GreaterOrEqual(t, st.Blocks*512, int64(size), "it is not sparse")
	require.EqualValues(t, size, open().Look(), "the next process takes it over")

	now.Free = size/4 - 1
	require.EqualValues(t, size/8*7, r.Look(), "a part is given back")
	require.EqualValues(t, size/8*7, r.Look(), "the next one a little later")
	for range 7 {
		clock.now = clock.now.Add(time.Second)
		r.Look()
	}
	require.NoFileExists(t, path)
	now.Free = 2 * size
	require.Zero(t, r.Look(), "there is not enough room yet")
	now.Free = 3 * size
	require.EqualValues(t, size, r.Look())

	now = Usage{Total: 10 * size, Free: 9 * size}
	require.Zero(t, r.Look(), "a twentieth of a small file system at most")
	require.InDelta(t, size/2, r.Look(), 4096)
}
