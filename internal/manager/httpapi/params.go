package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const (
	// maxBody bounds a JSON body: a code cell may carry a notebook's worth of text.
	maxBody = 20 << 20
	// bodyPatience is how long a JSON body may take to arrive, and how long an upload may pause.
	bodyPatience = time.Minute
)

// params are the parameters of a request: the query and the JSON body of any method as one
// set, where the query wins. Official clients use either for the same parameter.
//
// Getters take a name or several aliases joined by "|", the preferred one first. They never
// fail: what cannot be read is noted and err reports all of it at once. A JSON null counts as absent
// and unknown names are ignored, both because clients send them.
type params struct {
	query  url.Values
	body   map[string]any
	prefix string
	bad    map[string]string
}

// params reads the request's parameters.
func (c *call) params() (*params, error) {
	p := &params{query: c.r.URL.Query(), bad: map[string]string{}}
	if c.r.ContentLength == 0 || c.r.Body == nil || c.r.Body == http.NoBody {
		return p, nil
	}
	if t, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); strings.HasPrefix(t, "multipart/") || t == "application/x-tar" {
		return p, nil
	}
	raw, err := c.readBody(maxBody)
	if err != nil {
		return nil, err
	}
	p.body, err = parseBody(raw)
	return p, err
}

// readBody reads a whole body within the deadline of small ones.
func (c *call) readBody(limit int64) ([]byte, error) {
	rc := http.NewResponseController(c.w.ResponseWriter)
	if rc.SetReadDeadline(time.Now().Add(bodyPatience)) == nil {
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	}
	var buf bytes.Buffer
	if n := c.r.ContentLength; n > 0 && n <= 64<<10 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(c.w.ResponseWriter, c.r.Body, limit)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, err
		}
		return nil, fault.Invalidf("the request's body broke off").WithCause(err)
	}
	return buf.Bytes(), nil
}

// parseBody reads a JSON object; nothing but white space counts as an empty one.
func parseBody(raw []byte) (map[string]any, error) {
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

// err reports every parameter that could not be read, with the field errors as data.
func (p *params) err() error {
	if len(p.bad) == 0 {
		return nil
	}
	var parts []string
	for _, k := range sortedKeys(p.bad) {
		parts = append(parts, k+": "+p.bad[k])
	}
	return fault.Invalidf("missing or invalid parameters: %s", strings.Join(parts, "; ")).WithData(p.bad)
}

func (p *params) fail(names, format string, args ...any) {
	name, _, _ := strings.Cut(names, "|")
	p.bad[p.prefix+name] = fmt.Sprintf(format, args...)
}

// get finds the value of the first alias that is present; repeated query keys give a []any.
func (p *params) get(names string) (any, bool) {
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

// has reports whether the parameter is there and not null.
func (p *params) has(names string) bool {
	_, ok := p.get(names)
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

// optional returns the text of a parameter, nil when it is absent.
func (p *params) optional(names string) *string {
	v, ok := p.get(names)
	if !ok {
		return nil
	}
	s, ok := scalar(v)
	if !ok {
		p.fail(names, "must be a text")
		return nil
	}
	return &s
}

// text returns the text of a parameter, def when it is absent.
func (p *params) text(names, def string) string {
	if s := p.optional(names); s != nil {
		return *s
	}
	return def
}

// need returns the text of a parameter that must be there and not be empty.
func (p *params) need(names string) string {
	s := p.text(names, "")
	if s == "" {
		name, _, _ := strings.Cut(names, "|")
		if _, noted := p.bad[p.prefix+name]; !noted {
			p.fail(names, "is required")
		}
	}
	return s
}

// flag reads a boolean: JSON or one of the texts that clients send.
func (p *params) flag(names string, def bool) bool {
	v, ok := p.get(names)
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
	p.fail(names, "must be true or false")
	return def
}

// number reads a whole number within bounds.
func (p *params) number(names string, def, lo, hi int) int {
	v, ok := p.get(names)
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
		p.fail(names, "must be a whole number")
		return def
	case n < lo || n > hi:
		p.fail(names, "must be from %d to %d", lo, hi)
		return def
	}
	return n
}

// uuid reads a dashed or 32-hex UUID; "" when it is absent.
func (p *params) uuid(names string) string {
	s := p.text(names, "")
	if s == "" {
		return ""
	}
	id, ok := cluster.CanonicalUUID(s)
	if !ok {
		p.fail(names, "must be a UUID")
	}
	return id
}

// list reads texts: a JSON list, a repeated query key or a single text.
func (p *params) list(names string) []string {
	v, ok := p.get(names)
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
			p.fail(names, "must be a list of texts")
			return nil
		}
		out = append(out, s)
	}
	return out
}

// texts reads an object whose values are scalars; nulls are left out.
func (p *params) texts(names string) map[string]string {
	v, ok := p.get(names)
	if !ok {
		return nil
	}
	if s, isText := v.(string); isText { // some clients send JSON in a text
		m, err := parseBody([]byte(s))
		if err != nil {
			p.fail(names, "must be an object")
			return nil
		}
		v = m
	}
	m, ok := v.(map[string]any)
	if !ok {
		p.fail(names, "must be an object")
		return nil
	}
	out := make(map[string]string, len(m))
	for k, item := range m {
		if item == nil {
			continue
		}
		s, ok := scalar(item)
		if !ok {
			p.fail(names, "the value of %q must be a text or a number", k)
			return nil
		}
		out[k] = s
	}
	return out
}

// object returns the parameters inside an object; an empty set when it is absent. Its errors are ours.
func (p *params) object(names string) *params {
	name, _, _ := strings.Cut(names, "|")
	sub := &params{prefix: p.prefix + name + ".", bad: p.bad}
	v, ok := p.get(names)
	if !ok {
		return sub
	}
	if s, isText := v.(string); isText {
		m, err := parseBody([]byte(s))
		if err != nil {
			p.fail(names, "must be an object")
		}
		sub.body = m
		return sub
	}
	if sub.body, ok = v.(map[string]any); !ok {
		p.fail(names, "must be an object")
	}
	return sub
}

// span reads a duration: seconds as a number, or a number with s, m, h, d or w.
func (p *params) span(names string) time.Duration {
	s := p.text(names, "")
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
		p.fail(names, "must be a duration such as 90, 10m or 2h")
		return 0
	}
	return time.Duration(f * float64(unit))
}
