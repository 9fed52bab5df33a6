package loopdisk_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/loopdisk"
	"berth.dev/berth/internal/chassis"
)

const size = loopdisk.MinSize

// workplace is a directory whose disks go with the test; the test is skipped where disks cannot be had.
func workplace(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount file systems")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("this kernel has no loop devices")
	}
	dir := t.TempDir()
	t.Cleanup(func() {
		text, err := os.ReadFile("/proc/self/mountinfo")
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); strings.HasPrefix(f[4], dir+"/") {
				_ = unix.Unmount(f[4], unix.MNT_DETACH)
			}
		}
	})
	return dir
}

// fill writes until an error and returns how much was written.
func fill(t *testing.T, path string, most int) (int, error) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	block := bytes.Repeat([]byte{'x'}, 1<<20)
	n := 0
	for n < most {
		k, err := f.Write(block)
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func TestADiskEndsWhereItShould(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(workplace(t), "disk")
	require.NoError(t, loopdisk.Make(t.Context(), dir, size))
	n, err := fill(t, filepath.Join(loopdisk.Mount(dir), "big"), 4*size)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Less(t, n, size)
	u, ok := loopdisk.Usage(dir)
	require.True(t, ok)
	require.Less(t, u.Free, int64(1<<20))

	require.NoError(t, loopdisk.Detach(dir))
	require.NoError(t, loopdisk.Detach(dir))
	_, ok = loopdisk.Usage(dir)
	require.False(t, ok)
	require.NoError(t, loopdisk.Remove(dir))
	require.NoDirExists(t, dir)
}

func TestADiskIsKeptAndMoves(t *testing.T) {
	t.Parallel()
	base := workplace(t)
	dir := filepath.Join(base, "a")
	require.NoError(t, loopdisk.Make(t.Context(), dir, size))
	require.True(t, loopdisk.Exists(dir))
	file := filepath.Join(loopdisk.Mount(dir), "file")
	require.NoError(t, os.WriteFile(file, []byte("kept"), 0o644))
	f, err := os.Open(file)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	require.NoError(t, os.Rename(dir, filepath.Join(base, "b")))
	dir = filepath.Join(base, "b")
	require.NoError(t, loopdisk.Attach(dir), "it is attached already")
	// As a restart of the host leaves it: not mounted. A program that another test starts at this time may hold the file until it runs.
	require.Eventually(t, func() bool {
		err := unix.Unmount(loopdisk.Mount(dir), 0)
		if !errors.Is(err, unix.EBUSY) {
			require.NoError(t, err)
		}
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, loopdisk.Attach(dir))
	text, err := os.ReadFile(filepath.Join(loopdisk.Mount(dir), "file"))
	require.NoError(t, err)
	require.Equal(t, "kept", string(text))
	require.NoError(t, loopdisk.Remove(dir))
}

func TestDetachNeverTakesAnotherFileSystem(t *testing.T) {
	t.Parallel()
	base := workplace(t)
	outer := filepath.Join(base, "outer")
	require.NoError(t, loopdisk.Make(t.Context(), outer, size))
	// A disk of which only the directories are left, on a file system that is on a loop device itself.
	dir := filepath.Join(loopdisk.Mount(outer), "disk")
	require.NoError(t, os.MkdirAll(loopdisk.Mount(dir), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "image"), nil, 0o600))
	require.NoError(t, loopdisk.Detach(dir))
	require.NoError(t, os.WriteFile(filepath.Join(loopdisk.Mount(outer), "still"), []byte("works"), 0o600))
	require.NoError(t, loopdisk.Remove(outer))
}

func TestThePool(t *testing.T) {
	t.Parallel()
	base := workplace(t)
	why := ""
	o := loopdisk.Options{Dir: filepath.Join(base, "pool"), Size: size, Ahead: 2,
		Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock(),
		Unseen: func(context.Context, string) string { return why }}
	p, err := loopdisk.OpenPool(t.Context(), o)
	require.NoError(t, err)
	for _, name := range []string{"one", "two"} { // the second is made when it is needed
		require.NoError(t, p.Give(t.Context(), filepath.Join(base, name)))
		_, ok := loopdisk.Usage(filepath.Join(base, name))
		require.True(t, ok)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	require.Eventually(t, func() bool { return waiting(o.Dir) == 2 }, 30*time.Second, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)

	// One that lost its disk under it is not given to anybody.
	entries, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, unix.Mount("", loopdisk.Mount(filepath.Join(o.Dir, e.Name())), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	require.NoError(t, p.Give(t.Context(), filepath.Join(base, "fresh")))
	require.NoError(t, os.WriteFile(filepath.Join(loopdisk.Mount(filepath.Join(base, "fresh")), "x"), nil, 0o600))
	require.Zero(t, waiting(o.Dir))
	require.NoError(t, loopdisk.Remove(filepath.Join(base, "fresh")))
	ctx, cancel = context.WithCancel(t.Context())
	go func() { done <- p.Run(ctx) }()
	require.Eventually(t, func() bool { return waiting(o.Dir) == 2 }, 30*time.Second, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)

	// A killed agent leaves them; the next one takes those of its size and removes the rest.
	again, err := loopdisk.OpenPool(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 2, waiting(o.Dir))
	o.Size = 2 * size
	larger, err := loopdisk.OpenPool(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 1, waiting(o.Dir))
	require.NoError(t, larger.Close())
	require.NoDirExists(t, o.Dir)
	require.NoError(t, again.Close())

	// An engine in another mount namespace would write beside the disk.
	why = "it has another mount namespace"
	blind, err := loopdisk.OpenPool(t.Context(), o)
	require.NoError(t, err)
	err = blind.Give(t.Context(), filepath.Join(base, "three"))
	require.ErrorContains(t, err, why)
	require.NoDirExists(t, filepath.Join(base, "three"))
	require.NoError(t, blind.Close())
	for _, name := range []string{"one", "two"} {
		require.NoError(t, loopdisk.Remove(filepath.Join(base, name)))
	}
}

// TestNoHalfDisks: a disk is at its place only when it is complete, so that an agent which is killed meanwhile finds none there that
// cannot be mounted.
func TestNoHalfDisks(t *testing.T) { // it changes the environment, so it runs alone
	base := workplace(t)
	real, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		real = "/usr/sbin/mkfs.ext4"
	}
	o := loopdisk.Options{Dir: filepath.Join(base, ".disks"), Size: size, Ahead: 1, Log: slog.New(slog.DiscardHandler),
		Clock: chassis.RealClock()}
	p, err := loopdisk.OpenPool(t.Context(), o)
	require.NoError(t, err)
	place := filepath.Join(base, "kernel")
	require.NoError(t, p.Give(t.Context(), filepath.Join(base, "first")), "the one that waited")

	bin := t.TempDir()
	seen := filepath.Join(bin, "seen")
	script := "#!/bin/sh\n[ -e '" + place + "' ] && echo half > '" + seen + "'\nexec " + real + " \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "mkfs.ext4"), []byte(script), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	require.NoError(t, p.Give(t.Context(), place))
	require.NoFileExists(t, seen)
	require.True(t, loopdisk.Exists(place))
	for _, dir := range []string{"first", "kernel"} {
		require.NoError(t, loopdisk.Remove(filepath.Join(base, dir)))
	}
	require.NoError(t, p.Close())
}

func waiting(dir string) int {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	n := 0
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "new-") {
			n++
		}
	}
	return n
}
