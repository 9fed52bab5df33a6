// Package berth_test holds the architecture: which package may import which, and the budgets
// of packages and files. It parses the sources itself, because the go command caches the
// result of a test that calls it although the sources changed.
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
)

const (
	module          = "berth.dev/berth/"
	maxPackageLines = 6000
	maxFileLines    = 800
)

// rule is what the packages below one directory may import of this module. The longest
// directory that holds a package decides. A package may always import what lies below its
// own rule's directory.
type rule struct {
	dir   string
	allow []string // directories; each includes everything below it
	// stdOnly forbids third-party modules.
	stdOnly bool
	// pure forbids, on top of stdOnly, everything that reaches outside or differs from run to run.
	pure bool
	// testOnly packages may be imported by tests and other testOnly packages alone.
	testOnly bool
}

// The table. To add a package, add its line; to allow an import, think first (docs/architecture.md).
var rules = []rule{
	{dir: "internal/fault", pure: true},
	{dir: "internal/cluster", allow: []string{"internal/fault"}, pure: true},
	{dir: "internal/cluster/draw", allow: []string{"internal/cluster"}, stdOnly: true},
	{dir: "internal/alloc", allow: []string{"internal/cluster", "internal/fault"}, pure: true},
	{dir: "internal/scheduler", allow: []string{"internal/alloc", "internal/cluster", "internal/fault"}, pure: true},
	{dir: "internal/scheduler/sim", allow: []string{"internal/scheduler", "internal/alloc", "internal/cluster", "internal/fault"}},
	{dir: "internal/chassis", allow: []string{"internal/fault"}},
	{dir: "internal/embedded", allow: []string{"internal/chassis", "internal/fault"}},
	{dir: "internal/wire", allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/depspin"},

	{dir: "internal/manager", allow: []string{"internal/scheduler", "internal/alloc", "internal/chassis", "internal/cluster", "internal/fault", "internal/wire"}},
	{dir: "internal/manager/authz", allow: []string{"internal/cluster", "internal/fault"}, pure: true},
	{dir: "internal/manager/authztest", allow: []string{"internal"}, testOnly: true},
	{dir: "internal/manager/idle", allow: []string{"internal/cluster", "internal/fault"}, pure: true},
	{dir: "internal/manager/idle/snapshot", allow: []string{"internal/manager/idle", "internal/manager/store", "internal/cluster", "internal/fault"}},
	{dir: "internal/manager/seal", allow: []string{"internal/fault"}},
	{dir: "internal/manager/store", allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/manager/store/facts", allow: []string{"internal/manager/authz"}},
	{dir: "internal/manager/store/storetest", allow: []string{"internal/manager/store", "internal/embedded", "internal/chassis"}, testOnly: true},
	{dir: "internal/manager/service", allow: []string{"internal/manager/folder", "internal/manager/store", "internal/manager/authz", "internal/manager/idle", "internal/manager/seal", "internal/scheduler", "internal/alloc", "internal/cluster", "internal/fault"}},
	{dir: "internal/manager/folder", allow: []string{"internal/manager/service/minilang", "internal/manager/store", "internal/manager/authz", "internal/manager/seal", "internal/wire/storage", "internal/cluster", "internal/fault"}},
	{dir: "internal/manager/app", allow: []string{"internal/manager/service", "internal/manager/store", "internal/manager/authz", "internal/manager/seal", "internal/wire/proxy", "internal/wire/run", "internal/wire/tunnel", "internal/cluster", "internal/fault"}},
	{dir: "internal/manager/link/proxy", allow: []string{"internal/manager/app", "internal/manager/link/h2", "internal/wire", "internal/cluster", "internal/fault", "internal/chassis"}},
	{dir: "internal/manager/link/storage", allow: []string{"internal/manager/link/announce", "internal/wire/storage", "internal/cluster", "internal/fault", "internal/chassis"}},
	{dir: "internal/manager/link/h2"},
	{dir: "internal/manager/link/announce", allow: []string{"internal/chassis"}},
	{dir: "internal/manager/link/ca", allow: []string{"internal/wire/node", "internal/wire/proxy", "internal/cluster", "internal/fault", "internal/chassis"}},
	{dir: "internal/manager/link/agent", allow: []string{"internal/manager/link/ca", "internal/manager/link/h2", "internal/wire", "internal/cluster", "internal/fault", "internal/chassis"}},
	{dir: "internal/manager/link/peer", allow: []string{"internal/manager/link/agent", "internal/manager/link/announce", "internal/manager/link/h2", "internal/wire/node", "internal/wire/run", "internal/cluster", "internal/fault", "internal/chassis"}},
	{dir: "internal/manager/reconcile", allow: []string{"internal/manager/folder", "internal/manager/store", "internal/manager/idle", "internal/manager/service", "internal/manager/link/agent", "internal/manager/seal", "internal/scheduler", "internal/alloc", "internal/cluster", "internal/fault", "internal/chassis"}},
	{dir: "internal/manager/httpapi", allow: []string{"api", "internal/manager/authz", "internal/manager/service", "internal/manager/app", "internal/manager/folder", "internal/manager/seal", "internal/cluster", "internal/fault", "internal/wire/run", "internal/wire/tunnel"}},
	{dir: "internal/manager/graphapi", allow: []string{"api", "internal/manager/service", "internal/manager/folder", "internal/manager/seal", "internal/cluster", "internal/fault", "internal/wire/tunnel"}},

	{dir: "internal/agent", allow: []string{"internal/membership", "internal/alloc", "internal/chassis", "internal/cluster", "internal/fault", "internal/wire"}},
	{dir: "internal/agent/runtime", allow: []string{"internal/alloc", "internal/cluster", "internal/fault", "internal/wire/run", "internal/wire/tunnel"}},
	{dir: "internal/agent/runtime/conformance", allow: []string{"internal/agent/runtime", "internal/cluster", "internal/fault"}, testOnly: true},
	{dir: "internal/agent/runtime/testimage", allow: []string{"internal/agent/runtime"}, testOnly: true},
	{dir: "internal/agent/device", allow: []string{"internal/alloc", "internal/cluster", "internal/fault"}},

	{dir: "internal/storage", allow: []string{"internal/chassis", "internal/cluster", "internal/fault", "internal/wire/storage"}},
	{dir: "internal/storage/volume", allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "internal/storage/volume/conformance", allow: []string{"internal/storage/volume", "internal/cluster", "internal/fault"}, testOnly: true},
	{dir: "internal/storage/transfer", allow: []string{"internal/chassis", "internal/storage/volume", "internal/cluster", "internal/fault"}},
	{dir: "internal/storage/task", allow: []string{"internal/storage/volume", "internal/cluster", "internal/fault", "internal/wire/storage"}},
	{dir: "internal/membership", allow: []string{"internal/wire", "internal/chassis", "internal/cluster", "internal/fault"}},
	{dir: "internal/membership/membershiptest", allow: []string{"internal/membership", "internal/manager/link/agent", "internal/chassis"}, testOnly: true},
	{dir: "internal/appproxy", allow: []string{"internal/membership", "internal/chassis", "internal/cluster", "internal/fault", "internal/wire"}},
	{dir: "internal/appproxy/circuit", allow: []string{"internal/cluster", "internal/fault", "internal/wire/proxy"}},
	{dir: "internal/agent/mount", allow: []string{"internal/cluster", "internal/fault"}},

	{dir: "internal/runner", allow: []string{"internal/wire/run", "internal/wire/tunnel", "internal/fault"}, stdOnly: true},
	{dir: "internal/runnerbin", allow: []string{"internal/fault"}},
	{dir: "internal/cli", allow: []string{"api"}},
	{dir: "internal/cli/frame", allow: []string{"api"}},
	{dir: "internal/cli/folder", allow: []string{"api", "internal/cli/frame"}},
	{dir: "internal/cli/app", allow: []string{"api", "internal/cli/frame"}},
	{dir: "internal/cli/ssh", allow: []string{"api", "internal/cli/frame", "internal/cli/app"}},
	{dir: "internal/cli/console", allow: []string{"api", "internal/cli/frame"}},
	{dir: "internal/testkit", allow: []string{"api", "internal", "cmd"}, testOnly: true},

	{dir: "api", stdOnly: true},
	{dir: "api/transfer", allow: []string{"api"}, stdOnly: true},
	{dir: "cmd/berth", allow: []string{"api", "internal/manager", "internal/agent", "internal/storage", "internal/appproxy", "internal/cli", "internal/chassis", "internal/embedded", "internal/runnerbin", "internal/scheduler", "internal/cluster", "internal/fault"}},
	{dir: "cmd/berth-runner", allow: []string{"internal/runner"}, stdOnly: true},
	{dir: "scripts", allow: []string{"internal/cluster", "internal/fault"}},
	{dir: "e2e", allow: []string{"api", "internal", "cmd"}, testOnly: true},
	{dir: "bench", allow: []string{"api", "internal", "cmd"}, testOnly: true},
	{dir: ".", testOnly: true},
}

// thirdPartyExceptions are modules that a stdOnly directory may use all the same.
var thirdPartyExceptions = map[string][]string{
	"api": {"github.com/coder/websocket"},
	// What PID 1 of every container carries: the SSH server and the web terminal.
	"internal/runner": {"golang.org/x/sys", "golang.org/x/crypto", "github.com/gliderlabs/ssh", "github.com/pkg/sftp", "github.com/coder/websocket"},
}

// impure are the standard packages that a pure package must not see.
var impure = []string{"net", "os", "io/ioutil", "database", "math/rand", "crypto/rand", "syscall", "log", "plugin", "net/http"}

// impureCalls are functions of allowed packages that a pure package must not call.
var impureCalls = []string{"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.Tick", "time.NewTimer", "time.NewTicker", "time.Sleep"}

// forbiddenNames say nothing about what is inside.
var forbiddenNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "base", "shared"}

// source is one parsed file.
type source struct {
	path      string // slash-separated, relative to the module
	dir       string
	test      bool
	generated bool
	lines     int
	file      *ast.File
}

func (s source) testSide() bool { return s.test || ruleOf(s.dir).testOnly }

// ruleOf returns the rule of a directory; its dir is "" when there is none.
func ruleOf(dir string) rule {
	var best rule
	for _, r := range rules {
		if below(dir, r.dir) && len(r.dir) > len(best.dir) {
			best = r
		}
	}
	return best
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
			if base := d.Name(); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules" || base == "vendor" || base == "bin") {
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
			generated: ast.IsGenerated(f), lines: bytes.Count(text, []byte("\n")), file: f,
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
		if !s.generated && !s.test {
			lines[s.dir] += s.lines
		}
		if !s.generated && s.lines > maxFileLines {
			offend(s.path, "%d lines, the budget is %d: split it by noun or verb", s.lines, maxFileLines)
		}
		if s.generated {
			continue
		}
		if _, known := documented[s.dir]; !known {
			documented[s.dir] = false
		}
		if doc := s.file.Doc; doc != nil && (strings.HasPrefix(doc.Text(), "Package ") || strings.HasPrefix(doc.Text(), "Command ")) {
			documented[s.dir] = true
		}
		r := ruleOf(s.dir)
		if r.dir == "" {
			offend(s.path, "no rule: add %s to the table in arch_test.go", s.dir)
			continue
		}
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

func checkImports(s source, r rule, offend func(string, string, ...any)) {
	for _, imp := range imports(s) {
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
			if !slices.ContainsFunc(thirdPartyExceptions[r.dir], func(p string) bool { return below(imp, p) }) {
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

// TestRulesAreUsed keeps the table free of lines that nothing needs.
func TestRulesAreUsed(t *testing.T) {
	t.Parallel()
	_, sources := parseAll(t)
	planned := []string{"internal/depspin", "bench", "scripts", "internal/cluster/draw"}
	for i, r := range rules {
		if slices.ContainsFunc(rules[:i], func(o rule) bool { return o.dir == r.dir }) {
			t.Errorf("%s has two rules", r.dir)
		}
		if !slices.Contains(planned, r.dir) && !slices.ContainsFunc(sources, func(s source) bool { return below(s.dir, r.dir) }) {
			t.Logf("%s: no package uses this rule", r.dir)
		}
	}
}
