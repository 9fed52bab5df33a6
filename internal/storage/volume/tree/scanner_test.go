package tree

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestCountGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	base := quickDir(t)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		must(t, err)
		defer os.RemoveAll(dir)
		grow(t, dir)
		want := naive(t, dir)
		root := openTest(t, dir)
		top, err := openRoot(root)
		must(t, err)
		defer top.Close()
		c := newCount()
		w := &counter{count: c, root: int(top.Fd()), reader: newReader(rapid.SampledFrom([]int{300, 4096}).Draw(t, "buffer"))}
		asked, step := 0, rapid.IntRange(2, 7).Draw(t, "step")
		w.pause = func() bool { asked++; return asked%step == 0 }
		for range 10_000 {
			at, ok := c.crew.take()
			if !ok {
				break
			}
			w.visit(at)
			c.crew.finished()
		}
		got, left := c.sofar()
		if got.Files != want.Files || got.Bytes != want.Bytes || left {
			t.Fatalf("got %+v, left %v, want %+v", got, left, want)
		}
	})
}

func TestScannerKeepsAndForgets(t *testing.T) {
	t.Parallel()
	dir := quickDir(t)
	root := openTest(t, dir)
	now := time.Unix(1000, 0)
	s := NewScanner(func() time.Time { return now }, time.Minute, 2)
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("12345"), 0o600))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	u, err := s.Usage(ended, "k", root)
	must(t, err)
	if u.Complete || u.Files != 0 {
		t.Fatalf("without time: %+v", u)
	}
	if _, ok := s.Last("k"); ok {
		t.Fatal("a lower bound was kept as a result")
	}
	u, err = s.Usage(context.Background(), "k", root)
	must(t, err)
	if !u.Complete || u.Files != 1 || u.Bytes != 5 || !u.At.Equal(now) {
		t.Fatalf("complete: %+v", u)
	}
	must(t, os.WriteFile(filepath.Join(dir, "b"), nil, 0o600))
	now = now.Add(59 * time.Second)
	if u, _ = s.Usage(context.Background(), "k", root); u.Files != 1 {
		t.Fatalf("not from memory: %+v", u)
	}
	s.Forget("k")
	if u, _ = s.Usage(context.Background(), "k", root); u.Files != 2 {
		t.Fatalf("not forgotten: %+v", u)
	}
	now = now.Add(time.Minute)
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(t, os.Remove(filepath.Join(dir, "a")))
	if u, _ = s.Usage(context.Background(), "k", root); u.Files != 1 || !u.At.Equal(now) {
		t.Fatalf("too old: %+v", u)
	}
}

func TestScannerMemoryIsBounded(t *testing.T) {
	t.Parallel()
	dir := quickDir(t)
	root := openTest(t, dir)
	now := time.Unix(1000, 0)
	s := NewScanner(func() time.Time { return now }, 0, 1)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for i := range 3 * maxPaused {
		now = now.Add(time.Second)
		_, err := s.Usage(ended, string(rune('a'+i)), root)
		must(t, err)
	}
	if n := len(s.scans); n != maxPaused {
		t.Fatalf("%d paused counts are kept, want %d", n, maxPaused)
	}
}
