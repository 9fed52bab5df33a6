package chassis

import (
	"cmp"
	"encoding"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/knadh/koanf/parsers/toml/v2"
)

// Print writes the effective configuration as TOML that Load accepts again, except that
// secrets are redacted. Values that are not defaults carry a comment saying where they come
// from. With sections given, only those and what is below them are written.
func (c *Config[T]) Print(w io.Writer, sections ...string) error {
	section := "\x00"
	leaves := slices.DeleteFunc(slices.Clone(c.leaves), func(l leaf) bool {
		return len(sections) > 0 && !slices.ContainsFunc(sections, func(s string) bool { return strings.HasPrefix(l.key, s+".") })
	})
	// TOML puts all keys of a table together; keep the fields' order within and between tables.
	first := map[string]int{}
	for i, l := range leaves {
		if s := sectionOf(l.key); first[s] == 0 {
			first[s] = i + 1
		}
	}
	slices.SortStableFunc(leaves, func(a, b leaf) int {
		sa, sb := sectionOf(a.key), sectionOf(b.key)
		if (sa == "") != (sb == "") {
			if sa == "" {
				return -1
			}
			return 1
		}
		return first[sa] - first[sb]
	})
	var b strings.Builder
	for _, l := range leaves {
		if s := sectionOf(l.key); s != section {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			if s != "" {
				fmt.Fprintf(&b, "[%s]\n", s)
			}
			section = s
		}
		line, err := l.toml()
		if err != nil {
			return fmt.Errorf("print %s: %w", l.key, err)
		}
		b.WriteString(line)
		if o := c.origin[l.key]; o != "" {
			fmt.Fprintf(&b, " # from %s", o)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func sectionOf(key string) string {
	if i := strings.LastIndex(key, "."); i >= 0 {
		return key[:i]
	}
	return ""
}

func (l leaf) toml() (string, error) {
	name := l.key[strings.LastIndex(l.key, ".")+1:]
	if l.value.Kind() == reflect.Map {
		text, err := inline(l.value)
		return name + " = " + text, err
	}
	return marshalPair(name, plain(l.value))
}

// inline writes a value as the right side of a pair; maps and structs become tables in braces.
func inline(v reflect.Value) (string, error) {
	_, isText := v.Interface().(encoding.TextMarshaler)
	var parts []string
	add := func(key string, value reflect.Value) error {
		text, err := inline(value)
		if err != nil {
			return err
		}
		if strings.ContainsFunc(key, func(r rune) bool {
			return !(r == '_' || r == '-' || r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r)))
		}) {
			key = strconv.Quote(key)
		}
		parts = append(parts, key+" = "+text)
		return nil
	}
	switch {
	case v.Kind() == reflect.Map:
		for _, k := range v.MapKeys() {
			if err := add(fmt.Sprint(k.Interface()), v.MapIndex(k)); err != nil {
				return "", err
			}
		}
		slices.Sort(parts)
	case v.Kind() == reflect.Struct && !isText:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name := f.Tag.Get("config")
			if !f.IsExported() || name == "-" {
				continue
			}
			if err := add(cmp.Or(name, snake(f.Name)), v.Field(i)); err != nil {
				return "", err
			}
		}
	default:
		line, err := marshalPair("x", plain(v))
		return strings.TrimPrefix(line, "x = "), err
	}
	return "{" + strings.Join(parts, ", ") + "}", nil
}

func marshalPair(key string, value any) (string, error) {
	out, err := toml.Parser().Marshal(map[string]any{key: value})
	return strings.TrimRight(string(out), "\n"), err
}

// plain turns a field into what the TOML encoder writes the way Load reads it.
func plain(v reflect.Value) any {
	if d, ok := v.Interface().(time.Duration); ok {
		return d.String()
	}
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if text, err := m.MarshalText(); err == nil {
			return string(text)
		}
	}
	if v.Kind() == reflect.Slice {
		out := make([]any, 0, v.Len())
		for i := range v.Len() {
			out = append(out, plain(v.Index(i)))
		}
		return out
	}
	return v.Interface()
}
