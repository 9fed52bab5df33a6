package app

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	waiting "berth.dev/berth/internal/testkit/await"
)

// TestFilesOfPrestart: only regular files are written, and nothing waits for a pipe or a device.
func TestFilesOfPrestart(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	s := New(Config{Home: dir, Dir: dir, LogDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	write := func(name string, appending bool, body ...any) error {
		got, err := s.writeFile(t.Context(), at(name), map[string]any{"body": body, "mode": "640"}, appending, values{})
		if err == nil {
			require.Equal(t, at(name), got)
		}
		return err
	}
	require.NoError(t, syscall.Mkfifo(at("unread"), 0o666))
	require.NoError(t, syscall.Mkfifo(at("stuck"), 0o666))
	stuck, err := os.OpenFile(at("stuck"), os.O_RDWR, 0) // a reader that does not read
	require.NoError(t, err)
	defer stuck.Close()
	l, err := net.Listen("unix", at("socket"))
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Symlink("stuck", at("leads to a pipe")))
	require.NoError(t, os.Symlink("/dev/null", at("null")))
	require.NoError(t, os.Mkdir(at("dir"), 0o700))
	for name, want := range map[string]string{"unread": "is a pipe", "stuck": "is a pipe", "leads to a pipe": "is a pipe",
		"socket": "is a socket", "null": "is a device", "dir": "is a directory"} {
		for _, appending := range []bool{false, true} {
			require.ErrorContains(t, write(name, appending, strings.Repeat("x", 1<<20)), want, name)
		}
	}

	require.NoError(t, os.Symlink("target", at("link")))
	require.NoError(t, write("link", false, "long", "text"))
	require.NoError(t, write("link", false, "new"))
	require.NoError(t, write("target", true, "more"))
	text, err := os.ReadFile(at("target"))
	require.NoError(t, err)
	require.Equal(t, "new\nmore\n", string(text))
	fi, err := os.Stat(at("target"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), fi.Mode())
}

// TestAside: what a file system holds up holds up nobody else, and it is bounded how much that is.
func TestAside(t *testing.T) {
	s := New(Config{LogDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	hung, began, ended := make(chan struct{}), make(chan struct{}, maxAside), make(chan error, maxAside)
	for range maxAside {
		go func() {
			ended <- s.aside(ctx, func() error {
				began <- struct{}{}
				<-hung
				return nil
			})
		}()
	}
	for range maxAside {
		waiting.Value(t, began)
	}
	cancel()
	for range maxAside {
		require.ErrorIs(t, waiting.Value(t, ended), context.Canceled)
	}
	require.ErrorIs(t, s.aside(ctx, func() error { t.Error("there is no room for it"); return nil }), context.Canceled)
	close(hung)
	require.NoError(t, s.aside(t.Context(), func() error { return nil }))
}
