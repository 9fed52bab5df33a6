// Package shape compares JSON with what a description of an interface says of it: which members there are, and of which types.
// Tests call it.
package shape

import (
	"encoding/json"
	"strings"
)

// Differences compares a JSON text with its shape, which is JSON, too: the name of a type, or of several ("string|null"), for a value; an
// object for the members that must be there, "*" for each of them; a list of one shape for a list of at least one such item. There may be
// more members.
func Differences(shape, text string) []string {
	var want, is any
	if err := json.Unmarshal([]byte(shape), &want); err != nil {
		return []string{"the shape " + shape + " is no JSON: " + err.Error()}
	}
	if err := json.Unmarshal([]byte(text), &is); err != nil {
		return []string{"the answer " + text + " is no JSON: " + err.Error()}
	}
	return differences("the answer", want, is)
}

func differences(where string, shape, is any) []string {
	var out []string
	switch shape := shape.(type) {
	case string:
		for _, kind := range strings.Split(shape, "|") {
			if kind == kindOf(is) {
				return nil
			}
		}
		return []string{where + " is " + kindOf(is) + ", not " + shape}
	case []any:
		items, ok := is.([]any)
		if !ok || len(items) == 0 {
			return []string{where + " is no list with items"}
		}
		for _, item := range items {
			out = append(out, differences(where+"[]", shape[0], item)...)
		}
	case map[string]any:
		members, ok := is.(map[string]any)
		if !ok || len(members) == 0 {
			return []string{where + " is no object with members"}
		}
		for name, want := range shape {
			if name == "*" {
				for each, v := range members {
					out = append(out, differences(where+"."+each, want, v)...)
				}
				continue
			}
			v, there := members[name]
			if !there {
				out = append(out, where+" has no "+name)
				continue
			}
			out = append(out, differences(where+"."+name, want, v)...)
		}
	}
	return out
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "bool"
	case float64:
		return "number"
	case []any:
		return "list"
	}
	return "object"
}
