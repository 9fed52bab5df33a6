package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// equivalent is a mutant that no test can kill, because it behaves like the original.
type equivalent struct {
	file, function string
	removed, added []string
	reason         string
	line           int // of the entry in its file
}

func (m *mutant) matches(e equivalent) bool {
	if m.file != e.file || m.function != e.function {
		return false
	}
	removed, added := m.diff()
	return slices.Equal(removed, e.removed) && slices.Equal(added, e.added)
}

func readEquivalents(name string) ([]equivalent, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the equivalent mutants: %w", err)
	}
	out, err := parseEquivalents(string(text))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return out, nil
}

// parseEquivalents reads entries that empty lines separate. Each has a line "file function", the lines "- old" and "+ new" as
// the report prints them, and a line "= reason". Lines that begin with # are comments.
func parseEquivalents(text string) ([]equivalent, error) {
	var out []equivalent
	var e equivalent
	finish := func() error {
		if e.file == "" {
			return nil
		}
		if len(e.removed) == 0 || len(e.added) == 0 || e.reason == "" {
			return fmt.Errorf("line %d: an entry needs a file, lines with -, lines with + and a reason", e.line)
		}
		out = append(out, e)
		e = equivalent{}
		return nil
	}
	for i, s := range strings.Split(text, "\n") {
		s = strings.TrimSpace(s)
		value := strings.TrimSpace(strings.TrimLeft(s[:min(1, len(s))], "-+=")) + strings.TrimSpace(s[min(1, len(s)):])
		switch {
		case s == "":
			if err := finish(); err != nil {
				return nil, err
			}
		case s[0] == '#':
		case e.file == "":
			e.file, e.function, _ = strings.Cut(s, " ")
			e.line = i + 1
		case s[0] == '-':
			e.removed = append(e.removed, value)
		case s[0] == '+':
			e.added = append(e.added, value)
		case s[0] == '=':
			e.reason = strings.TrimSpace(e.reason + " " + value)
		default:
			return nil, fmt.Errorf("line %d: begin it with -, + or =", i+1)
		}
	}
	return out, finish()
}
