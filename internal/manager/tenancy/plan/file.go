package plan

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// MaxBytes bounds a file, MaxObjects what it names, MaxUsers the rows of a table.
	MaxBytes   = 4 << 20
	MaxObjects = 20_000
	// maxMarks bounds what a file is made of: every value takes a mark at least.
	maxMarks = 500_000
	// maxProblems bounds how many mistakes are told at once, maxList a list of members.
	maxProblems = 20
	maxList     = 20_000
)

// Problem is a mistake of a file. Line 0 is about the whole file.
type Problem struct {
	Line int
	Text string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return p.Text
	}
	return fmt.Sprintf("line %d: %s", p.Line, p.Text)
}

// problems gathers mistakes.
type problems struct {
	list []Problem
	more int
}

func (p *problems) add(line int, format string, args ...any) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, Problem{line, fmt.Sprintf(format, args...)})
}

func (p *problems) all() []Problem {
	slices.SortStableFunc(p.list, func(a, b Problem) int { return a.Line - b.Line })
	if p.more > 0 {
		return append(p.list, Problem{0, fmt.Sprintf("and %d more mistakes", p.more)})
	}
	return p.list
}

// Told are mistakes in words, a line each.
func Told(list []Problem) string {
	lines := make([]string, len(list))
	for i, p := range list {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// value is a property with its place.
type value struct {
	text string
	line int
}

// item is a member of a list with its place.
type item = value

// entry is what a file says of an object.
type entry struct {
	key  Key
	line int
	// domain is that of a user.
	domain string
	set    map[string]value
	// lists are members, admins, domains and projects; a list that is there is the whole list.
	lists map[string][]item
}

// Key names an object; the domain is that of a project.
type Key struct {
	Kind         Kind
	Domain, Name string
}

func (k Key) String() string {
	if k.Kind == Project {
		return fmt.Sprintf("project %s/%s", k.Domain, k.Name)
	}
	return strings.ReplaceAll(string(k.Kind), "-", " ") + " " + k.Name
}

// section is a list of objects that a file has: what is there and not in it is absent.
type section struct {
	kind   Kind
	domain string // of projects and users
}

// File is what a file says.
type File struct {
	entries  []entry
	sections []section
	notes    []string
	seen     map[Key]int
}

// add takes an entry, and tells when there is one of the same name.
func (f *File) add(e entry, p *problems) {
	if line, twice := f.seen[e.key]; twice {
		p.add(e.line, "%s is in the file twice, in line %d, too", e.key, line)
		return
	}
	if f.seen == nil {
		f.seen = map[Key]int{}
	}
	f.seen[e.key] = e.line
	f.entries = append(f.entries, e)
}
