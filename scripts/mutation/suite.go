package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// outcome is what became of a mutant.
type outcome int

const (
	notRun outcome = iota
	killed
	survived
	uncovered // survived, because no test runs it
	rejected  // does not compile although its types are right; not counted
)

// The limits of one run of a test binary. A mutant may loop for ever or fill the memory: exceeding a limit kills it. The limit
// of processor time is what stops a loop, so that a busy machine kills nothing by itself.
const (
	memoryKiB = 4 << 20
	wallTime  = 3 * time.Minute
	minCPU    = 2 // seconds
)

// The codes with which the shell ends when it cannot run the test binary: the mutant is not to blame.
const (
	cannotExecute = 126
	notFound      = 127
)

// progressEvery is after how many mutants the standard error output says how far the run is.
const progressEvery = 50

// suite runs the tests of one package on its mutants.
type suite struct {
	p        *packageSource
	work     string
	tests    []testPackage
	batches  []string // test binaries with many mutants, by test package
	parallel int
	blocks   map[string][]block // what the tests cover, by file
}

type testPackage struct {
	dir   string
	flags []string
	cpu   int // limit in seconds
}

// block is a part of a file with the number of times that tests ran it.
type block struct{ fromLine, fromColumn, toLine, toColumn, count int }

// newSuite runs the tests once without a mutant: they must pass, and their coverage and duration are kept.
func newSuite(ctx context.Context, work string, p *packageSource, dirs []string, o options) (*suite, error) {
	s := &suite{p: p, work: work, parallel: o.parallel, blocks: map[string][]block{}}
	for i, dir := range dirs {
		t := testPackage{dir: dir, cpu: 600}
		properties, err := usesRapid(filepath.Join(p.root, dir))
		if err != nil {
			return nil, err
		}
		if properties {
			t.flags = []string{fmt.Sprintf("-rapid.seed=%d", o.seed), "-rapid.nofailfile", "-rapid.shrinktime=1ms"}
		}
		binary := filepath.Join(work, fmt.Sprintf("base%d.test", i))
		profile := filepath.Join(work, fmt.Sprintf("base%d.cover", i))
		if text, err := s.build(ctx, t, binary, nil, "-cover", "-covermode=count", "-coverpkg="+p.path); err != nil {
			return nil, fmt.Errorf("build the tests: %w\n%s", err, text)
		}
		used, text, err := s.test(ctx, t, binary, 0, "-test.coverprofile="+profile)
		if err != nil {
			return nil, fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", dir, err, text)
		}
		t.cpu = max(minCPU, int(10*used/time.Second)+1)
		if err := s.cover(profile); err != nil {
			return nil, err
		}
		s.tests = append(s.tests, t)
	}
	return s, nil
}

// usesRapid reports whether the tests in a directory know the flags of the library for properties.
func usesRapid(dir string) (bool, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return false, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return false, err
		}
		if bytes.Contains(text, []byte(`"pgregory.net/rapid"`)) {
			return true, nil
		}
	}
	return false, nil
}

// build makes a test binary. Files by their path in the module replace or join those of the tree.
func (s *suite) build(ctx context.Context, t testPackage, binary string, files map[string][]byte, more ...string) ([]byte, error) {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}, more...)
	if len(files) > 0 {
		replace := map[string]string{}
		for name, text := range files {
			stored := fmt.Sprintf("%s.%d.go", binary, len(replace))
			if err := os.WriteFile(stored, text, 0o644); err != nil {
				return nil, err
			}
			replace[filepath.Join(s.p.root, filepath.FromSlash(name))] = stored
		}
		text, err := json.Marshal(map[string]any{"Replace": replace})
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(binary+".json", text, 0o644); err != nil {
			return nil, err
		}
		args = append(args, "-overlay", binary+".json")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+filepath.ToSlash(t.dir))...)
	cmd.Dir = s.p.root
	return cmd.CombinedOutput()
}

// test runs a test binary in its package's directory and says how much processor time it took. A number above zero selects a
// mutant of a batch.
func (s *suite) test(ctx context.Context, t testPackage, binary string, number int, more ...string) (time.Duration, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, wallTime)
	defer cancel()
	script := fmt.Sprintf(`ulimit -c 0; ulimit -v %d; ulimit -t %d; exec "$0" "$@"`, memoryKiB, t.cpu)
	args := []string{"-c", script, binary, "-test.short", "-test.failfast", "-test.timeout=" + (wallTime - 10*time.Second).String()}
	cmd := exec.CommandContext(ctx, "bash", append(append(args, t.flags...), more...)...)
	cmd.Dir = filepath.Join(s.p.root, t.dir)
	cmd.Env = append(os.Environ(), activeVariable+"="+strconv.Itoa(number))
	cmd.WaitDelay = 5 * time.Second
	text := tail{limit: 8 << 10}
	cmd.Stdout, cmd.Stderr = &text, &text
	err := cmd.Run()
	var used time.Duration
	if cmd.ProcessState != nil {
		used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return used, text.kept, err
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if n := len(t.kept) - t.limit; n > 0 {
		t.kept = append(t.kept[:0], t.kept[n:]...)
	}
	return len(p), nil
}

// cover adds the blocks of a coverage profile.
func (s *suite) cover(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read the coverage: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		file, rest, ok := strings.Cut(lines.Text(), ".go:")
		if !ok {
			continue
		}
		var b block
		var statements int
		_, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.fromLine, &b.fromColumn, &b.toLine, &b.toColumn, &statements, &b.count)
		if err != nil {
			return fmt.Errorf("read the coverage: %w", err)
		}
		base := filepath.Base(file) + ".go"
		s.blocks[base] = append(s.blocks[base], b)
	}
	return nil
}

// ran reports whether tests run the place of a mutant; places outside of functions count as run.
func (s *suite) ran(m *mutant) bool {
	inside := false
	for _, b := range s.blocks[filepath.Base(m.file)] {
		after := m.line > b.fromLine || m.line == b.fromLine && m.column >= b.fromColumn
		before := m.line < b.toLine || m.line == b.toLine && m.column < b.toColumn
		if after && before {
			if b.count > 0 {
				return true
			}
			inside = true
		}
	}
	return !inside
}

// runAll runs the tests on mutants, several at a time, until all are done or the deadline passes.
func (s *suite) runAll(ctx context.Context, mutants []*mutant, deadline time.Time) (map[*mutant]outcome, error) {
	outcomes := map[*mutant]outcome{}
	var failure error
	var mutex sync.Mutex
	var workers sync.WaitGroup
	next := make(chan *mutant)
	for i := range s.parallel {
		workers.Go(func() {
			for m := range next {
				got, err := s.runOne(ctx, m, i)
				mutex.Lock()
				outcomes[m] = got
				failure = errors.Join(failure, err)
				mutex.Unlock()
			}
		})
	}
	for i, m := range mutants {
		if i > 0 && i%progressEvery == 0 {
			fmt.Fprintf(os.Stderr, "%s: %d of %d\n", s.p.dir, i, len(mutants))
		}
		mutex.Lock()
		failed := failure != nil
		mutex.Unlock()
		if failed || ctx.Err() != nil || time.Now().After(deadline) {
			break
		}
		next <- m
	}
	close(next)
	workers.Wait()
	return outcomes, errors.Join(failure, ctx.Err())
}

func (s *suite) runOne(ctx context.Context, m *mutant, worker int) (outcome, error) {
	if !s.ran(m) {
		return uncovered, nil
	}
	for i, t := range s.tests {
		binary := s.batches[i]
		if m.number == 0 {
			dir := filepath.Join(s.work, fmt.Sprint("worker", worker))
			if err := os.MkdirAll(dir, fs.ModePerm); err != nil {
				return notRun, err
			}
			binary = filepath.Join(dir, "mutant.test")
			if _, err := s.build(ctx, t, binary, map[string][]byte{m.file: m.apply()}); ctx.Err() != nil {
				return notRun, nil
			} else if err != nil {
				return rejected, nil
			}
		}
		_, _, err := s.test(ctx, t, binary, m.number)
		if ctx.Err() != nil {
			return notRun, nil
		}
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.ExitCode() != cannotExecute && exit.ExitCode() != notFound:
			return killed, nil
		case err != nil:
			return notRun, fmt.Errorf("run the tests: %w", err)
		}
	}
	return survived, nil
}
