package store

import "time"

// Conversions between columns and what the nouns of the manager hold.

// UTC returns an optional instant in UTC.
func UTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// Int returns an optional number.
func Int(v *int32) *int {
	if v == nil {
		return nil
	}
	n := int(*v)
	return &n
}

// Ints returns an array of numbers; it is never nil.
func Ints(v []int32) []int {
	out := make([]int, len(v))
	for i, n := range v {
		out[i] = int(n)
	}
	return out
}

// Texts returns an array of texts; it is never nil.
func Texts[T ~string](v []T) []string {
	out := make([]string, len(v))
	for i, s := range v {
		out[i] = string(s)
	}
	return out
}

// Optional returns a column that is NULL for the empty text.
func Optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// Set replaces a value unless from is nil: "no change".
func Set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// Value is what v points to, the zero value for nil.
func Value[T any](v *T) (out T) {
	if v != nil {
		out = *v
	}
	return out
}
