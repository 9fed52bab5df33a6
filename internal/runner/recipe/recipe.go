// Package recipe says, as data, how code of a language is compiled and run: recipes.json holds
// one recipe per runtime type. Finding tools in the image and choosing steps is here;
// starting processes is the runner's.
package recipe

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed recipes.json
var table []byte

// Recipe is one language.
type Recipe struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases"`
	Tools   []string `json:"tools"` // the first one found is {tool}
	Query   Query    `json:"query"`
	Clean   []Step   `json:"clean"`
	Build   []Step   `json:"build"`
	Exec    []Step   `json:"exec"`
}

// Query is how a cell is run: its text is written to File ({src}), built into {out} when Build
// is not empty, and run. Nothing is kept between cells.
type Query struct {
	File  string   `json:"file"`
	Build []string `json:"build"`
	Run   []string `json:"run"`
}

// Step is one way to do what "*" asks for; the first whose conditions hold is taken.
type Step struct {
	When []string `json:"when"` // all of these files exist
	Glob string   `json:"glob"` // some file matches; {files} are all of them
	Only string   `json:"only"` // exactly one file matches, or was uploaded last; {only} is that one
	Argv []string `json:"argv"`
}

// All returns every recipe.
func All() []Recipe {
	var out []Recipe
	if err := json.Unmarshal(table, &out); err != nil {
		panic("recipes.json: " + err.Error()) // a test reads it
	}
	return out
}

// ByName finds a recipe by its name or one of its aliases.
func ByName(name string) (Recipe, bool) {
	for _, r := range All() {
		if r.Name == name || slices.Contains(r.Aliases, name) {
			return r, true
		}
	}
	return Recipe{}, false
}

// LookPath finds an executable in the PATH of env, as a shell would.
func LookPath(name string, env []string) (string, bool) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	for _, dir := range filepath.SplitList(Getenv(env, "PATH")) {
		if file := filepath.Join(dir, name); dir != "" && executable(file) {
			return file, true
		}
	}
	return "", false
}

func executable(file string) bool {
	fi, err := os.Stat(file)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

// Getenv returns the last value of a variable in env.
func Getenv(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// Tool finds the recipe's tool: the given path when it is an executable whose use makes sense, else the first in PATH.
func (r Recipe) Tool(given string, env []string) (string, bool) {
	if given != "" && given != "/bin/true" && executable(given) {
		return given, true
	}
	for _, t := range r.Tools {
		if file, ok := LookPath(t, env); ok {
			return file, true
		}
	}
	return "", false
}

// Choose decides which recipe serves an image: that of its runtime type when the image has
// the tool; for a type without recipe (app, or none) Python, else a shell. ok is
// false when nothing was found; the recipe is then that of the type, if any.
func Choose(runtimeType, runtimePath string, env []string) (r Recipe, tool string, ok bool) {
	if r, known := ByName(runtimeType); known {
		tool, ok = r.Tool(runtimePath, env)
		return r, tool, ok
	}
	for _, name := range []string{"python", "shell"} {
		r, _ := ByName(name)
		if tool, ok = r.Tool("", env); ok {
			return r, tool, true
		}
	}
	return Recipe{Name: "app"}, "", false
}

// Pick chooses the step that fits the directory. recent names files uploaded last, as relative paths.
func Pick(steps []Step, dir, tool string, recent []string) (argv []string, ok bool) {
	for _, s := range steps {
		vars := map[string][]string{"{tool}": {tool}}
		if !fits(s, dir, recent, vars) {
			continue
		}
		return Expand(s.Argv, vars), true
	}
	return nil, false
}

func fits(s Step, dir string, recent []string, vars map[string][]string) bool {
	for _, f := range s.When {
		if fi, err := os.Stat(filepath.Join(dir, f)); err != nil || !fi.Mode().IsRegular() {
			return false
		}
	}
	if s.Glob != "" {
		files := matches(dir, s.Glob)
		if len(files) == 0 {
			return false
		}
		vars["{files}"] = files
	}
	if s.Only != "" {
		one := matchOf(recent, s.Only)
		if len(one) != 1 {
			one = matches(dir, s.Only)
		}
		if len(one) != 1 {
			return false
		}
		vars["{only}"] = one
	}
	return true
}

func matchOf(names []string, glob string) []string {
	var out []string
	for _, n := range names {
		if ok, _ := path.Match(glob, path.Base(n)); ok {
			out = append(out, n)
		}
	}
	return out
}

func matches(dir, glob string) []string {
	files, _ := filepath.Glob(filepath.Join(escape(dir), glob)) // the pattern is ours and valid
	for i, f := range files {
		files[i] = filepath.Base(f)
	}
	slices.Sort(files)
	return files
}

func escape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// Expand puts values in for variables; one with several values takes several places.
func Expand(argv []string, vars map[string][]string) []string {
	var out []string
	for _, a := range argv {
		if v, ok := vars[a]; ok {
			out = append(out, v...)
			continue
		}
		out = append(out, a)
	}
	return out
}

// shells are tried in this order to run a command line.
var shells = []string{"/bin/sh", "/bin/bash", "/bin/ash", "/busybox/sh"}

// CommandLine returns how to run a user's command line: with a shell when the image has one,
// else split into words when it needs no shell.
func CommandLine(line string, env []string) (file string, argv []string, err error) {
	for _, sh := range shells {
		if executable(sh) {
			return sh, []string{filepath.Base(sh), "-c", line}, nil
		}
	}
	argv, err = Split(line)
	if err != nil {
		return "", nil, err
	}
	file, ok := LookPath(argv[0], env)
	if !ok {
		return "", nil, fmt.Errorf("%s: not found in this image", argv[0])
	}
	return file, argv, nil
}

// Split cuts a command line into words, with quotes and backslashes as in a shell. What only a
// shell can do (variables, pipes, patterns, ...) is an error.
func Split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == '\'' && c != '\'':
			word.WriteByte(c)
		case c == '\\' && i+1 < len(line):
			i++
			if quote == '"' && !strings.ContainsRune("\\\"$`", rune(line[i])) {
				word.WriteByte('\\')
			}
			word.WriteByte(line[i])
			inWord = true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inWord = c, true
		case c == '$' || c == '`' || quote == 0 && strings.IndexByte("|&;<>()*?[]{}~#!\n", c) >= 0:
			return nil, fmt.Errorf("this image has no shell, and the command needs one for %q", c)
		case quote == 0 && (c == ' ' || c == '\t'):
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the command has an open %c", quote)
	}
	if inWord {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("the command is empty")
	}
	return words, nil
}
