package tree

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// plant makes a tree of that many small files: a few wide directories and many narrow ones.
func plant(t testing.TB, dir string, files int) {
	for made := 0; made < files; {
		sub := filepath.Join(dir, fmt.Sprintf("d%03d/e%03d", made%97, made/97%89))
		must(t, os.MkdirAll(sub, 0o755))
		width := min(60, files-made)
		if made%10 == 0 {
			width = min(2000, files-made)
		}
		for range width {
			must(t, os.WriteFile(filepath.Join(sub, fmt.Sprintf("file-%08d.dat", made)), []byte("0123456789")[:made%11], 0o644))
			made++
		}
	}
}

// TestBeatsGdu compares warm counts of 500,000 files in one run with Debian's gdu. Set BERTH_BENCH=1.
func TestBeatsGdu(t *testing.T) {
	if os.Getenv("BERTH_BENCH") != "1" {
		t.Skip("a measurement: set BERTH_BENCH=1")
	}
	gdu, err := exec.LookPath("gdu")
	if err != nil {
		t.Skip("gdu is not installed")
	}
	const files = 500_000
	dir, err := os.MkdirTemp("", "berth-gdu-")
	must(t, err)
	defer os.RemoveAll(dir)
	plant(t, dir, files)
	root := openTest(t, dir)
	ours := func() time.Duration {
		start := time.Now()
		u, err := Usage(context.Background(), root, 0)
		took := time.Since(start)
		must(t, err)
		if u.Files != files || !u.Complete {
			t.Fatalf("counted %+v", u)
		}
		return took
	}
	theirs := func() time.Duration {
		start := time.Now()
		if out, err := exec.Command(gdu, "-n", "-p", "-s", "-a", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return time.Since(start)
	}
	ours()
	theirs()
	var ratios []float64
	for round := range 7 {
		var a, b time.Duration
		if round%2 == 0 {
			a, b = ours(), theirs()
		} else {
			b, a = theirs(), ours()
		}
		ratios = append(ratios, b.Seconds()/a.Seconds())
		t.Logf("ours %v, gdu %v, speed %.2f of gdu's", a, b, b.Seconds()/a.Seconds())
	}
	slices.Sort(ratios)
	if median := ratios[len(ratios)/2]; median < 1 {
		t.Errorf("the median speed is %.2f of gdu's, want at least 1", median)
	} else {
		t.Logf("median speed: %.2f of gdu's", median)
	}
}

func BenchmarkUsage(b *testing.B) {
	dir := b.TempDir()
	plant(b, dir, 20_000)
	root := openTest(b, dir)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Usage(b.Context(), root, 0); err != nil {
			b.Fatal(err)
		}
	}
}
