package chassis

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/toml/v2"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"berth.dev/berth/internal/fault"
)

// EnvPrefix begins every environment variable that is configuration.
const EnvPrefix = "BERTH_"

// envSep stands between the sections of a key in an environment variable. A variable without
// it (BERTH_STATE_DIR, BERTH_ADMIN_EMAIL) is not configuration.
const envSep = "__"

// Sources are the layers above the defaults, weakest first.
type Sources struct {
	// File is the path of a TOML file; empty means none.
	File string
	// Environ is os.Environ() or a test's own.
	Environ []string
	// Flags maps keys such as "manager.listen" to the values of flags that were really given.
	Flags map[string]string
}

// Config is a loaded configuration together with where each value came from.
type Config[T any] struct {
	Value  T
	leaves []leaf
	origin map[string]string
}

// Load lays the file, the environment and the flags over the defaults. A key is the path of
// field names in snake case ("manager.max_body_bytes"; a tag `config:"name"` renames, `config:"-"`
// hides), an environment variable is BERTH_<SECTION>__<KEY>. A key that no field has is an
// error that names the nearest one. Fields may be strings, booleans, numbers, durations
// ("30s"), slices of them, maps from strings, Secret, and anything with UnmarshalText.
//
// Validate is called on the result when T has it.
func Load[T any](defaults T, src Sources) (*Config[T], error) {
	c := &Config[T]{Value: defaults, origin: map[string]string{}}
	c.leaves = leavesOf(reflect.ValueOf(&c.Value).Elem(), "")
	merged := koanf.New(".")
	var problems []string

	add := func(layer *koanf.Koanf, where func(key string) string) error {
		for _, key := range layer.Keys() {
			l, ok := findLeaf(c.leaves, key)
			if !ok {
				problems = append(problems, c.unknown(where(key), key))
				continue
			}
			c.origin[l.key] = where(key)
		}
		return merged.Merge(layer)
	}
	if src.File != "" {
		layer := koanf.New(".")
		if err := layer.Load(file.Provider(src.File), toml.Parser()); err != nil {
			place := src.File
			var at interface{ Position() (row, column int) } // of the TOML parser's errors
			if errors.As(err, &at) {
				row, column := at.Position()
				place = fmt.Sprintf("%s, line %d, column %d,", src.File, row, column)
			}
			return nil, fault.Invalidf("configuration file %s cannot be read", place).WithCause(err).
				WithNext("check it with: berth config check --config %s", src.File)
		}
		if err := add(layer, func(string) string { return src.File }); err != nil {
			return nil, err
		}
	}
	layer := koanf.New(".")
	variables := map[string]string{}
	provider := env.Provider(".", env.Opt{
		Prefix:      EnvPrefix,
		EnvironFunc: func() []string { return src.Environ },
		TransformFunc: func(name, value string) (string, any) {
			rest := strings.TrimPrefix(name, EnvPrefix)
			if !strings.Contains(rest, envSep) {
				if l, ok := c.missingSeparator(rest); ok {
					problems = append(problems, fmt.Sprintf("environment variable %s is not read, write %s", name, envName(l.key)))
				}
				return "", nil
			}
			key := strings.ToLower(strings.ReplaceAll(rest, envSep, "."))
			variables[key] = name
			return key, value
		},
	})
	if err := layer.Load(provider, nil); err != nil {
		return nil, fmt.Errorf("read environment: %w", err)
	}
	if err := add(layer, func(key string) string { return "environment variable " + variables[key] }); err != nil {
		return nil, err
	}
	layer = koanf.New(".")
	for key, value := range src.Flags {
		if err := layer.Set(key, value); err != nil {
			return nil, fmt.Errorf("read flags: %w", err)
		}
	}
	if err := add(layer, func(key string) string { return "flag for " + key }); err != nil {
		return nil, err
	}
	for _, l := range c.leaves {
		if !merged.Exists(l.key) {
			continue
		}
		if err := l.set(merged.Get(l.key)); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %s: %v", c.origin[l.key], l.key, err))
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return nil, fault.Invalidf("configuration: %s", strings.Join(problems, "; ")).
			WithReason("invalid-config").WithNext("see all keys with: berth config print")
	}
	if v, ok := any(&c.Value).(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
	}
	return c, nil
}

// LoadFile is Load with the process's environment.
func LoadFile[T any](defaults T, path string, flags map[string]string) (*Config[T], error) {
	return Load(defaults, Sources{File: path, Environ: os.Environ(), Flags: flags})
}

func (c *Config[T]) unknown(where, key string) string {
	s := fmt.Sprintf("%s has unknown key %q", where, key)
	best, distance := "", max(3, len(key)/3)+1
	for _, l := range c.leaves {
		if d := editDistance(key, l.key); d < distance {
			best, distance = l.key, d
		}
		// The right word in the wrong section is as likely as a slip of the finger.
		if tail := l.key[strings.LastIndex(l.key, ".")+1:]; distance > 3 && tail == key[strings.LastIndex(key, ".")+1:] {
			best, distance = l.key, 3
		}
	}
	if best == "" {
		return s
	}
	if strings.HasPrefix(where, "environment") {
		return s + fmt.Sprintf(", did you mean %s?", envName(best))
	}
	return s + fmt.Sprintf(", did you mean %q?", best)
}

// missingSeparator finds the key that a variable written with single underscores meant.
func (c *Config[T]) missingSeparator(rest string) (leaf, bool) {
	flat := strings.ToLower(rest)
	for _, l := range c.leaves {
		if strings.Contains(l.key, ".") && strings.ReplaceAll(l.key, ".", "_") == flat {
			return l, true
		}
	}
	return leaf{}, false
}

func envName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", envSep))
}

// leaf is one settable field.
type leaf struct {
	key   string
	value reflect.Value
}

// findLeaf returns the leaf that holds key; keys below a map belong to the map.
func findLeaf(leaves []leaf, key string) (leaf, bool) {
	for _, l := range leaves {
		if l.key == key || l.value.Kind() == reflect.Map && strings.HasPrefix(key, l.key+".") {
			return l, true
		}
	}
	return leaf{}, false
}

var (
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	durationType = reflect.TypeFor[time.Duration]()
)

func leavesOf(v reflect.Value, prefix string) []leaf {
	var out []leaf
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("config")
		if !f.IsExported() || name == "-" {
			continue
		}
		if f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct {
			out = append(out, leavesOf(v.Field(i), prefix)...)
			continue
		}
		if name == "" {
			name = snake(f.Name)
		}
		switch {
		case reflect.PointerTo(f.Type).Implements(textType):
			out = append(out, leaf{prefix + name, v.Field(i)})
		case f.Type.Kind() == reflect.Struct:
			out = append(out, leavesOf(v.Field(i), prefix+name+".")...)
		case f.Type.Kind() == reflect.Func, f.Type.Kind() == reflect.Interface, f.Type.Kind() == reflect.Chan:
			// Not configuration: dependencies that live in the same struct.
		default:
			out = append(out, leaf{prefix + name, v.Field(i)})
		}
	}
	return out
}

// set decodes one value strictly; texts from the environment and flags become the field's type.
func (l leaf) set(raw any) error {
	if text, ok := raw.(string); ok && l.value.Kind() == reflect.Slice && text == "" {
		l.value.SetZero()
		return nil
	}
	if _, isText := raw.(string); !isText && l.value.Type() == durationType {
		return fmt.Errorf("write a duration with its unit, such as \"30s\"")
	}
	fresh := reflect.New(l.value.Type())
	d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: fresh.Interface(), WeaklyTypedInput: true, ErrorUnused: true, TagName: "config",
		MatchName: func(key, field string) bool { return key == field || key == snake(field) },
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.TextUnmarshallerHookFunc(),
			mapstructure.StringToTimeDurationHookFunc(),
			mapstructure.StringToSliceHookFunc(","),
		),
	})
	if err != nil {
		return err
	}
	if err := d.Decode(raw); err != nil {
		// The library's text names Go types and repeats the value, which may be a secret.
		return fmt.Errorf("the value cannot be read as %s", describe(l.value.Type()))
	}
	l.value.Set(fresh.Elem())
	return nil
}

func describe(t reflect.Type) string {
	switch {
	case t == durationType:
		return "a duration such as \"30s\""
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Slice:
		return "a list, each item " + describe(t.Elem())
	case t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Struct:
		var keys []string
		for f := range t.Elem().Fields() {
			keys = append(keys, cmp.Or(f.Tag.Get("config"), snake(f.Name)))
		}
		return "tables with the keys " + strings.Join(keys, ", ")
	case t.Kind() == reflect.Map:
		return "a table"
	case t.Kind() == reflect.String:
		return "a text"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return "a whole number"
	case t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64:
		return "a number"
	}
	return t.String()
}

// snake turns MaxBodyBytes into max_body_bytes and APIListen into api_listen.
func snake(name string) string {
	var b strings.Builder
	r := []rune(name)
	for i, c := range r {
		if unicode.IsUpper(c) {
			afterLower := i > 0 && !unicode.IsUpper(r[i-1])
			beforeLower := i > 0 && i+1 < len(r) && unicode.IsLower(r[i+1])
			if afterLower || beforeLower {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// editDistance is the number of single-character edits between a and b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j]+1, row[j+1]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
