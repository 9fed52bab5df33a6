// Command mutation measures how much of a package's behaviour its tests notice. It makes small changes to the source (mutants),
// one at a time, and runs the package's tests on each. A mutant is killed when a test fails and survives when all pass. The
// working tree is never changed: the go command reads the mutated file through its -overlay flag.
//
//	go run ./scripts/mutation [flags] [package directory[:directory of further tests,...]]...
//
// docs/mutation.md tells how to read the report and what to do about a survivor. make mutation calls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// defaultTargets are the packages that must reach the threshold.
var defaultTargets = []string{
	"internal/scheduler",
	"internal/scheduler/quota",
	"internal/scheduler/fairshare",
	"internal/alloc",
	"internal/cluster",
	"internal/manager/authz",
	"internal/manager/tenancy/plan",
	"internal/manager/notice/rule",
	"internal/appproxy/circuit",
}

// options are the flags of one run.
type options struct {
	all      bool
	list     bool
	number   int
	seed     uint64
	parallel int
	min      float64
	budget   time.Duration
	only     *regexp.Regexp
	listed   string // path of the file of equivalent mutants
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	var o options
	flags := flag.NewFlagSet("mutation", flag.ContinueOnError)
	flags.BoolVar(&o.all, "all", false, "run every mutant instead of a sample")
	flags.BoolVar(&o.list, "list", false, "print the chosen mutants and run nothing")
	flags.IntVar(&o.number, "n", 150, "mutants of each package in the sample")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the sample and of property tests")
	flags.IntVar(&o.parallel, "parallel", 2, "mutants that are built and tested at the same time")
	flags.Float64Var(&o.min, "min", 85, "the lowest score, in per cent, that passes")
	flags.DurationVar(&o.budget, "budget", 40*time.Minute, "start no further mutant after this time")
	only := flags.String("only", "", "run only mutants whose \"file:line function\" matches this regular expression")
	flags.StringVar(&o.listed, "equivalent", "scripts/mutation/equivalent.txt", "the file that lists equivalent mutants")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.number < 1 || o.parallel < 1 {
		return errors.New("-n and -parallel must be at least 1")
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("read -only: %w", err)
	}
	known, err := readEquivalents(o.listed)
	if err != nil {
		return err
	}
	targets := flags.Args()
	if len(targets) == 0 {
		targets = defaultTargets
	}
	work, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	end := time.Now().Add(o.budget)
	var results []result
	var failures []string
	for i, name := range targets {
		// Each package gets an equal part of the time that is left.
		left := time.Until(end)
		deadline := time.Now().Add(left / time.Duration(len(targets)-i))
		r, err := measure(ctx, out, work, name, o, known, deadline)
		if err != nil {
			return fmt.Errorf("measure %s: %w", name, err)
		}
		results = append(results, r)
		for _, e := range r.stale {
			failures = append(failures, fmt.Sprintf("%s:%d matches no mutant: correct or remove the entry", o.listed, e.line))
		}
	}
	if !o.list {
		failures = append(failures, summarise(out, results, o.min)...)
	}
	if len(failures) > 0 {
		return errors.New(strings.Join(failures, "\n  "))
	}
	return nil
}

// summarise prints the table of scores and returns what is below the threshold.
func summarise(out io.Writer, results []result, lowest float64) (failures []string) {
	fmt.Fprintf(out, "\n%-28s %10s %8s %8s %12s\n", "package", "killed", "score", "mutants", "equivalent")
	for _, r := range results {
		fmt.Fprintf(out, "%-28s %5d/%-4d %7.1f%% %8d %12d\n", r.dir, r.killed, r.ran, r.score(), r.total, r.equivalent)
		switch {
		case r.ran == 0:
			failures = append(failures, r.dir+": no mutant was run")
		case r.score() < lowest:
			failures = append(failures, fmt.Sprintf("%s: %.1f %% is below %.0f %%", r.dir, r.score(), lowest))
		}
		if r.skipped > 0 {
			fmt.Fprintf(out, "  left out: the time ended before %d of %d chosen mutants were run\n", r.skipped, r.chosen)
		}
	}
	return failures
}

// result is what became of the mutants of one package.
type result struct {
	dir        string
	total      int // candidates, those that do not compile included when they were not tried
	chosen     int
	ran        int
	killed     int
	skipped    int
	equivalent int
	stale      []equivalent
}

func (r result) score() float64 {
	if r.ran == 0 {
		return 0
	}
	return 100 * float64(r.killed) / float64(r.ran)
}

func measure(
	ctx context.Context, out io.Writer, work, name string, o options, known []equivalent, deadline time.Time,
) (result, error) {
	dir, more, _ := strings.Cut(name, ":")
	tests := []string{dir}
	if more != "" {
		tests = append(tests, strings.Split(more, ",")...)
	}
	r := result{dir: dir}
	p, err := load(ctx, dir)
	if err != nil {
		return r, err
	}
	candidates := p.mutants()
	r.total = len(candidates)
	used := make([]bool, len(known))
	candidates = slices.DeleteFunc(candidates, func(m *mutant) bool {
		i := slices.IndexFunc(known, m.matches)
		if i >= 0 {
			used[i] = true
			r.equivalent++
		}
		return i >= 0
	})
	for i, e := range known {
		if !used[i] && p.owns(e.file) {
			r.stale = append(r.stale, e)
		}
	}
	candidates = slices.DeleteFunc(candidates, func(m *mutant) bool { return !o.only.MatchString(m.where()) })
	var chosen []*mutant
	if o.all {
		chosen = slices.DeleteFunc(candidates, func(m *mutant) bool { return !p.compiles(m) })
		r.total = len(chosen) + r.equivalent
	} else {
		chosen = sample(candidates, o.number, o.seed, p.compiles)
	}
	r.chosen = len(chosen)
	fmt.Fprintf(out, "== %s: %d candidates, %d chosen, %d listed as equivalent\n", dir, r.total, r.chosen, r.equivalent)
	if o.list {
		for _, m := range chosen {
			fmt.Fprintf(out, "%s", m.report())
		}
		return r, nil
	}
	s, err := newSuite(ctx, work, p, tests, o)
	if err != nil {
		return r, err
	}
	if err := s.batch(ctx, chosen); err != nil {
		return r, err
	}
	alone := 0
	for _, m := range chosen {
		if m.number == 0 && s.ran(m) {
			alone++
		}
	}
	fmt.Fprintf(out, "== %s: %d mutants are built one by one, the others together\n", dir, alone)
	outcomes, err := s.runAll(ctx, shuffled(chosen, o.seed), deadline)
	if err != nil {
		return r, err
	}
	for _, m := range chosen { // in source order
		switch outcomes[m] {
		case notRun:
			r.skipped++
		case rejected:
			r.chosen--
		case killed:
			r.ran++
			r.killed++
		case survived, uncovered:
			r.ran++
			note := ""
			if outcomes[m] == uncovered {
				note = " (no test runs this line)"
			}
			fmt.Fprintf(out, "survived%s %s", note, m.report())
		}
	}
	fmt.Fprintf(out, "== %s: %d of %d killed\n", dir, r.killed, r.ran)
	return r, nil
}
