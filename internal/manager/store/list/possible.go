package list

import (
	"maps"
	"slices"
)

// condition is a part of a filter: its SQL, and with which words of the watched field it may hold and may fail.
type condition struct {
	sql          string
	holds, fails wordSet
}

func (c condition) and(d condition) condition {
	return condition{holds: c.holds & d.holds, fails: c.fails | d.fails}
}
func (c condition) or(d condition) condition {
	return condition{holds: c.holds | d.holds, fails: c.fails & d.fails}
}

// wordSet has a bit for each of the words of a field, in their order.
type wordSet uint64

const everything = ^wordSet(0)

// of returns those of the words that the set has. There are 64 at most, see stored.
func (s wordSet) of(words []string) []string {
	var out []string
	for i, w := range words {
		if s&(1<<i) != 0 {
			out = append(out, w)
		}
	}
	return out
}

// stored are the words of a field of kindEnum in order; none when there are more than a set has bits.
func (f Field) stored() []string {
	words := slices.Compact(slices.Sorted(maps.Values(f.words)))
	if len(words) > 64 {
		return nil
	}
	return words
}

// possible says with which of the words a comparison of the field may hold, and may fail.
func (f Field) possible(words []string, op string, v any) (holds, fails wordSet) {
	values, ok := v.([]any)
	if !ok {
		values = []any{v}
	}
	var named wordSet
	for _, v := range values {
		text, ok := v.(string)
		if !ok {
			return everything, everything
		}
		if i := slices.Index(words, f.words[enumWord(text)]); i >= 0 {
			named |= 1 << i
		}
	}
	switch op {
	case "==", "=", "is", "in":
		return named, ^named
	case "!=", "isnot":
		return ^named, named
	}
	return everything, everything
}
