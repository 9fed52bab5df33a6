// Command leftout reads what `go test -json` writes, shows it as `go test` does, and adds one line for each test that was left out, with
// its reason, to the file that BERTH_LEFT_OUT names. At the end it names the tests that took longest. It ends with 1 when a test or a
// build failed.
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
	failed, err := run(os.Stdin, os.Stdout, os.Getenv("BERTH_LEFT_OUT"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "leftout:", err)
		os.Exit(1)
	}
	if failed {
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, path string) (failed bool, err error) {
	list := io.Discard
	if path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return false, err
		}
		defer f.Close()
		list = f
	}
	return read(in, out, list)
}

// read shows what failed and the line of every package, and lists what was skipped.
func read(in io.Reader, out, list io.Writer) (failed bool, err error) {
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
				unfinished(out, said, e.Package)
				continue
			}
			if b := said[at]; b != nil {
				fmt.Fprint(out, b.String())
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
func unfinished(out io.Writer, said map[test]*strings.Builder, pkg string) {
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
		delete(said, at)
	}
}

var place = regexp.MustCompile(`^\s*[\w./-]+\.go:\d+: `)

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
