package berth_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// asvsRequirements is how many requirements of levels 1 and 2 OWASP ASVS 5.0.0 has: 70 and 183.
const asvsRequirements = 253

var (
	// testName is a name of a test or of a fuzz target in a cell of a table, with the directory or package before it, if any.
	testName = regexp.MustCompile(`(?:([a-z][\w/-]*)[./])?\b((?:Test|Fuzz)[A-Z]\w*)`)
	// asvsNumber is the first cell of a row: one requirement, or a range with how many requirements of levels 1 and 2 are in it.
	asvsNumber = regexp.MustCompile(`^(\d+\.\d+\.\d+)(?: to (\d+\.\d+\.\d+) \((\d+)\))?$`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(\w+ \*testing\.[TF]\)`)
	docLink    = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
)

// testsOf are the directories that have a test of a name.
func testsOf(sources []source) map[string][]string {
	out := map[string][]string{}
	for _, s := range sources {
		if !s.test {
			continue
		}
		for _, m := range testFunc.FindAllSubmatch(s.text, -1) {
			out[string(m[1])] = append(out[string(m[1])], s.dir)
		}
	}
	return out
}

// cells are the cells of the rows of all tables in a Markdown text, without the lines below heads.
func cells(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.Trim(line, "|-: ") == "" {
			continue
		}
		row := strings.Split(strings.Trim(line, "|"), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		rows = append(rows, row)
	}
	return rows
}

// missingTests says which tests are named in the tables of a text and are not there. A name stands alone, or after a directory or
// the end of one: agent.TestX and link/agent/TestX are tests of internal/manager/link/agent.
func missingTests(text string, tests map[string][]string) (wrong []string) {
	for _, row := range cells(text) {
		for _, m := range testName.FindAllStringSubmatch(strings.Join(row, " | "), -1) {
			in := tests[m[2]]
			if m[1] != "" {
				in = slices.DeleteFunc(slices.Clone(in), func(dir string) bool { return !strings.HasSuffix("/"+dir, "/"+m[1]) })
			}
			if len(in) == 0 {
				wrong = append(wrong, fmt.Sprintf("%s: there is no such test", m[0]))
			}
		}
	}
	return wrong
}

// checkASVS says what is wrong in the table of requirements. exists tells whether a file is there that a row points to.
func checkASVS(text string, tests map[string][]string, exists func(string) bool) (wrong []string) {
	wrong = missingTests(text, tests)
	seen, counts := map[string]bool{}, map[string]int{}
	total := 0
	for _, row := range cells(text) {
		m := asvsNumber.FindStringSubmatch(row[0])
		if m == nil {
			if row[0] != "" && row[0][0] >= '0' && row[0][0] <= '9' && len(row) == 3 {
				wrong = append(wrong, fmt.Sprintf("%s: not the number of a requirement", row[0]))
			}
			continue
		}
		if len(row) != 3 {
			wrong = append(wrong, fmt.Sprintf("%s: %d cells instead of 3", row[0], len(row)))
			continue
		}
		for _, number := range m[1:3] {
			if number != "" && seen[number] {
				wrong = append(wrong, fmt.Sprintf("%s is there twice", number))
			}
			seen[number] = true
		}
		if n := len(strings.Fields(row[1])); n == 0 || n > 12 {
			wrong = append(wrong, fmt.Sprintf("%s: say in 1 to 12 words what is asked, not in %d", row[0], n))
		}
		n := 1
		if m[3] != "" {
			_, _ = fmt.Sscan(m[3], &n) // digits
		}
		total += n
		kind := "proven"
		if before, why, ok := strings.Cut(row[2], ": "); ok && slices.Contains([]string{"documented", "not applicable", "OPEN"}, before) {
			kind = strings.ToLower(before)
			if why == "" {
				wrong = append(wrong, fmt.Sprintf("%s: say why", row[0]))
			}
		}
		counts[kind] += n
		links := docLink.FindAllStringSubmatch(row[2], -1)
		switch {
		case kind == "proven" && !testName.MatchString(row[2]):
			wrong = append(wrong, fmt.Sprintf("%s: name a test, or begin with documented, not applicable or OPEN", row[0]))
		case kind == "documented" && len(links) == 0:
			wrong = append(wrong, fmt.Sprintf("%s: link the page", row[0]))
		}
		for _, l := range links {
			if !exists(l[1]) {
				wrong = append(wrong, fmt.Sprintf("%s: there is no %s", row[0], l[1]))
			}
		}
	}
	if total != asvsRequirements {
		wrong = append(wrong, fmt.Sprintf("%d requirements are listed; levels 1 and 2 have %d", total, asvsRequirements))
	}
	want := fmt.Sprintf("Of %d requirements %d are proven, %d documented, %d not applicable and %d open.", total, counts["proven"],
		counts["documented"], counts["not applicable"], counts["open"])
	if !strings.Contains(text, want) {
		wrong = append(wrong, "the count at the top is stale; it has to be:\n"+want)
	}
	return wrong
}

// TestASVS keeps docs/asvs.md and the tables of docs/security.md and docs/tenancy-promises.md true: what they name is there, and the count
// is that of the rows.
// That a test proves what its row says only a reader can tell.
func TestASVS(t *testing.T) {
	t.Parallel()
	_, sources := parseAll(t)
	tests := testsOf(sources)
	page := func(name string) string {
		text, err := os.ReadFile(filepath.Join("docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join("docs", filepath.FromSlash(name)))
		return err == nil
	}
	for _, w := range checkASVS(page("asvs.md"), tests, exists) {
		t.Errorf("docs/asvs.md: %s", w)
	}
	for _, name := range []string{"security.md", "tenancy-promises.md"} {
		for _, w := range missingTests(page(name), tests) {
			t.Errorf("docs/%s: %s", name, w)
		}
	}
}

func TestASVSChecker(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{"TestA": {"internal/x/agent"}, "TestB": {"e2e", "internal/y"}, "FuzzC": {"internal/x"}}
	for text, want := range map[string]string{
		"| attack | `TestA`, e2e/TestB, `agent.TestA`, x/agent.TestA, `x.FuzzC` | no Testimony, Test, aTestA |": "",
		"prose about TestNobody":    "",
		"| `TestNobody` |":          "TestNobody: there is no such test",
		"| y.TestA |":               "y.TestA: there is no such test",
		"| nt.TestA |":              "nt.TestA: there is no such test",
		"|---|\n| internal/TestB |": "internal/TestB: there is no such test",
	} {
		if got := strings.Join(missingTests(text, tests), "\n"); got != want {
			t.Errorf("%s\n got %q\nwant %q", text, got, want)
		}
	}
	const good = "Of 253 requirements 1 are proven, 1 documented, 250 not applicable and 1 open.\n" +
		"| number | asks | answer |\n|---|---|---|\n| 1.1.1 | one thing | `TestA` |\n| 1.1.2 | a page | documented: [here](here.md#part) |\n" +
		"| 1.2.1 | more | OPEN: no `TestB` looks |\n| 2.1.1 to 2.9.9 (250) | much | not applicable: there is none |\n"
	exists := func(name string) bool { return name == "here.md" }
	for change, want := range map[[2]string]string{
		{"", ""}:                                   "",
		{"1.1.2", "1.1.1"}:                         "1.1.1 is there twice",
		{"2.9.9", "1.1.1"}:                         "1.1.1 is there twice",
		{"1.1.1 |", "1.1 |"}:                       "1.1: not the number of a requirement",
		{"`TestA`", "`TestNobody`"}:                "TestNobody: there is no such test",
		{"`TestA`", "of course"}:                   "1.1.1: name a test",
		{"`TestA`", "`TestA` | x"}:                 "1.1.1: 4 cells instead of 3",
		{"[here](here.md#part)", "x"}:              "1.1.2: link the page",
		{"here.md", "there.md"}:                    "1.1.2: there is no there.md",
		{"(250)", "(249)"}:                         "252 requirements are listed",
		{"1 are proven", "2 are proven"}:           "the count at the top is stale",
		{"one thing", strings.Repeat("word ", 13)}: "1.1.1: say in 1 to 12 words",
	} {
		got := strings.Join(checkASVS(strings.Replace(good, change[0], change[1], 1), tests, exists), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q instead of %q: got %q, want %q", change[1], change[0], got, want)
		}
	}
}

// TestFuzzTargetsAreListed: docs/security.md names every fuzz target.
func TestFuzzTargetsAreListed(t *testing.T) {
	t.Parallel()
	_, sources := parseAll(t)
	text, err := os.ReadFile(filepath.Join("docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, dirs := range testsOf(sources) {
		if !strings.HasPrefix(name, "Fuzz") {
			continue
		}
		for _, dir := range dirs {
			if !strings.Contains(string(text), path.Base(dir)+"."+name+"`") {
				t.Errorf("docs/security.md does not list %s of %s", name, dir)
			}
		}
	}
}

// forbiddenImports are packages that a rule of ASVS is about, and the files that may use them nevertheless, each for a reason.
var forbiddenImports = map[string][]string{
	// Old hash functions and ciphers. The one file compares checksums that clients of the tus protocol ask for.
	"crypto/md5": {"internal/storage/transfer/tusheader.go"}, "crypto/sha1": {"internal/storage/transfer/tusheader.go"},
	"crypto/des": nil, "crypto/rc4": nil, "crypto/dsa": nil,
	"crypto/rsa": {"internal/manager/link/ca/authority.go"}, // measures keys of others
	// Numbers that can be guessed: pauses and places in queues.
	"math/rand": nil, "math/rand/v2": {"api/transfer/transfer.go", "internal/agent/link", "internal/appproxy/appproxy.go",
		"internal/manager/link/agent/door.go", "internal/manager/store/tx.go", "internal/scheduler/sim"},
	// Other programs. Each file starts one by its arguments, without a shell; the runner is inside the container.
	"os/exec": {"internal/agent/device/cdi/command.go", "internal/agent/device/cuda/mps/program.go",
		"internal/agent/device/cuda/nvmlclient", "internal/agent/loopdisk", "internal/cli/frame/program.go", "internal/embedded",
		"internal/platform/detach.go"},
	// Memory that the compiler does not guard: system calls, and what protoc generates.
	"C": nil, "unsafe": {"internal/appproxy/forward/call.go", "internal/runner/fence.go", "internal/runner/proc",
		"internal/storage/volume/tree/dir.go", "internal/storage/volume/xfs/quota.go", "internal/wire/node/node.pb.go"},
	// Decoding that makes more than plain values, text that is not escaped, code that is loaded, insides that are shown.
	"encoding/gob": nil, "encoding/xml": nil, "text/template": nil, "plugin": nil, "net/http/pprof": nil, "expvar": nil,
}

// cryptography is in the paths of modules that have some.
var cryptography = regexp.MustCompile(`crypto|cipher|jose|jwt|argon|bcrypt|nacl|tls`)

// TestASVSImports: the sources of the product use no package that a requirement forbids, and cryptography comes from the standard
// library, golang.org/x/crypto and golang-jwt alone.
func TestASVSImports(t *testing.T) {
	t.Parallel()
	_, sources := parseAll(t)
	used := map[string]bool{}
	for _, s := range sources {
		if !ofProduct(s) {
			continue
		}
		for _, imp := range imports(s) {
			allowed, named := forbiddenImports[imp]
			i := slices.IndexFunc(allowed, func(a string) bool { return s.path == a || below(s.dir, a) })
			if i >= 0 {
				used[imp+" in "+allowed[i]] = true
			}
			if named && i < 0 {
				t.Errorf("%s imports %s", s.path, imp)
			}
			first, _, _ := strings.Cut(imp, "/")
			ours := strings.HasPrefix(imp, module) || strings.HasPrefix(imp, "golang.org/x/crypto/") ||
				strings.HasPrefix(imp, "github.com/golang-jwt/jwt/")
			if strings.Contains(first, ".") && !ours && cryptography.MatchString(imp) {
				t.Errorf("%s takes cryptography from %s", s.path, imp)
			}
		}
	}
	for imp, allowed := range forbiddenImports {
		for _, a := range allowed {
			if !used[imp+" in "+a] {
				t.Errorf("%s does not import %s, take it out of the list", a, imp)
			}
		}
	}
}

// ofProduct reports whether a source is part of what runs in production.
func ofProduct(s source) bool {
	for _, dir := range []string{"e2e", "bench", "scripts", "testservers"} {
		if below(s.dir, dir) {
			return false
		}
	}
	return !s.testSide()
}

// obfuscation are sources that read what clients of the wire encode under keys that everybody can compute: it protects nothing, and
// nobody takes it for protection. TLS does that.
var obfuscation = map[string]string{"NewCBCDecrypter": "internal/webserver/payload"}

// TestASVSCiphers: nothing is encrypted without being authenticated, and RSA has no paddings of the past.
func TestASVSCiphers(t *testing.T) {
	t.Parallel()
	set, sources := parseAll(t)
	gcm := 0
	for _, s := range sources {
		if !ofProduct(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if isSelector(sel, "cipher", "NewGCM") {
				gcm++
			}
			for _, name := range []string{"NewCTR", "NewCBCEncrypter", "NewCBCDecrypter", "NewCFBEncrypter", "NewCFBDecrypter", "NewOFB"} {
				if isSelector(sel, "cipher", name) && obfuscation[name] != s.dir {
					t.Errorf("%s: cipher.%s does not authenticate", set.Position(sel.Pos()), name)
				}
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "rsa" && strings.Contains(sel.Sel.Name, "PKCS1v15") {
				t.Errorf("%s: rsa.%s is weak", set.Position(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
	if gcm == 0 {
		t.Error("nothing is sealed with GCM, so this test looks at the wrong sources")
	}
}

// TestASVSTLS: no configuration of TLS allows versions before 1.2 or chooses its ciphers, and one that does without the standard check
// of certificates has a check of its own.
func TestASVSTLS(t *testing.T) {
	t.Parallel()
	set, sources := parseAll(t)
	found := 0
	for _, s := range sources {
		if !ofProduct(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || !isSelector(lit.Type, "tls", "Config") {
				return true
			}
			found++
			fields := fieldsOf(lit)
			at := set.Position(lit.Pos())
			if v, ok := fields["MinVersion"]; ok && !isSelector(v, "tls", "VersionTLS12") && !isSelector(v, "tls", "VersionTLS13") {
				t.Errorf("%s: MinVersion is not TLS 1.2 or 1.3", at)
			}
			for _, name := range []string{"MaxVersion", "CipherSuites", "CurvePreferences", "Renegotiation"} {
				if fields[name] != nil {
					t.Errorf("%s: %s is left to the standard library", at, name)
				}
			}
			if fields["InsecureSkipVerify"] != nil && fields["VerifyConnection"] == nil && fields["VerifyPeerCertificate"] == nil {
				t.Errorf("%s: nothing checks the certificate", at)
			}
			return true
		})
		checkTLSFields(t, set, s)
	}
	if found < 10 {
		t.Errorf("only %d configurations of TLS were found", found)
	}
}

// checkTLSFields looks at fields of a configuration that are set later.
func checkTLSFields(t *testing.T, set *token.FileSet, s source) {
	t.Helper()
	ast.Inspect(s.file, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok {
			return true
		}
		for _, left := range assign.Lhs {
			sel, ok := left.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"MinVersion", "MaxVersion", "CipherSuites", "InsecureSkipVerify"}, sel.Sel.Name) {
				t.Errorf("%s: set %s where the configuration is made", set.Position(sel.Pos()), sel.Sel.Name)
			}
		}
		return true
	})
}

// TestASVSRedirects: no client of the product follows a redirect. Where an answer leads is not for the server that was asked to choose,
// and credentials would travel along.
func TestASVSRedirects(t *testing.T) {
	t.Parallel()
	set, sources := parseAll(t)
	found := 0
	for _, s := range sources {
		if !ofProduct(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				for _, name := range []string{"DefaultClient", "Get", "Head", "Post", "PostForm"} {
					if isSelector(n, "http", name) {
						t.Errorf("%s: http.%s follows redirects", set.Position(n.Pos()), name)
					}
				}
			case *ast.ValueSpec:
				if n.Type != nil && isSelector(n.Type, "http", "Client") {
					t.Errorf("%s: write the client with its CheckRedirect", set.Position(n.Pos()))
				}
			case *ast.CompositeLit:
				switch {
				case isSelector(n.Type, "http", "Client"):
					found++
					if !staysPut(fieldsOf(n)["CheckRedirect"]) {
						t.Errorf("%s: this client follows redirects", set.Position(n.Pos()))
					}
				case isSelector(n.Type, "acme", "Client") && fieldsOf(n)["HTTPClient"] == nil:
					t.Errorf("%s: without a client of ours it follows redirects", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if found < 5 {
		t.Errorf("only %d clients were found", found)
	}
}

// staysPut reports whether a CheckRedirect returns http.ErrUseLastResponse, or is the one of the engine's library, which does for
// requests that may be sent again and refuses the others.
func staysPut(e ast.Expr) bool {
	if e != nil && isSelector(e, "client", "CheckRedirect") {
		return true
	}
	f, ok := e.(*ast.FuncLit)
	if !ok || len(f.Body.List) != 1 {
		return false
	}
	r, ok := f.Body.List[0].(*ast.ReturnStmt)
	return ok && len(r.Results) == 1 && isSelector(r.Results[0], "http", "ErrUseLastResponse")
}

func fieldsOf(lit *ast.CompositeLit) map[string]ast.Expr {
	fields := map[string]ast.Expr{}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if k, ok := kv.Key.(*ast.Ident); ok {
				fields[k.Name] = kv.Value
			}
		}
	}
	return fields
}

// loggers are the functions that begin a log or choose where one goes, and the files of the product that may call them. docs/logs.md
// tells about each of these files.
var loggers = map[[2]string][]string{
	{"slog", "NewTextHandler"}: {"internal/chassis/log.go", "internal/runner/runner.go"},
	{"slog", "NewJSONHandler"}: {"internal/chassis/log.go"},
	{"chassis", "NewLogger"}:   {"internal/platform/settings.go"},
	{"chassis", "OpenLogFile"}: {"internal/platform/detach.go"},
	{"slog", "SetDefault"}:     nil,
	{"slog", "Default"}:        nil,
	{"syslog", "New"}:          nil,
	{"syslog", "Dial"}:         nil,
	{"log", "Print"}:           nil,
	{"log", "Printf"}:          nil,
	{"log", "Println"}:         nil,
}

// TestASVSLogs: logs begin in the files alone that docs/logs.md tells about.
func TestASVSLogs(t *testing.T) {
	t.Parallel()
	set, sources := parseAll(t)
	page, err := os.ReadFile(filepath.Join("docs", "logs.md"))
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, s := range sources {
		if !ofProduct(s) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			for f, allowed := range loggers {
				if !isSelector(sel, f[0], f[1]) {
					continue
				}
				if used[s.path] = true; !slices.Contains(allowed, s.path) {
					t.Errorf("%s: %s.%s begins a log of its own", set.Position(sel.Pos()), f[0], f[1])
				}
			}
			return true
		})
	}
	for f, allowed := range loggers {
		for _, a := range allowed {
			if !used[a] {
				t.Errorf("%s does not call %s.%s, take it out of the list", a, f[0], f[1])
			}
			if !strings.Contains(string(page), "`"+a+"`") {
				t.Errorf("docs/logs.md does not tell about %s", a)
			}
		}
	}
}

func isSelector(e ast.Expr, pkg, name string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == path.Base(pkg)
}
