// Package params reads the parameters of a request under all the names that clients have for them. It knows no route; package httpapi
// calls it.
package params

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Set is the parameters of a request: the query and the JSON body of any method as one
// set, where the query wins. Official clients use either for the same parameter.
//
// Getters take a name or several aliases joined by "|", the preferred one first. They never
// fail: what cannot be read is noted and Err reports all of it at once. A JSON null counts as absent
// and unknown names are ignored, both because clients send them.
type Set struct {
	query  url.Values
	body   map[string]any
	prefix string
	bad    map[string]string
}

// New makes the set of a query and a body; either may be nil.
func New(query url.Values, body map[string]any) *Set {
	return &Set{query: query, body: body, bad: map[string]string{}}
}

// Within is the set of an object inside of p, whose complaints are p's own, under the name of the object. With "" it stands for p itself.
func (p *Set) Within(name string, body map[string]any) *Set {
	in := &Set{body: body, prefix: p.prefix, bad: p.bad}
	if name != "" {
		in.prefix += name + "."
	}
	return in
}

// Members are the members of the JSON body by their names.
func (p *Set) Members() map[string]any { return p.body }

// ParseBody reads a JSON object; nothing but white space counts as an empty one.
func ParseBody(raw []byte) (map[string]any, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	bad := func(why string) error {
		return fault.Invalidf("the request's body is not usable: %s", why).WithNext("send one JSON object")
	}
	if raw[0] != '{' {
		return nil, bad("it is not a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return nil, bad("malformed JSON: " + err.Error())
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, bad("something follows the JSON object")
	}
	return m, nil
}

// Err reports every parameter that could not be read, with the field errors as data.
func (p *Set) Err() error {
	if len(p.bad) == 0 {
		return nil
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(p.bad)) {
		parts = append(parts, k+": "+p.bad[k])
	}
	return fault.Invalidf("missing or invalid parameters: %s", strings.Join(parts, "; ")).WithData(p.bad)
}

// Fail notes what is wrong with a parameter.
func (p *Set) Fail(names, format string, args ...any) {
	name, _, _ := strings.Cut(names, "|")
	p.bad[p.prefix+name] = fmt.Sprintf(format, args...)
}

// Get finds the value of the first alias that is present; repeated query keys give a []any.
func (p *Set) Get(names string) (any, bool) {
	for name := range strings.SplitSeq(names, "|") {
		if vs, ok := p.query[name]; ok && len(vs) > 0 {
			if len(vs) == 1 {
				return vs[0], true
			}
			list := make([]any, len(vs))
			for i, v := range vs {
				list[i] = v
			}
			return list, true
		}
	}
	for name := range strings.SplitSeq(names, "|") {
		if v, ok := p.body[name]; ok && v != nil {
			return v, true
		}
	}
	return nil, false
}

// Has reports whether the parameter is there and not null.
func (p *Set) Has(names string) bool {
	_, ok := p.Get(names)
	return ok
}

func scalar(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// Optional returns the text of a parameter, nil when it is absent.
func (p *Set) Optional(names string) *string {
	v, ok := p.Get(names)
	if !ok {
		return nil
	}
	s, ok := scalar(v)
	if !ok {
		p.Fail(names, "must be a text")
		return nil
	}
	return &s
}

// Text returns the Text of a parameter, def when it is absent.
func (p *Set) Text(names, def string) string {
	if s := p.Optional(names); s != nil {
		return *s
	}
	return def
}

// Need returns the text of a parameter that must be there and not be empty.
func (p *Set) Need(names string) string {
	s := p.Text(names, "")
	if s == "" {
		name, _, _ := strings.Cut(names, "|")
		if _, noted := p.bad[p.prefix+name]; !noted {
			p.Fail(names, "is required")
		}
	}
	return s
}

// Flag reads a boolean: JSON or one of the texts that clients send.
func (p *Set) Flag(names string, def bool) bool {
	v, ok := p.Get(names)
	if !ok {
		return def
	}
	s, ok := scalar(v)
	if ok {
		switch strings.ToLower(s) {
		case "true", "1", "yes", "y", "on", "t":
			return true
		case "false", "0", "no", "n", "off", "f", "":
			return false
		}
	}
	p.Fail(names, "must be true or false")
	return def
}

// Number reads a whole Number within bounds.
func (p *Set) Number(names string, def, lo, hi int) int {
	v, ok := p.Get(names)
	if !ok {
		return def
	}
	s, ok := scalar(v)
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil && ok {
		if f, ferr := strconv.ParseFloat(s, 64); ferr == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			n, err = int(f), nil
		}
	}
	switch {
	case !ok || err != nil:
		p.Fail(names, "must be a whole number")
		return def
	case n < lo || n > hi:
		p.Fail(names, "must be from %d to %d", lo, hi)
		return def
	}
	return n
}

// UUID reads a dashed or 32-hex UUID; "" when it is absent.
func (p *Set) UUID(names string) string {
	s := p.Text(names, "")
	if s == "" {
		return ""
	}
	id, ok := cluster.CanonicalUUID(s)
	if !ok {
		p.Fail(names, "must be a UUID")
	}
	return id
}

// List reads texts: a JSON List, a repeated query key or a single text.
func (p *Set) List(names string) []string {
	v, ok := p.Get(names)
	if !ok {
		return nil
	}
	items, ok := v.([]any)
	if !ok {
		items = []any{v}
	}
	out := make([]string, 0, len(items))
	for _, item := range items {
		s, ok := scalar(item)
		if !ok {
			p.Fail(names, "must be a list of texts")
			return nil
		}
		out = append(out, s)
	}
	return out
}

// Texts reads an object whose values are scalars; nulls are left out.
func (p *Set) Texts(names string) map[string]string {
	v, ok := p.Get(names)
	if !ok {
		return nil
	}
	if s, isText := v.(string); isText { // some clients send JSON in a text
		m, err := ParseBody([]byte(s))
		if err != nil {
			p.Fail(names, "must be an object")
			return nil
		}
		v = m
	}
	m, ok := v.(map[string]any)
	if !ok {
		p.Fail(names, "must be an object")
		return nil
	}
	out := make(map[string]string, len(m))
	for k, item := range m {
		if item == nil {
			continue
		}
		s, ok := scalar(item)
		if !ok {
			p.Fail(names, "the value of %.64q must be a text or a number", k)
			return nil
		}
		out[k] = s
	}
	return out
}

// Object returns the parameters inside an Object; an empty set when it is absent. Its errors are ours.
func (p *Set) Object(names string) *Set {
	name, _, _ := strings.Cut(names, "|")
	sub := &Set{prefix: p.prefix + name + ".", bad: p.bad}
	v, ok := p.Get(names)
	if !ok {
		return sub
	}
	if s, isText := v.(string); isText {
		m, err := ParseBody([]byte(s))
		if err != nil {
			p.Fail(names, "must be an object")
		}
		sub.body = m
		return sub
	}
	if sub.body, ok = v.(map[string]any); !ok {
		p.Fail(names, "must be an object")
	}
	return sub
}

// Span reads a duration: seconds as a number, or a number with s, m, h, d or w.
func (p *Set) Span(names string) time.Duration {
	s := p.Text(names, "")
	if s == "" {
		return 0
	}
	unit, digits := time.Second, strings.TrimSpace(s)
	if u, ok := map[byte]time.Duration{
		's': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour, 'w': 7 * 24 * time.Hour,
	}[digits[max(len(digits)-1, 0)]]; ok {
		unit, digits = u, digits[:len(digits)-1]
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f*float64(unit) > float64(10*365*24*time.Hour) {
		p.Fail(names, "must be a duration such as 90, 10m or 2h")
		return 0
	}
	return time.Duration(f * float64(unit))
}

// Real reads a number; ok is false when it is none, which is noted.
func (p *Set) Real(name string) (v float64, ok bool) {
	raw, _ := p.Get(name)
	text, ok := scalar(raw)
	if ok {
		var err error
		v, err = strconv.ParseFloat(text, 64)
		ok = err == nil
	}
	if !ok {
		p.Fail(name, "must be a number")
	}
	return v, ok
}

// Only refuses members of the body that have none of the names: for objects that are ours alone, in which a member that nobody reads is a
// mistake. Those that are null say nothing.
func (p *Set) Only(names string) {
	known := strings.Split(names, "|")
	for name, v := range p.body {
		if v != nil && !slices.Contains(known, name) {
			p.Fail(fmt.Sprintf("%.64s", name), "is not known here")
		}
	}
}

// Objects reads a list of Objects.
func (p *Set) Objects(name string) []*Set {
	v, ok := p.Get(name)
	if !ok {
		return nil
	}
	items, ok := v.([]any)
	if !ok {
		p.Fail(name, "must be a list of objects")
		return nil
	}
	out := make([]*Set, 0, len(items))
	for i, item := range items {
		m, ok := item.(map[string]any)
		if !ok {
			p.Fail(name, "must be a list of objects")
			return nil
		}
		out = append(out, &Set{body: m, prefix: fmt.Sprintf("%s%s[%d].", p.prefix, name, i), bad: p.bad})
	}
	return out
}
