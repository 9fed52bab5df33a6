package chassis_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
)

// TestALogIsPutAsideInWholeLines: many writers, small files: every line is whole and lies in one file, and old files go.
func TestALogIsPutAsideInWholeLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.log")
	renewed := 0
	l, err := chassis.OpenLogFile(path, chassis.LogFileOptions{Size: 1000, Keep: 3, Renewed: func(*os.File) { renewed++ }})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100 {
				_, err := fmt.Fprintf(l, "writer %d line %03d end\n", w, i)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, l.Close())
	_, err = l.Write([]byte("late\n"))
	require.ErrorIs(t, err, os.ErrClosed)
	files, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Len(t, files, 4, "the file and three old ones")
	require.Greater(t, renewed, 3)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		require.LessOrEqual(t, len(text), 1000)
		for line := range strings.Lines(string(text)) {
			require.Regexp(t, `^writer \d line \d{3} end\n$`, line)
		}
	}
}

func TestAnOldLogIsPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.log")
	now := time.Now()
	l, err := chassis.OpenLogFile(path, chassis.LogFileOptions{Age: time.Hour, Now: func() time.Time { return now }})
	require.NoError(t, err)
	for _, line := range []string{"first\n", "second\n"} {
		_, err = l.Write([]byte(line))
		require.NoError(t, err)
	}
	now = now.Add(time.Hour)
	_, err = l.Write([]byte("third\n"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	old, err := os.ReadFile(path + ".1")
	require.NoError(t, err)
	require.Equal(t, "first\nsecond\n", string(old))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "third\n", string(text))
}

// TestARecordBeginsOnItsOwnLine: also after one that was cut off, by a full disk or a kill.
func TestARecordBeginsOnItsOwnLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.log")
	require.NoError(t, os.WriteFile(path, []byte("whole\ncut o"), 0o600))
	l, err := chassis.OpenLogFile(path, chassis.LogFileOptions{})
	require.NoError(t, err)
	n, err := l.Write([]byte("next\n"))
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.NoError(t, l.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "whole\ncut o\nnext\n", string(text))
}

// TestLogsAreTheOwnersAlone: nobody else reads a log, also where its file was made by something else, and a record that was written is
// only ever added to.
func TestLogsAreTheOwnersAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte("earlier\n"), 0o644))
	for _, record := range []string{"one\n", "two\n"} {
		l, err := chassis.OpenLogFile(path, chassis.LogFileOptions{Size: 12})
		require.NoError(t, err)
		_, err = l.Write([]byte(record))
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	var all string
	for _, name := range []string{path + ".1", path} {
		info, err := os.Stat(name)
		require.NoError(t, err, "the log was put aside")
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		all += string(text)
	}
	require.Equal(t, "earlier\none\ntwo\n", all)
}
