package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/internal/fault"
)

// DefinitionDir is where images keep their service definitions, one NAME.json an app.
const DefinitionDir = "/etc/backend.ai/service-defs"

// The bounds of a definition: whoever made the image is not trusted with the memory of PID 1.
const (
	maxDefinition = 256 << 10 // bytes of the file
	maxWords      = 1024      // of a list
	maxActions    = 64
)

// Definition says how an app is started; the format is that of service definitions inside images.
type Definition struct {
	Command []string // nil when Line is set, or when there is nothing to start
	Line    string   // run by Shell
	Shell   string
	Noop    bool // the app listens by itself
	Env     map[string]string
	// Prestart are done in order before every start.
	Prestart []Action

	URLTemplate      string
	AllowedEnvs      []string
	AllowedArguments []string
	DefaultArguments map[string]Argument
}

// Action is a step before the start.
type Action struct {
	Do   string
	Args map[string]any
	Ref  string // the name of the result for later texts; may be empty
}

// Argument is the value of one argument: none (a flag), or words that follow the name.
type Argument []string

// ParseDefinition reads a definition. Keys that it does not know are passed over.
func ParseDefinition(text []byte) (Definition, error) {
	if len(text) > maxDefinition {
		return Definition{}, fmt.Errorf("it has more than %d bytes", maxDefinition)
	}
	var raw struct {
		Command          any               `json:"command"`
		Shell            string            `json:"shell"`
		Noop             bool              `json:"noop"`
		Env              map[string]any    `json:"env"`
		URLTemplate      string            `json:"url_template"`
		AllowedEnvs      []string          `json:"allowed_envs"`
		AllowedArguments []string          `json:"allowed_arguments"`
		DefaultArguments map[string]any    `json:"default_arguments"`
		Prestart         []json.RawMessage `json:"prestart"`
	}
	if err := decode(text, &raw); err != nil {
		return Definition{}, err
	}
	d := Definition{Shell: raw.Shell, Noop: raw.Noop, URLTemplate: raw.URLTemplate, AllowedEnvs: raw.AllowedEnvs,
		AllowedArguments: raw.AllowedArguments,
		Env:              map[string]string{}, DefaultArguments: map[string]Argument{}}
	switch c := raw.Command.(type) {
	case nil:
	case string:
		d.Line = strings.TrimSpace(c)
	default:
		words, err := words(c)
		if err != nil {
			return Definition{}, fmt.Errorf("command: %w", err)
		}
		d.Command = words
	}
	if !d.Noop && d.Line == "" && (len(d.Command) == 0 || d.Command[0] == "") {
		return Definition{}, errors.New("it has neither command nor noop")
	}
	if len(raw.Env) > maxWords || len(raw.DefaultArguments) > maxWords || len(raw.AllowedArguments) > maxWords ||
		len(raw.AllowedEnvs) > maxWords {
		return Definition{}, fmt.Errorf("one of its lists has more than %d entries", maxWords)
	}
	for k, v := range raw.Env {
		s, err := word(v)
		if err != nil || k == "" || strings.ContainsAny(k, "=\x00") {
			return Definition{}, fmt.Errorf("env: %q cannot be an environment variable", k)
		}
		d.Env[k] = s
	}
	for k, v := range raw.DefaultArguments {
		a, err := argument(v)
		if err != nil {
			return Definition{}, fmt.Errorf("default_arguments: %s: %w", k, err)
		}
		d.DefaultArguments[k] = a
	}
	if len(raw.Prestart) > maxActions {
		return Definition{}, fmt.Errorf("prestart has more than %d actions", maxActions)
	}
	for i, r := range raw.Prestart {
		var a struct {
			Action string         `json:"action"`
			Args   map[string]any `json:"args"`
			Ref    string         `json:"ref"`
		}
		if err := decode(r, &a); err != nil {
			return Definition{}, fmt.Errorf("prestart %d: %w", i+1, err)
		}
		if !slices.Contains(actions, a.Action) {
			return Definition{}, fmt.Errorf("prestart %d: %q is none of %s", i+1, a.Action, strings.Join(actions, ", "))
		}
		d.Prestart = append(d.Prestart, Action{Do: a.Action, Args: a.Args, Ref: a.Ref})
	}
	return d, nil
}

func decode(text []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber() // ports must not become 8.08e+03
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return nil
}

// word is a JSON string, number or boolean as text.
func word(v any) (string, error) {
	switch t := v.(type) {
	case string:
		if strings.Contains(t, "\x00") {
			return "", errors.New("a text has a NUL byte")
		}
		return t, nil
	case json.Number:
		return t.String(), nil
	case float64:
		return strconv.FormatFloat(t, 'f', -1, 64), nil
	case bool:
		return strconv.FormatBool(t), nil
	}
	return "", fmt.Errorf("a text is expected, not %T", v)
}

// words is a JSON list of texts, or one text.
func words(v any) ([]string, error) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	if len(list) > maxWords {
		return nil, fmt.Errorf("a list has more than %d entries", maxWords)
	}
	out := make([]string, 0, len(list))
	for _, e := range list {
		s, err := word(e)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// argument is a value as clients and definitions write it: null and "" are flags.
func argument(v any) (Argument, error) {
	if v == nil || v == "" {
		return nil, nil
	}
	w, err := words(v)
	return Argument(w), err
}

// allows says what of a request the definition does not take.
func (d Definition) allows(envs map[string]string, arguments map[string]any) error {
	for _, k := range slices.Sorted(maps.Keys(arguments)) {
		if !slices.Contains(d.AllowedArguments, k) {
			return notAllowed("argument", k, d.AllowedArguments)
		}
		if _, err := argument(arguments[k]); err != nil {
			return fault.Invalidf("argument %s", k).WithCause(err)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(envs)) {
		if !slices.Contains(d.AllowedEnvs, k) {
			return notAllowed("environment variable", k, d.AllowedEnvs)
		}
		if strings.ContainsAny(k, "=\x00") || k == "" || strings.Contains(envs[k], "\x00") {
			return fault.Invalidf("%q cannot be an environment variable", k)
		}
	}
	return nil
}

func notAllowed(what, name string, allowed []string) error {
	if len(allowed) == 0 {
		return fault.Invalidf("the app takes no %s, so not %q", what, name).WithReason("not-allowed").WithNext("start it without")
	}
	return fault.Invalidf("the app takes no %s %q", what, name).WithReason("not-allowed").
		WithNext("it takes %s", strings.Join(allowed[:min(len(allowed), 20)], ", "))
}

// arguments are the words that follow the command, by name: the defaults, with asked in their place.
func (d Definition) arguments(asked map[string]any, v values) ([]string, error) {
	all := map[string]Argument{}
	total := 0
	for _, k := range slices.Sorted(maps.Keys(d.DefaultArguments)) {
		filled, err := v.fillAll(d.DefaultArguments[k])
		if err != nil {
			return nil, err
		}
		for _, w := range filled {
			total += len(w)
		}
		if total > maxTexts {
			return nil, errTooLong
		}
		all[k] = filled
	}
	for k, raw := range asked {
		a, err := argument(raw)
		if err != nil {
			return nil, fmt.Errorf("argument %s: %w", k, err)
		}
		all[k] = a
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out = append(append(out, k), all[k]...)
	}
	return out, nil
}

// environ is env with what the definition sets and what was asked for; later ones win.
func (d Definition) environ(env []string, asked map[string]string, v values) ([]string, error) {
	out := slices.Clone(env)
	total := 0
	for _, k := range slices.Sorted(maps.Keys(d.Env)) {
		s, err := v.fill(d.Env[k])
		if err != nil {
			return nil, err
		}
		if total += len(s); total > maxTexts {
			return nil, errTooLong
		}
		out = append(out, k+"="+s)
	}
	for _, k := range slices.Sorted(maps.Keys(asked)) {
		out = append(out, k+"="+asked[k])
	}
	return out, nil
}

// fileName says whether an app's name can be that of a file.
var fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// readDefinition reads an app's definition from dir; found is false when the image has none.
func readDefinition(dir, name string) (d Definition, found bool, err error) {
	if !fileName.MatchString(name) {
		return Definition{}, false, nil
	}
	file := filepath.Join(dir, name+".json")
	// Without waiting, for an image may have put a pipe there.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return Definition{}, false, nil
	}
	if err != nil {
		return Definition{}, true, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return Definition{}, true, fmt.Errorf("%s is no file", file)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxDefinition+1))
	if err == nil {
		d, err = ParseDefinition(text)
	}
	if err != nil {
		return Definition{}, true, fmt.Errorf("%s: %w", file, err)
	}
	return d, true, nil
}
