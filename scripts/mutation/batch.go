package main

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// activeVariable is the environment variable that selects a mutant of a batch.
const activeVariable = "MUTATION_ACTIVE"

// activeSource is the file that a batch adds to the package.
const activeSource = `package %s

import (
	"os"
	"strconv"
)

var mutationActive, _ = strconv.Atoi(os.Getenv("` + activeVariable + `"))
`

// batch builds one test binary that holds all mutants that can be written as a choice made when the program runs. Building a binary
// for each takes most of the time otherwise. Mutants that cannot be a choice, such as those of constants, keep the number 0.
func (s *suite) batch(ctx context.Context, all []*mutant) error {
	number := 0
	byFile := map[string][]*mutant{}
	for _, m := range all {
		if m.host.kind != noHost && s.ran(m) {
			number++
			m.number = number
			byFile[m.file] = append(byFile[m.file], m)
		}
	}
	files := map[string][]byte{}
	active := path.Join(s.p.dir, "mutation_active.go")
	files[active] = fmt.Appendf(nil, activeSource, s.p.files[0].syntax.Name.Name)
	for _, f := range s.p.files {
		list := byFile[f.path]
		if len(list) == 0 {
			continue
		}
		valid := func(list []*mutant) bool {
			return s.p.check(nil, map[string][]byte{active: files[active], f.path: choices(f.source, list)}) == nil
		}
		list = keep(list, valid)
		if len(list) > 0 {
			files[f.path] = choices(f.source, list)
		}
	}
	for i, t := range s.tests {
		binary := filepath.Join(s.work, fmt.Sprintf("batch%d.test", i))
		if text, err := s.build(ctx, t, binary, files); err != nil {
			return fmt.Errorf("build the batch of mutants: %w\n%s", err, text)
		}
		used, text, err := s.test(ctx, t, binary, 0)
		if err != nil {
			return fmt.Errorf("the tests of %s fail on the batch without a mutant: %w\n%s", t.dir, err, text)
		}
		s.tests[i].cpu = max(s.tests[i].cpu, int(10*used/time.Second)+1)
		s.batches = append(s.batches, binary)
	}
	return nil
}

// keep returns the mutants that compile together; the others lose their numbers.
func keep(list []*mutant, valid func([]*mutant) bool) []*mutant {
	switch {
	case len(list) == 0 || valid(list):
		return list
	case len(list) == 1:
		list[0].number = 0
		return nil
	}
	half := len(list) / 2
	out := slices.Concat(keep(list[:half], valid), keep(list[half:], valid))
	if !valid(out) {
		for _, m := range out {
			m.number = 0
		}
		return nil
	}
	return out
}

// choices writes a file in which every host of a mutant is a choice. A mutant whose host has the same place as another's and is
// of another type loses its number.
func choices(source []byte, list []*mutant) []byte {
	hosts := map[host][]*mutant{}
	places := map[[2]int]host{}
	for _, m := range list {
		place := [2]int{m.host.start, m.host.end}
		if other, taken := places[place]; taken && other != m.host {
			m.number = 0
			continue
		}
		places[place] = m.host
		hosts[m.host] = append(hosts[m.host], m)
	}
	order := make([]host, 0, len(hosts))
	for h := range hosts {
		order = append(order, h)
	}
	// The outer ones first.
	slices.SortFunc(order, func(a, b host) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return b.end - a.end
	})
	w := writer{source: source, hosts: hosts, order: order}
	w.copy(0, len(source))
	return []byte(w.out.String())
}

type writer struct {
	source []byte
	hosts  map[host][]*mutant
	order  []host // those not written yet
	out    strings.Builder
}

// copy writes a part of the source with the hosts in it.
func (w *writer) copy(from, to int) {
	for len(w.order) > 0 && w.order[0].start < to {
		h := w.order[0]
		w.order = w.order[1:]
		w.out.Write(w.source[from:h.start])
		w.host(h)
		from = h.end
	}
	w.out.Write(w.source[from:to])
}

func (w *writer) host(h host) {
	switch h.kind {
	case expression:
		fmt.Fprintf(&w.out, "func() %s { ", h.typ)
		for _, m := range w.hosts[h] {
			fmt.Fprintf(&w.out, "if mutationActive == %d { return %s }; ", m.number, m.inHost())
		}
		w.out.WriteString("return ")
		w.copy(h.start, h.end)
		w.out.WriteString(" }()")
	case statement, header:
		if h.kind == header {
			w.out.WriteString("func() { ")
		}
		for _, m := range w.hosts[h] {
			fmt.Fprintf(&w.out, "if mutationActive == %d { %s } else ", m.number, m.inHost())
		}
		w.out.WriteString("{ ")
		w.copy(h.start, h.end)
		w.out.WriteString(" }")
		if h.kind == header {
			w.out.WriteString(" }()")
		}
	}
}

// inHost is the mutated text of the host. A statement that is skipped is left out.
func (m *mutant) inHost() string {
	if strings.HasPrefix(m.text, "if false { ") && m.start == m.host.start && m.end == m.host.end {
		return ""
	}
	return string(m.source[m.host.start:m.start]) + m.text + string(m.source[m.end:m.host.end])
}
