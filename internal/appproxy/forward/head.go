package forward

import "strings"

// Header is a read view of a head's fields, in the order and spelling in which they came.
type Header struct {
	fields []field
}

type field struct {
	name, value string
}

// Get returns the first value of a field, "" when it is missing. Names are compared without case.
func (h Header) Get(name string) string {
	for i := range h.fields {
		if strings.EqualFold(h.fields[i].name, name) {
			return h.fields[i].value
		}
	}
	return ""
}

// Values returns all values of a field.
func (h Header) Values(name string) []string {
	var all []string
	for i := range h.fields {
		if strings.EqualFold(h.fields[i].name, name) {
			all = append(all, h.fields[i].value)
		}
	}
	return all
}

// Cookies returns all values that the request's cookies of one name have.
func (h Header) Cookies(name string) []string {
	var all []string
	for i := range h.fields {
		if !strings.EqualFold(h.fields[i].name, "Cookie") {
			continue
		}
		for pair := range strings.SplitSeq(h.fields[i].value, ";") {
			n, v, ok := strings.Cut(strings.Trim(pair, " \t"), "=")
			if ok && n == name {
				all = append(all, v)
			}
		}
	}
	return all
}
