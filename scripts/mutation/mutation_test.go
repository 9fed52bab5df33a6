package main

import (
	"bytes"
	"context"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parsed is a package of one file without imports.
func parsed(t *testing.T, source string) *packageSource {
	t.Helper()
	p := &packageSource{dir: "x", path: "x", set: token.NewFileSet(), importer: importer.Default(), goVer: "go1.26"}
	syntax, err := parser.ParseFile(p.set, "x/x.go", source, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	p.files = []*fileSource{{path: "x/x.go", source: []byte(source), syntax: syntax}}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	require.NoError(t, p.check(p.info, nil))
	return p
}

// changes lists the mutants of statements inside a function as "operator: added lines".
func changes(t *testing.T, results, body string) []string {
	t.Helper()
	p := parsed(t, "package x\n\nfunc f(a, b int, c, d bool, s []int) "+results+" {\n"+body+"\n}\n")
	var out []string
	for _, m := range p.mutants() {
		require.Equal(t, "f", m.function)
		if p.compiles(m) {
			_, added := m.diff()
			out = append(out, m.operator+": "+strings.Join(added, " ; "))
		}
	}
	return out
}

func TestOperators(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		results, body string
		want          []string
	}{
		{"bool", "return a < b", []string{
			"negate a result: return !(a < b)", "comparison: return a <= b", "comparison: return a >= b",
		}},
		{"bool", "return a == b", []string{"comparison: return a != b"}},
		{"bool", "return c && !d", []string{
			"negate a result: return !(c && !d)", "logical operator: return c || !d", "remove a negation: return c && d",
		}},
		{"bool", "return c || d && c", []string{
			"negate a result: return !(c || d && c)", "logical operator: return c && d && c", "logical operator: return c || (d || c)",
		}},
		{"int", "return a + 2", []string{
			"return zero: return 0", "arithmetic: return a - 2", "increase an integer: return a + 3", "decrease an integer: return a + 1",
		}},
		{"int", "return len(s) / 0x10", []string{
			"return zero: return 0", "arithmetic: return len(s) * 0x10", "increase an integer: return len(s) / 17",
			"decrease an integer: return len(s) / 15",
		}},
		{"(string, error)", `return "a", nil`, []string{`return an empty text: return "", nil`}},
		{"[]int", "return s", []string{"return nil: return nil"}},
		{"[2]int", "x := [2]int{a}\n_ = x\nreturn x", []string{"return the zero value: return *new([2]int)"}},
		{"", "a++\n_ = a", []string{"skip a statement: if false { a++ }", "arithmetic: a--"}},
		{"", "a += b", []string{"skip a statement: if false { a += b }", "arithmetic: a -= b"}},
		{"", "x := a\n_ = x", nil},
		{"", `panic("no")`, nil},
		{"", "s = append(s, b)", []string{"skip a statement: if false { s = append(s, b) }"}},
		{"", "if c {\nprintln(a)\n} else {\nprintln(b)\n}", []string{
			"skip the body of an if: if false && (c) {", "skip the else: if true || (c) {",
			"skip a statement: if false { println(a) }", "skip a statement: if false { println(b) }",
		}},
		{"", "if a := b; a == 0 {\nreturn\n}", []string{
			"skip the body of an if: if a := b; false && (a == 0) {", "comparison: if a := b; a != 0 {",
			"increase an integer: if a := b; a == 1 {", "decrease an integer: if a := b; a == -1 {",
		}},
		{"", "if len(s) == 0 {\nreturn\n}", []string{
			"skip the body of an if: if false && (len(s) == 0) {", "comparison: if len(s) != 0 {", "increase an integer: if len(s) == 1 {",
		}},
		{"", "for range s {\nif c {\nbreak\n}\ncontinue\n}", []string{
			"skip a statement: if false { for range s { ; if c { ; break ; } ; continue ; } }", "skip the body of an if: if false && (c) {",
			"continue instead of break: continue", "break instead of continue: break",
		}},
		{"", "for a < b {\nprintln(a)\n}", []string{
			"skip a loop: for false && (a < b) {", "comparison: for a <= b {", "comparison: for a >= b {",
			"skip a statement: if false { println(a) }",
		}},
		{"", "switch {\ncase c:\nprintln(a)\ncase d:\n}", []string{
			"skip a case: case false && (c):", "skip a statement: if false { println(a) }", "skip a case: case false && (d):",
		}},
		{"int", "switch a {\ncase 1, 2:\nreturn 3\n}\nreturn 0", []string{
			"decrease an integer: case 0, 2:", "increase an integer: case 1, 3:",
			"skip a case: if false { return 3 }", "return zero: return 0", "increase an integer: return 4", "decrease an integer: return 2",
			"increase an integer: return 1", "decrease an integer: return -1",
		}},
		{"", "_, _ = make([]int, a, b+1), make(map[int]int, a+1)", nil},
		{"", "defer println(a)", []string{"skip a statement: if false { defer println(a) }"}},
	} {
		require.ElementsMatch(t, c.want, changes(t, c.results, c.body), c.body)
	}
}

func TestWhatIsLeftAlone(t *testing.T) {
	t.Parallel()
	const source = `// Package x is a test.
package x

const limit = 3

type t struct{ n int }

func (t t) String() string { return string(rune('a' + t.n*2)) }

func (t *t) add(n int) { t.n += n }

var table = []int{0}
`
	var got []string
	for _, m := range parsed(t, source).mutants() {
		got = append(got, m.function+" "+m.operator)
	}
	require.Equal(t, []string{
		" increase an integer", " decrease an integer", "(*t).add skip a statement", "(*t).add arithmetic",
		" increase an integer", " decrease an integer",
	}, got)
	require.Empty(t, parsed(t, "// Code generated by a test. DO NOT EDIT.\n\n"+source).mutants())
}

func TestSamplesAreSpreadAndRepeatable(t *testing.T) {
	t.Parallel()
	var all []*mutant
	for i := range 100 {
		all = append(all, &mutant{start: i})
	}
	odd := func(m *mutant) bool { return m.start%2 == 1 }
	got := sample(all, 10, 7, odd)
	require.Len(t, got, 10)
	for i, m := range got {
		require.Equal(t, i, m.start/10)
		require.True(t, odd(m))
	}
	require.Equal(t, got, sample(all, 10, 7, odd))
	require.NotEqual(t, got, sample(all, 10, 8, odd))
	require.Len(t, sample(all, 1000, 7, odd), 50)
	require.ElementsMatch(t, all, shuffled(all, 7))
	require.NotEqual(t, all, shuffled(all, 7))
}

func TestEquivalentMutants(t *testing.T) {
	t.Parallel()
	p := parsed(t, "package x\n\nfunc f(a int) bool {\n\treturn a < 1\n}\n")
	known, err := parseEquivalents("# comment\n\nx/x.go f\n- return a < 1\n+ return a <= 1\n= a is never\n= one\n\nx/x.go g\n- a\n+ b\n= c\n")
	require.NoError(t, err)
	require.Len(t, known, 2)
	require.Equal(t, "a is never one", known[0].reason)
	require.Equal(t, 3, known[0].line)
	var matched []string
	for _, m := range p.mutants() {
		if m.matches(known[0]) {
			_, added := m.diff()
			matched = append(matched, added...)
		}
		require.False(t, m.matches(known[1]))
	}
	require.Equal(t, []string{"return a <= 1"}, matched)
	for _, text := range []string{"x/x.go f\n- a\n= c", "x/x.go f\n+ a\n= c", "x/x.go f\n- a\n+ b", "x/x.go f\n- a\n+ b\n= c\nwhat"} {
		_, err := parseEquivalents(text)
		require.Error(t, err, text)
	}
	// Lines of code may begin with the signs themselves.
	known, err = parseEquivalents("x/x.go f\n- -a\n+ +a\n= c")
	require.NoError(t, err)
	require.Equal(t, []string{"-a"}, known[0].removed)
	require.Equal(t, []string{"+a"}, known[0].added)
}

// TestOnAModule runs the whole program on a small module: it kills, finds survivors and lines without tests, stops a loop, reports
// entries of the list that match nothing, and leaves the module as it was.
func TestOnAModule(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module several times")
	}
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	const source = "package p\n\nfunc Big(a int) bool { return a > 5 }\n\nfunc Untested(a int) int { return -a }\n\n" +
		"func Sum(n int) (s int) {\n\tfor n > 0 {\n\t\ts += n\n\t\tn--\n\t}\n\treturn s\n}\n"
	write("go.mod", "module example.test/m\n\ngo 1.26\n")
	write("p/p.go", source)
	write("p/p_test.go", "package p\n\nimport \"testing\"\n\n"+
		"func Test(t *testing.T) {\n\tif !Big(9) || Big(2) || Sum(3) != 6 {\n\t\tt.Fatal()\n\t}\n}\n")
	write("known.txt", "p/p.go Gone\n- a\n+ b\n= it was there once\n\np/p.go Sum\n- for n > 0 {\n+ for n >= 0 {\n= adds zero\n")
	t.Chdir(dir)
	var out bytes.Buffer
	err := run(context.Background(), &out, []string{"-all", "-only", "p.go:(3|5|10) ", "-equivalent", "known.txt", "p"})
	require.ErrorContains(t, err, "known.txt:1 matches no mutant")
	require.ErrorContains(t, err, "below 85 %")
	text := out.String()
	require.Contains(t, text, "survived p/p.go:3 Big: comparison\n"+
		"    - func Big(a int) bool { return a > 5 }\n    + func Big(a int) bool { return a >= 5 }\n")
	require.Contains(t, text, "survived (no test runs this line) p/p.go:5 Untested: return zero")
	require.NotContains(t, text, "p/p.go:10", "what never ends is killed")
	require.NotContains(t, text, "Sum: comparison")
	left, err := os.ReadFile("p/p.go")
	require.NoError(t, err)
	require.Equal(t, source, string(left))
}
