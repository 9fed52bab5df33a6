// Command leftout reads what `go test -json` writes and shows it as `go test` does. It adds one line for each test that was left out, with
// its reason, to the file that BERTH_LEFT_OUT names, and each test that failed, with what it complained of, to the file that
// BERTH_FAILED names. At the end it names the tests that took longest. It ends with 1 when a test or a build failed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is a line of `go test -json`.
type event struct {
	Action, Package, ImportPath, Test, Output string

	Elapsed float64 // seconds, without the time that a parallel test waited for its turn
}

type test struct{ pkg, name string }

func main() {
	failed, err := run(os.Stdin, os.Stdout, os.Getenv("BERTH_LEFT_OUT"), os.Getenv("BERTH_FAILED"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "leftout:", err)
		os.Exit(1)
	}
	if failed {
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, leftOut, failures string) (failed bool, err error) {
	skipped, err := appendTo(leftOut)
	if err != nil {
		return false, err
	}
	defer skipped.Close()
	complaints, err := appendTo(failures)
	if err != nil {
		return false, err
	}
	defer complaints.Close()
	return read(in, out, skipped, complaints)
}

// appendTo opens a file; what is written goes nowhere when its name is "".
func appendTo(path string) (*os.File, error) {
	return os.OpenFile(cmp.Or(path, os.DevNull), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
}

// read shows what failed and the line of every package, and lists what was skipped and what failed.
func read(in io.Reader, out, list, failures io.Writer) (failed bool, err error) {
	said := map[test]*strings.Builder{}
	var slow durations
	defer func() { slow.show(out) }()
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadString('\n')
		if err == io.EOF && line == "" {
			return failed, nil
		}
		if err != nil && err != io.EOF {
			return failed, err
		}
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			fmt.Fprint(out, line) // a program that the tests started wrote it
			continue
		}
		at := test{e.Package, e.Test}
		slow.add(e)
		switch e.Action {
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "build-fail":
			failed = true
			fmt.Fprintf(failures, "--- %s does not compile\n", e.ImportPath)
		case "output":
			if e.Test == "" {
				if e.Output != "PASS\n" {
					fmt.Fprint(out, e.Output)
				}
				continue
			}
			if said[at] == nil {
				said[at] = &strings.Builder{}
			}
			said[at].WriteString(e.Output)
		case "fail":
			failed = true
			if e.Test == "" {
				unfinished(out, failures, said, e.Package)
				continue
			}
			if b := said[at]; b != nil {
				fmt.Fprint(out, b.String())
				fmt.Fprintf(failures, "--- %s %s\n%s", e.Package, e.Test, complaint(b.String()))
			}
			delete(said, at)
		case "skip":
			if e.Test != "" {
				fmt.Fprintf(list, "  %s %s: %s\n", e.Package, e.Test, reason(said[at]))
			}
			delete(said, at)
		case "pass":
			delete(said, at)
		}
	}
}

// How many of the longest tests are named, and from how many seconds on.
const (
	longest = 15
	slowest = 10
)

type durations []event

func (d *durations) add(e event) {
	if e.Test != "" && !strings.Contains(e.Test, "/") && e.Elapsed >= slowest {
		*d = append(*d, e)
	}
}

func (d durations) show(out io.Writer) {
	slices.SortStableFunc(d, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	for i, e := range d[:min(len(d), longest)] {
		if i == 0 {
			fmt.Fprintf(out, "%d tests took %d s or more; the longest:\n", len(d), slowest)
		}
		fmt.Fprintf(out, "  %4.0f s  %s %s\n", e.Elapsed, e.Package, e.Test)
	}
}

// unfinished shows what tests of a package said that had not ended when the package failed: after its time was over, the stacks are there.
func unfinished(out, failures io.Writer, said map[test]*strings.Builder, pkg string) {
	var open []string
	for at := range said {
		if at.pkg == pkg {
			open = append(open, at.name)
		}
	}
	slices.Sort(open)
	for _, name := range open {
		at := test{pkg, name}
		fmt.Fprintf(out, "--- NOT ENDED: %s\n%s", name, said[at])
		fmt.Fprintf(failures, "--- %s %s did not end\n", pkg, name)
		delete(said, at)
	}
}

var place = regexp.MustCompile(`^\s*[\w./-]+\.go:\d+: `)

// How many lines of a long complaint are repeated, of its beginning and of its end.
const (
	begins = 8
	ends   = 12
)

// complaint is the first thing that a failed test required in vain, else the last thing that it said of a place in its code.
func complaint(said string) string {
	var lines []string
	for line := range strings.Lines(said) {
		if place.MatchString(line) {
			if slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "Error Trace:") }) {
				break
			}
			lines = nil
		} else if len(lines) == 0 {
			continue
		}
		lines = append(lines, line)
	}
	if len(lines) > begins+ends {
		lines = slices.Concat(lines[:begins], []string{"        ...\n"}, lines[len(lines)-ends:])
	}
	return strings.Join(lines, "")
}

// reason is what a test said when it left itself out.
func reason(said *strings.Builder) string {
	if said == nil {
		return "it does not say why"
	}
	var words []string
	for line := range strings.Lines(said.String()) {
		if place.MatchString(line) {
			words = append(words, strings.TrimSpace(place.ReplaceAllString(line, "")))
		}
	}
	if len(words) == 0 {
		return "it does not say why"
	}
	return words[len(words)-1]
}
