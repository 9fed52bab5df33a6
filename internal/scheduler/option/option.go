// Package option reads the options of the scheduler's policies, as administrators wrote them.
package option

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
)

// Reader reads a policy's options. A reader asks for each by name; Done refuses those that
// nobody asked for.
type Reader struct {
	Of     string
	Values map[string]any
	Read   []string
	err    error
}

// Number reads a number between low and high; absent gives the default.
func (o *Reader) Number(name string, otherwise, low, high float64) float64 {
	o.Read = append(o.Read, name)
	v, ok := o.Values[name]
	if !ok || v == nil {
		return otherwise
	}
	n, ok := number(v)
	if !ok || math.IsNaN(n) || n < low || n > high {
		o.Fail(name, "must be a number from %v to %v", low, high)
		return otherwise
	}
	return n
}

// Weights reads a table of numbers between 0 and high.
func (o *Reader) Weights(name string, high float64) map[string]float64 {
	o.Read = append(o.Read, name)
	v, ok := o.Values[name]
	if !ok || v == nil {
		return nil
	}
	table, ok := v.(map[string]any)
	out := make(map[string]float64, len(table))
	for k, x := range table {
		n, isNumber := number(x)
		ok = ok && isNumber && n >= 0 && n <= high
		out[k] = n
	}
	if !ok {
		o.Fail(name, "must be a table of numbers from 0 to %v", high)
		return nil
	}
	return out
}

// Text reads one of several words; absent gives the first.
func (o *Reader) Text(name string, words ...string) string {
	o.Read = append(o.Read, name)
	v, ok := o.Values[name]
	if !ok || v == nil {
		return words[0]
	}
	s, ok := v.(string)
	if !ok || !slices.Contains(words, s) {
		o.Fail(name, "must be one of %s", strings.Join(words, ", "))
		return words[0]
	}
	return s
}

// Flag reads a boolean.
func (o *Reader) Flag(name string, otherwise bool) bool {
	o.Read = append(o.Read, name)
	v, ok := o.Values[name]
	if !ok || v == nil {
		return otherwise
	}
	b, ok := v.(bool)
	if !ok {
		o.Fail(name, "must be true or false")
		return otherwise
	}
	return b
}

// Plain reads any text.
func (o *Reader) Plain(name string) string {
	o.Read = append(o.Read, name)
	v, ok := o.Values[name]
	if !ok || v == nil {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		o.Fail(name, "must be a text")
	}
	return s
}

// List reads a list of texts.
func (o *Reader) List(name string) []string {
	o.Read = append(o.Read, name)
	v, ok := o.Values[name]
	if !ok || v == nil {
		return nil
	}
	if list, ok := v.([]string); ok {
		return list
	}
	list, ok := v.([]any)
	var out []string
	for _, x := range list {
		s, isText := x.(string)
		ok = ok && isText
		out = append(out, s)
	}
	if !ok {
		o.Fail(name, "must be a list of texts")
	}
	return out
}

// Table reads options within options.
func (o *Reader) Table(name string) map[string]any {
	o.Read = append(o.Read, name)
	v, ok := o.Values[name]
	if !ok || v == nil {
		return nil
	}
	t, ok := v.(map[string]any)
	if !ok {
		o.Fail(name, "must be a table")
	}
	return t
}

// Ignore takes an option that means nothing here.
func (o *Reader) Ignore(name string) { o.Read = append(o.Read, name) }

// Fail notes what is wrong with an option; the first one counts.
func (o *Reader) Fail(name, format string, args ...any) {
	if o.err == nil {
		o.err = fault.Invalidf("%s: option %s %s", o.Of, name, fmt.Sprintf(format, args...)).
			WithNext("correct %s or leave it out", name)
	}
}

// Done is the first error, or Invalid for an option that was not read.
func (o *Reader) Done() error {
	if o.err != nil {
		return o.err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Values)) {
		if !slices.Contains(o.Read, name) {
			known := slices.Sorted(slices.Values(o.Read))
			return fault.Invalidf("%s has no option %q", o.Of, name).WithNext("use one of %s", strings.Join(known, ", "))
		}
	}
	return nil
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	}
	return 0, false
}
