package app

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

func TestFillPutsValuesIn(t *testing.T) {
	v := values{"ports": []string{"8080", "8081"}, "runtime_path": "/usr/bin/python3", "cfg": "/tmp/x.py",
		"found": map[string]string{"out": "yes", "err": "no"}, "evil": "{runtime_path}${{ cfg }}"}
	for _, c := range []struct{ text, want, err string }{
		{text: "", want: ""},
		{text: "plain", want: "plain"},
		{text: "{runtime_path}", want: "/usr/bin/python3"},
		{text: "c.port = {ports[0]}\n", want: "c.port = 8080\n"},
		{text: "{ports[1]}-{ports[0]}", want: "8081-8080"},
		{text: "{ports}", want: "[8080, 8081]"},
		{text: "${{ ports[0] }}:${{cfg}}", want: "8080:/tmp/x.py"},
		{text: "{found[out]}{found.err}{found}", want: "yesnoyes"},
		{text: "{evil}", want: "{runtime_path}${{ cfg }}"},
		{text: `{"a": {"b": 1}}`, want: `{"a": {"b": 1}}`},
		{text: "echo ${HOME} $x {} { } {1} {unknown}", want: "echo ${HOME} $x {} { } {1} {unknown}"},
		{text: "$", want: "$"},
		{text: "{", want: "{"},
		{text: "${{", want: "${{"},
		{text: "{{ports[0]}}", want: "{8080}"},
		{text: "ü{cfg}ü", want: "ü/tmp/x.pyü"},
		{text: "{ports[2]}", err: "2 parts"},
		{text: "{ports[-1]}", err: "2 parts"},
		{text: "{ports[x]}", err: "2 parts"},
		{text: "{found[code]}", err: "no part"},
		{text: "{cfg[0]}", err: "no parts"},
		{text: "${{ nothing }}", err: "not known"},
	} {
		got, err := v.fill(c.text)
		if c.err != "" {
			require.ErrorContains(t, err, c.err, c.text)
			continue
		}
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, got, c.text)
	}
	_, err := values{"big": strings.Repeat("x", maxText/2)}.fill(strings.Repeat("{big}", 3))
	require.ErrorContains(t, err, "more than")
}

// TestTextsAreBounded: values are long, and a definition may name them often.
func TestTextsAreBounded(t *testing.T) {
	v := values{"big": strings.Repeat("x", maxAnswer)}
	often := make([]string, maxWords)
	for i := range often {
		often[i] = "{big}"
	}
	_, err := v.fillAll(often)
	require.ErrorContains(t, err, "more than")
	some, err := v.fillAll(often[:maxTexts/maxAnswer])
	require.NoError(t, err)
	require.Len(t, some, maxTexts/maxAnswer)
	d := Definition{Env: map[string]string{}, DefaultArguments: map[string]Argument{}}
	for i := range maxWords {
		d.Env["N"+strconv.Itoa(i)] = "{big}"
		d.DefaultArguments["--n"+strconv.Itoa(i)] = Argument{"{big}"}
	}
	_, err = d.environ(nil, nil, v)
	require.ErrorContains(t, err, "more than")
	_, err = d.arguments(nil, v)
	require.ErrorContains(t, err, "more than")
	require.Less(t, len(shown(some)), 8<<10)
	require.Equal(t, "run it", shown([]string{"run", "it"}))
}

func TestParseDefinition(t *testing.T) {
	d, err := ParseDefinition([]byte(`{
		"prestart": [{"action": "write_tempfile", "args": {"body": ["a = {ports[0]}\n"]}, "ref": "cfg"},
			{"action": "log", "args": {"message": "hello", "debug": true}, "new": 1}],
		"command": ["{runtime_path}", "-m", "notebook", "--port", 8080], "url_template": "{protocol}://{host}:{port}/",
		"env": {"A": "1", "N": 2, "B": true}, "allowed_envs": ["X"], "allowed_arguments": ["--x"],
		"default_arguments": {"--flag": null, "--empty": "", "--one": "1", "--many": ["a", "b"], "--n": 3}, "unknown": {"x": []}}`))
	require.NoError(t, err)
	require.Equal(t, []string{"{runtime_path}", "-m", "notebook", "--port", "8080"}, d.Command)
	require.Equal(t, map[string]string{"A": "1", "N": "2", "B": "true"}, d.Env)
	require.Len(t, d.Prestart, 2)
	require.Equal(t, "cfg", d.Prestart[0].Ref)
	words, err := d.arguments(map[string]any{"--x": []any{"1", "2"}, "--one": nil}, values{})
	require.NoError(t, err)
	require.Equal(t, []string{"--empty", "--flag", "--many", "a", "b", "--n", "3", "--one", "--x", "1", "2"}, words)
	require.True(t, fault.Is(d.allows(nil, map[string]any{"--one": nil}), fault.Invalid),
		"a default is not allowed to be changed by that alone")
	require.True(t, fault.Is(d.allows(map[string]string{"LD_PRELOAD": "x"}, nil), fault.Invalid))
	require.NoError(t, d.allows(map[string]string{"X": "="}, map[string]any{"--x": "1"}))
	require.Error(t, d.allows(map[string]string{"X": "\x00"}, nil))
	require.Error(t, d.allows(nil, map[string]any{"--x": map[string]any{}}))
	env, err := d.environ([]string{"P=q"}, map[string]string{"X": "y"}, values{})
	require.NoError(t, err)
	require.Equal(t, []string{"P=q", "A=1", "B=true", "N=2", "X=y"}, env)

	d, err = ParseDefinition([]byte(`{"command": " run it ", "shell": "zsh"}`))
	require.NoError(t, err)
	require.Equal(t, "run it", d.Line)
	_, err = ParseDefinition([]byte(`{"noop": true}`))
	require.NoError(t, err)
}

func TestBadDefinitionsSayWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		``:                                     "EOF",
		`[]`:                                   "cannot unmarshal",
		`{"command": []}`:                      "neither",
		`{"command": [""]}`:                    "neither",
		`{}`:                                   "neither",
		`{"command": {"x": 1}}`:                "command",
		`{"command": ["a", ["b"]]}`:            "command",
		`{"command": ["a\u0000"]}`:             "NUL",
		`{"command": ["a"]} {}`:                "follows",
		`{"command": ["a"], "env": {"=":"x"}}`: "env",
		`{"command": ["a"], "env": {"A": []}}`: "env",
		`{"command": ["a"], "prestart": [{"action": "rm"}]}`:                                                          "none of",
		`{"command": ["a"], "prestart": [1]}`:                                                                         "prestart 1",
		`{"command": ["a"], "default_arguments": {"--a": {"b": 1}}}`:                                                  "default_arguments",
		`{"command": [` + strings.Repeat(`"a",`, maxWords) + `"a"]}`:                                                  "more than",
		strings.Repeat(`[`, 20000):                                                                                    "",
		`{"x": "` + strings.Repeat("x", maxDefinition) + `"}`:                                                         "more than",
		`{"command": ["a"], "prestart": [` + strings.Repeat(`{"action": "log"},`, maxActions) + `{"action": "log"}]}`: "more than",
	} {
		_, err := ParseDefinition([]byte(text))
		require.ErrorContains(t, err, want, "%.60s", text)
	}
}

func TestReadDefinitionTrustsNoFile(t *testing.T) {
	dir := t.TempDir()
	_, found, err := readDefinition(dir, "none")
	require.NoError(t, err)
	require.False(t, found)
	for _, name := range []string{"", ".", "../x", "a/b", "-a", strings.Repeat("a", 65), "a\x00"} {
		_, found, err := readDefinition(dir, name)
		require.NoError(t, err, name)
		require.False(t, found, name)
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe.json"), 0o600))
	_, found, err = readDefinition(dir, "pipe")
	require.True(t, found)
	require.ErrorContains(t, err, "no file")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir.json"), 0o700))
	_, _, err = readDefinition(dir, "dir")
	require.Error(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "big.json"), []byte(strings.Repeat(" ", maxDefinition+1)), 0o600))
	_, _, err = readDefinition(dir, "big")
	require.ErrorContains(t, err, "more than")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "good.json"), []byte(`{"command": "x"}`), 0o600))
	d, found, err := readDefinition(dir, "good")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "x", d.Line)
}

func TestBuiltinDefinitionsCanBeUsed(t *testing.T) {
	for _, b := range builtins() {
		d, err := ParseDefinition(b.Definition)
		require.NoError(t, err, b.Names)
		require.NotEmpty(t, b.Programs)
		require.NotEmpty(t, b.Install)
		v := values{"ports": []string{"1234"}, "program": "/bin/p", "home": "/home/work", "work_dir": "/w"}
		argv, err := v.fillAll(d.Command)
		require.NoError(t, err)
		words, err := d.arguments(nil, v)
		require.NoError(t, err)
		text := strings.Join(append(argv, words...), " ")
		require.Contains(t, text, "127.0.0.1", "it listens for the session alone")
		require.Contains(t, text, "1234")
		require.NotContains(t, text, "{")
		require.Equal(t, "/bin/p", argv[0])
	}
	d, file, install, ok := choose("jupyter", func(p string) (string, bool) { return "/x/" + p, p == "jupyter-lab" })
	require.True(t, ok)
	require.Equal(t, "/x/jupyter-lab", file)
	require.Empty(t, install)
	require.NotEmpty(t, d.Command)
	_, _, install, ok = choose("vscode", func(string) (string, bool) { return "", false })
	require.False(t, ok)
	require.NotEmpty(t, install)
	_, _, install, ok = choose("something", func(string) (string, bool) { return "", true })
	require.False(t, ok)
	require.Empty(t, install)
}
