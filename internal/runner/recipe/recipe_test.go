package recipe_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/runner/recipe"
)

func TestTable(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, r := range recipe.All() {
		for _, n := range append([]string{r.Name}, r.Aliases...) {
			require.False(t, names[n], "%s twice", n)
			names[n] = true
		}
		require.NotEmpty(t, r.Tools, r.Name)
		require.NotEmpty(t, r.Query.File, r.Name)
		require.NotEmpty(t, r.Query.Run, r.Name)
		for _, steps := range [][]recipe.Step{r.Clean, r.Build, r.Exec} {
			for _, s := range steps {
				require.NotEmpty(t, s.Argv, r.Name)
				require.True(t, len(s.When) > 0 || s.Glob != "" || s.Only != "", "%s: a step without condition hides those after it", r.Name)
			}
		}
	}
	for _, n := range []string{"python", "c", "cpp", "go", "golang", "nodejs", "r", "bash"} {
		require.True(t, names[n], n)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := []string{"PATH=" + dir}
	r, _, ok := recipe.Choose("app", "/bin/true", env)
	require.False(t, ok && r.Name == "python")
	tool := func(name string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, nil, 0o755))
		return file
	}
	sh := tool("bash")
	r, got, ok := recipe.Choose("", "", env)
	require.True(t, ok)
	require.Equal(t, "shell", r.Name)
	require.Equal(t, sh, got)
	py := tool("python3")
	r, got, _ = recipe.Choose("app", "/bin/true", env)
	require.Equal(t, "python", r.Name)
	require.Equal(t, py, got)
	other := tool("my-python")
	_, got, _ = recipe.Choose("python", other, env)
	require.Equal(t, other, got, "the image's label wins")
	_, got, _ = recipe.Choose("python", "/no/such/python", env)
	require.Equal(t, py, got, "a label that points nowhere does not")
	r, _, ok = recipe.Choose("cpp", "", env)
	require.False(t, ok)
	require.Equal(t, "cpp", r.Name)
}

func TestPick(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(name string) { require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644)) }
	py, _ := recipe.ByName("python")
	c, _ := recipe.ByName("c")
	pick := func(s []recipe.Step, recent ...string) []string {
		argv, _ := recipe.Pick(s, dir, "TOOL", recent)
		return argv
	}
	require.Nil(t, pick(py.Exec))
	put("a.py")
	require.Equal(t, []string{"TOOL", "-u", "a.py"}, pick(py.Exec))
	put("b.py")
	require.Nil(t, pick(py.Exec), "which of two?")
	require.Equal(t, []string{"TOOL", "-u", "sub/b.py"}, pick(py.Exec, "sub/b.py", "data.csv"))
	put("main.py")
	require.Equal(t, []string{"TOOL", "-u", "main.py"}, pick(py.Exec, "b.py"))
	put("x.c")
	put("y.c")
	require.Equal(t, []string{"TOOL", "-Wall", "-o", "main", "x.c", "y.c", "-lrt", "-lm", "-lpthread", "-ldl"}, pick(c.Build))
	put("Makefile")
	require.Equal(t, []string{"make"}, pick(c.Build))
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		`a b  c`:           {"a", "b", "c"},
		`a 'b c' "d e"`:    {"a", "b c", "d e"},
		`a\ b "c\"d" '\n'`: {"a b", `c"d`, `\n`},
		`x ''`:             {"x", ""},
		`"a b"c`:           {"a bc"},
	} {
		got, err := recipe.Split(line)
		require.NoError(t, err, line)
		require.Equal(t, want, got, line)
	}
	for _, line := range []string{"", "  ", "a | b", "a > b", "$HOME", `"$HOME"`, "a; b", "`x`", "*.c", "'open", "a & b"} {
		_, err := recipe.Split(line)
		require.Error(t, err, line)
	}
	rapid.Check(t, func(t *rapid.T) {
		words, err := recipe.Split(rapid.String().Draw(t, "line"))
		require.True(t, err != nil || len(words) > 0)
	})
}
