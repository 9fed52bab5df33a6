// Package berth_test holds the architecture: every package with its duty, which package may import which, and the budgets of
// packages, files and lines. It parses the sources itself, because the go command caches the result of a test that calls it
// although the sources changed.
package berth_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	module          = "berth.dev/berth/"
	maxPackageLines = 6000
	maxFileLines    = 800
	// maxColumns counts characters; a tab is one.
	maxColumns = 140
)

// rule is one package: what it is for and what it may import of this module. A package may also import what lies below it.
type rule struct {
	dir   string
	duty  string
	allow []string // directories; each includes everything below it
	// stdOnly forbids third-party modules.
	stdOnly bool
	// pure forbids, on top of stdOnly, everything that reaches outside or differs from run to run.
	pure bool
	// testOnly packages may be imported by tests and other testOnly packages alone.
	testOnly bool
}

// thirdPartyExceptions are modules that a stdOnly directory may use all the same.
var thirdPartyExceptions = map[string][]string{
	"api":        {"github.com/coder/websocket"},
	"api/follow": {"github.com/coder/websocket"},
	// What PID 1 of every container carries: the SSH server and the web terminal.
	"internal/runner": {"golang.org/x/sys", "golang.org/x/crypto", "github.com/pkg/sftp", "github.com/coder/websocket"},
}

// cgoModules need cgo, and the directories are the only ones that may use them, in files for builds with cgo alone. Everything else
// stays static.
var cgoModules = map[string]string{"github.com/NVIDIA/go-nvml": "internal/nvmlhelper"}

// impure are the standard packages that a pure package must not see.
var impure = []string{"net", "os", "io/ioutil", "database", "math/rand", "crypto/rand", "syscall", "log", "plugin", "net/http"}

// impureCalls are functions of allowed packages that a pure package must not call.
var impureCalls = []string{"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.Tick", "time.NewTimer",
	"time.NewTicker", "time.Sleep"}

// forbiddenNames say nothing about what is inside.
var forbiddenNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "base", "shared"}

// source is one parsed file.
type source struct {
	path      string // slash-separated, relative to the module
	dir       string
	test      bool
	generated bool
	text      []byte
	file      *ast.File
}

func (s source) lines() int { return bytes.Count(s.text, []byte("\n")) }

func (s source) testSide() bool { return s.test || ruleOf(s.dir).testOnly }

// ruleOf returns the rule of a package; its dir is "" when there is none.
func ruleOf(dir string) rule {
	for _, r := range rules {
		if r.dir == dir {
			return r
		}
	}
	return rule{}
}

// exceptions returns the modules that a stdOnly package may use.
func exceptions(dir string) []string {
	var out []string
	for parent, modules := range thirdPartyExceptions {
		if below(dir, parent) {
			out = append(out, modules...)
		}
	}
	return out
}

// below reports whether dir is parent or lies inside it; "." is only itself.
func below(dir, parent string) bool {
	return dir == parent || parent != "." && strings.HasPrefix(dir, parent+"/")
}

func parseAll(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	set := token.NewFileSet()
	var out []source
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if name != "." && (strings.HasPrefix(base, ".") || slices.Contains([]string{"testdata", "node_modules", "vendor", "bin"}, base)) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		slash := filepath.ToSlash(name)
		out = append(out, source{
			path: slash, dir: path.Dir(slash), test: strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(f), text: text, file: f,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return set, out
}

func imports(s source) []string {
	var out []string
	for _, i := range s.file.Imports {
		out = append(out, strings.Trim(i.Path.Value, `"`))
	}
	return out
}

func TestArchitecture(t *testing.T) {
	t.Parallel()
	set, sources := parseAll(t)
	var offences []string
	offend := func(where, format string, args ...any) {
		offences = append(offences, where+": "+fmt.Sprintf(format, args...))
	}
	lines, documented := map[string]int{}, map[string]bool{}
	for _, s := range sources {
		documented[s.dir] = documented[s.dir] || hasPackageComment(s)
		r := ruleOf(s.dir)
		if r.dir == "" {
			offend(s.dir, "no rule of its own: add the package with its duty to the table in arch_rules_test.go")
			continue
		}
		if s.generated {
			continue
		}
		if !s.test {
			lines[s.dir] += s.lines()
		}
		if s.lines() > maxFileLines {
			offend(s.path, "%d lines, the budget is %d: split it by noun or verb", s.lines(), maxFileLines)
		}
		checkColumns(s, offend)
		if name := strings.TrimSuffix(s.file.Name.Name, "_test"); slices.Contains(forbiddenNames, name) {
			offend(s.path, "package %s: name it after what it is for", name)
		}
		checkImports(s, r, offend)
		checkCalls(set, s, r, offend)
	}
	for dir, n := range lines {
		if n > maxPackageLines {
			offend(dir, "%d lines, the budget of a package is %d", n, maxPackageLines)
		}
	}
	for dir, ok := range documented {
		if !ok {
			offend(dir, "no package comment: say what it is, what it is not, and who calls it")
		}
	}
	slices.Sort(offences)
	for _, o := range slices.Compact(offences) {
		t.Error(o)
	}
}

func hasPackageComment(s source) bool {
	doc := s.file.Doc
	return doc != nil && (strings.HasPrefix(doc.Text(), "Package ") || strings.HasPrefix(doc.Text(), "Command "))
}

func checkColumns(s source, offend func(string, string, ...any)) {
	n := 0
	for line := range bytes.Lines(s.text) {
		n++
		if columns := utf8.RuneCount(bytes.TrimRight(line, "\n")); columns > maxColumns {
			offend(fmt.Sprintf("%s:%d", s.path, n), "%d columns, the budget is %d: wrap the line", columns, maxColumns)
		}
	}
}

func checkImports(s source, r rule, offend func(string, string, ...any)) {
	for _, imp := range imports(s) {
		for cgo, dir := range cgoModules {
			if below(imp, cgo) && s.dir != dir {
				offend(s.path, "%s needs cgo, only %s may import it", cgo, dir)
			}
			if below(imp, cgo) && !bytes.HasPrefix(s.text, []byte("//go:build cgo\n")) {
				offend(s.path, "%s needs cgo: begin the file with //go:build cgo", cgo)
			}
		}
		own, ours := strings.CutPrefix(imp, module)
		switch {
		case ours:
			target := ruleOf(own)
			if target.testOnly && !s.testSide() {
				offend(s.path, "%s is for tests only", own)
			}
			if s.testSide() || below(own, r.dir) {
				continue // tests look from outside and may build what they need
			}
			if !slices.ContainsFunc(r.allow, func(a string) bool { return below(own, a) }) {
				offend(s.path, "%s must not import %s", r.dir, own)
			}
			if r.dir != own && strings.HasPrefix(own, "cmd/") {
				offend(s.path, "nothing imports %s", own)
			}
		case !strings.Contains(strings.SplitN(imp, "/", 2)[0], "."):
			if r.pure && !s.test && imp != "net/netip" && slices.ContainsFunc(impure, func(p string) bool { return below(imp, p) }) {
				offend(s.path, "%s is pure and must not import %s", r.dir, imp)
			}
		case (r.stdOnly || r.pure) && !s.test:
			if !slices.ContainsFunc(exceptions(r.dir), func(p string) bool { return below(imp, p) }) {
				offend(s.path, "%s uses the standard library only, not %s", r.dir, imp)
			}
		}
	}
}

func checkCalls(set *token.FileSet, s source, r rule, offend func(string, string, ...any)) {
	if s.generated || !s.test && !r.pure {
		return
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok {
			return true
		}
		call := pkg.Name + "." + sel.Sel.Name
		where := fmt.Sprintf("%s:%d", s.path, set.Position(sel.Pos()).Line)
		if s.test && call == "time.Sleep" {
			offend(where, "tests do not sleep: wait for a condition, or advance a clock")
		}
		if !s.test && r.pure && slices.Contains(impureCalls, call) {
			offend(where, "%s is pure: the time is an input, not %s", r.dir, call)
		}
		return true
	})
}

// TestRulesAreUsed keeps the table free of what nothing needs: rules without a package, and allowed imports that nobody makes.
func TestRulesAreUsed(t *testing.T) {
	t.Parallel()
	_, sources := parseAll(t)
	for i, r := range rules {
		if r.duty == "" {
			t.Errorf("%s: say in one line what the package is for", r.dir)
		}
		if slices.ContainsFunc(rules[:i], func(o rule) bool { return o.dir == r.dir }) {
			t.Errorf("%s has two rules", r.dir)
		}
		used, exists := map[string]bool{}, false
		for _, s := range sources {
			if s.dir != r.dir {
				continue
			}
			exists = true
			for _, imp := range imports(s) {
				own, ours := strings.CutPrefix(imp, module)
				for _, a := range r.allow {
					if ours && (!s.test || r.testOnly) && below(own, a) {
						used[a] = true
					}
				}
			}
		}
		if !exists {
			t.Errorf("%s: there is no such package, remove its rule", r.dir)
			continue
		}
		for _, a := range r.allow {
			if !used[a] {
				t.Errorf("%s: it does not import %s, take that out of its rule", r.dir, a)
			}
		}
	}
}
