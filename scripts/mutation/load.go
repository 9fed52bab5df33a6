package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
)

// packageSource is a parsed and type-checked package, without its tests.
type packageSource struct {
	dir      string // relative to the module
	root     string // the module's directory
	path     string // import path
	files    []*fileSource
	set      *token.FileSet
	info     *types.Info
	importer types.Importer
	goVer    string
}

type fileSource struct {
	path   string // relative to the module, slash-separated
	source []byte
	syntax *ast.File
}

// listed is what the go command says of a package.
type listed struct {
	ImportPath string
	Dir        string
	Export     string
	GoFiles    []string
	Module     *struct{ Dir, GoVersion string }
}

// load parses the package in a directory and checks its types against the compiled packages that it imports.
func load(ctx context.Context, dir string) (*packageSource, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Module",
		"os", "strconv", "./"+filepath.ToSlash(dir)) // what a batch imports, and the package
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w: %s", dir, err, stderr.Bytes())
	}
	exports := map[string]string{}
	var last listed
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		exports[l.ImportPath] = l.Export
		if l.Module != nil {
			last = l // dependencies come first
		}
	}
	if last.Module == nil {
		return nil, fmt.Errorf("%s is in no module", dir)
	}
	p := &packageSource{dir: filepath.ToSlash(dir), root: last.Module.Dir, path: last.ImportPath, set: token.NewFileSet()}
	p.goVer = "go" + last.Module.GoVersion
	p.importer = importer.ForCompiler(p.set, "gc", func(path string) (io.ReadCloser, error) {
		name := exports[path]
		if name == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(name)
	})
	for _, name := range last.GoFiles {
		full := filepath.Join(last.Dir, name)
		source, err := os.ReadFile(full)
		if err != nil {
			return nil, err
		}
		syntax, err := parser.ParseFile(p.set, full, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, &fileSource{path: path.Join(p.dir, name), source: source, syntax: syntax})
	}
	p.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	if err := p.check(p.info, nil); err != nil {
		return nil, err
	}
	return p, nil
}

// owns reports whether a file lies in the package.
func (p *packageSource) owns(file string) bool { return path.Dir(file) == p.dir }

// check type-checks the package, with some files replaced or added.
func (p *packageSource) check(info *types.Info, replaced map[string][]byte) error {
	var files []*ast.File
	for _, f := range p.files {
		if replaced[f.path] == nil {
			files = append(files, f.syntax)
		}
	}
	for name, source := range replaced {
		syntax, err := parser.ParseFile(p.set, name, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, syntax)
	}
	config := types.Config{Importer: p.importer, GoVersion: p.goVer}
	_, err := config.Check(p.path, p.set, files, info)
	return err
}

// compiles reports whether the compiler accepts a mutant. It saves the time of building those that it refuses.
func (p *packageSource) compiles(m *mutant) bool {
	return p.check(nil, map[string][]byte{m.file: m.apply()}) == nil
}

// sample chooses n mutants that are spread over the source: one of each of n equal parts.
func sample(all []*mutant, n int, seed uint64, valid func(*mutant) bool) []*mutant {
	random := rand.New(rand.NewPCG(seed, 0))
	var out []*mutant
	n = min(n, len(all))
	for i := range n {
		part := slices.Clone(all[i*len(all)/n : (i+1)*len(all)/n])
		random.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
		if at := slices.IndexFunc(part, valid); at >= 0 {
			out = append(out, part[at])
		}
	}
	return out
}

// shuffled is the order in which mutants run, so that those that ran before the time ended are a fair sample too.
func shuffled(all []*mutant, seed uint64) []*mutant {
	out := slices.Clone(all)
	random := rand.New(rand.NewPCG(seed, 1))
	random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
