package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
)

const (
	maxPriority = 100
	// agingReach bounds the waiting that aging looks at, ten years.
	agingReach = int64(10 * 365 * 24 * time.Hour)
)

// ownerShares is an owner as order policies see it.
type ownerShares struct {
	Owner Owner
	// Dominant is the largest part, over slots, of the group's capacity that the owner's user
	// holds now, with what this pass has placed already.
	Dominant float64
	// Domain, Project and User are the decayed uses that SetShare told; 0 for one who never used anything.
	Domain, Project, User float64
}

// ordering is an order policy: it decides between owners whose sessions have equal priority. Sessions of one owner, and of owners that
// compare equal, go by age.
type ordering interface {
	// Compare is negative when a goes before b. It must be a total order up to equality and
	// depend on nothing but the arguments.
	Compare(a, b *ownerShares) int
	// Youngest reports that the youngest session goes first, not the oldest.
	Youngest() bool
}

// orderKind is a registered order policy.
type orderKind struct {
	name string
	make func(*optionReader) ordering
}

// orders lists the order policies, the default first.
var orders = []orderKind{
	{"fifo", func(*optionReader) ordering { return byAge{} }},
	{"lifo", func(*optionReader) ordering { return byAge{youngest: true} }},
	{"drf", func(*optionReader) ordering { return dominant{} }},
	{"fair-share", func(o *optionReader) ordering {
		parseDecay(o)
		return fairShare{}
	}},
}

// Orders lists the registered queue orders, the default first.
func Orders() []string {
	out := make([]string, len(orders))
	for i, k := range orders {
		out[i] = k.name
	}
	return out
}

// newOrder makes an order policy with its options. aging is how long a session waits for each
// step of priority that it gains, 0 for never.
func newOrder(name string, options map[string]any) (order ordering, aging time.Duration, err error) {
	if name == "" {
		name = orders[0].name
	}
	for _, k := range orders {
		if k.name != name {
			continue
		}
		o := &optionReader{of: "the scheduler " + name, values: options}
		aging = time.Duration(o.Number("ageing_seconds", 0, 0, 1e9) * float64(time.Second))
		order = k.make(o)
		err = o.Done()
		if err == nil && aging > 0 && order.Youngest() {
			err = fault.Invalidf("ageing_seconds does not go with the scheduler %s, which prefers the youngest", name).
				WithNext("leave ageing_seconds out")
		}
		return order, aging, err
	}
	return nil, 0, fault.Invalidf("the scheduler %q does not exist", name).WithNext("use one of %s", strings.Join(Orders(), ", "))
}

// optionReader reads a policy's options. A reader asks for each by name; Done refuses those that
// nobody asked for.
type optionReader struct {
	of     string
	values map[string]any
	read   []string
	err    error
}

// Number reads a number between low and high; absent gives the default.
func (o *optionReader) Number(name string, otherwise, low, high float64) float64 {
	o.read = append(o.read, name)
	v, ok := o.values[name]
	if !ok || v == nil {
		return otherwise
	}
	n, ok := number(v)
	if !ok || math.IsNaN(n) || n < low || n > high {
		o.fail(name, "must be a number from %v to %v", low, high)
		return otherwise
	}
	return n
}

// Weights reads a table of numbers between 0 and high.
func (o *optionReader) Weights(name string, high float64) map[string]float64 {
	o.read = append(o.read, name)
	v, ok := o.values[name]
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
		o.fail(name, "must be a table of numbers from 0 to %v", high)
		return nil
	}
	return out
}

// Text reads one of several words; absent gives the first.
func (o *optionReader) Text(name string, words ...string) string {
	o.read = append(o.read, name)
	v, ok := o.values[name]
	if !ok || v == nil {
		return words[0]
	}
	s, ok := v.(string)
	if !ok || !slices.Contains(words, s) {
		o.fail(name, "must be one of %s", strings.Join(words, ", "))
		return words[0]
	}
	return s
}

// Flag reads a boolean.
func (o *optionReader) Flag(name string, otherwise bool) bool {
	o.read = append(o.read, name)
	v, ok := o.values[name]
	if !ok || v == nil {
		return otherwise
	}
	b, ok := v.(bool)
	if !ok {
		o.fail(name, "must be true or false")
		return otherwise
	}
	return b
}

// text reads any text.
func (o *optionReader) text(name string) string {
	o.read = append(o.read, name)
	v, ok := o.values[name]
	if !ok || v == nil {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		o.fail(name, "must be a text")
	}
	return s
}

// words reads a list of texts.
func (o *optionReader) words(name string) []string {
	o.read = append(o.read, name)
	v, ok := o.values[name]
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
		o.fail(name, "must be a list of texts")
	}
	return out
}

// table reads options within options.
func (o *optionReader) table(name string) map[string]any {
	o.read = append(o.read, name)
	v, ok := o.values[name]
	if !ok || v == nil {
		return nil
	}
	t, ok := v.(map[string]any)
	if !ok {
		o.fail(name, "must be a table")
	}
	return t
}

func (o *optionReader) fail(name, format string, args ...any) {
	if o.err == nil {
		o.err = fault.Invalidf("%s: option %s %s", o.of, name, fmt.Sprintf(format, args...)).
			WithNext("correct %s or leave it out", name)
	}
}

// Done is the first error, or Invalid for an option that was not read.
func (o *optionReader) Done() error {
	if o.err != nil {
		return o.err
	}
	for _, name := range slices.Sorted(maps.Keys(o.values)) {
		if !slices.Contains(o.read, name) {
			known := slices.Sorted(slices.Values(o.read))
			return fault.Invalidf("%s has no option %q", o.of, name).WithNext("use one of %s", strings.Join(known, ", "))
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

// byAge treats all owners alike.
type byAge struct{ youngest bool }

func (byAge) Compare(_, _ *ownerShares) int { return 0 }
func (o byAge) Youngest() bool              { return o.youngest }

// dominant is dominant resource fairness: who holds least of what he holds most goes first.
type dominant struct{}

func (dominant) Compare(a, b *ownerShares) int { return cmp.Compare(a.Dominant, b.Dominant) }
func (dominant) Youngest() bool                { return false }

// fairShare lets those go first who used least, by domain, then project, then user.
type fairShare struct{}

func (fairShare) Compare(a, b *ownerShares) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Project, b.Project), cmp.Compare(a.User, b.User))
}

func (fairShare) Youngest() bool { return false }
