package httpapi_test

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFieldsOfReference makes each request that testdata/fields_of_reference.txt names, in its order, and looks for each member that
// official clients read of the answer, and for its JSON type. An answer may have more members.
func TestFieldsOfReference(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	users := map[string]*site{"superadmin": s, "domain-admin": s.user("dora", "admin", true), "user": s.user("adam", "user", true),
		"stranger": s.user("mallory", "user", false)}
	raw, err := os.ReadFile("testdata/fields_of_reference.txt")
	require.NoError(t, err)
	kept := ""
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.SplitN(line, " | ", 6)
		require.Len(t, part, 6, line)
		who, ok := users[part[1]]
		require.True(t, ok, "%s: nobody is called %s", line, part[1])
		method, target, ok := strings.Cut(strings.ReplaceAll(part[2], "$kept", kept), " ")
		require.True(t, ok, line)
		a := who.call(method, target, strings.TrimPrefix(part[3], "-"))
		if part[4] != strconv.Itoa(a.status) {
			t.Errorf("%s\nanswers %d %s", line, a.status, a.body)
			continue
		}
		if part[5] == "-" {
			continue
		}
		var shape, is any
		require.NoError(t, json.Unmarshal([]byte(part[5]), &shape), line)
		require.NoError(t, json.Unmarshal([]byte(a.body), &is), "%s\n%s", line, a.body)
		if wrong := differences("the answer", shape, is); len(wrong) > 0 {
			t.Errorf("%s\n%s", line, wrong[0])
		}
		if id := keptID(is); id != "" {
			kept = id
		}
	}
}

// differences compares a value with its shape: the name of a type, or of several, for a value; an object for the members that must be
// there, "*" for each of them; a list of one shape for a list of at least one such item.
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

// keptID is the id in an answer, which later lines of the table call $kept.
func keptID(is any) string {
	switch is := is.(type) {
	case []any:
		if len(is) > 0 {
			return keptID(is[0])
		}
	case map[string]any:
		for _, name := range []string{"id", "log_id"} {
			if id, ok := is[name].(string); ok {
				return id
			}
		}
		if logs, ok := is["logs"]; ok {
			return keptID(logs)
		}
	}
	return ""
}

// TestDifferences shows that the comparison notices what is missing and what has another type.
func TestDifferences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ shape, is, want string }{
		{`{"a":"string|null"}`, `{"a":null,"b":1}`, ""},
		{`{"a":"string"}`, `{"b":1}`, "x has no a"},
		{`{"a":"string"}`, `{"a":1}`, "x.a is number, not string"},
		{`{"*":{"n":"bool"}}`, `{"k":{"n":[]}}`, "x.k.n is list, not bool"},
		{`[{"a":"object"}]`, `[{"a":{}},{"a":"s"}]`, "x[].a is string, not object"},
		{`["string"]`, `[]`, "x is no list with items"},
		{`{"a":"string"}`, `[]`, "x is no object with members"},
	} {
		var shape, is any
		require.NoError(t, json.Unmarshal([]byte(c.shape), &shape))
		require.NoError(t, json.Unmarshal([]byte(c.is), &is))
		require.Equal(t, c.want, strings.Join(differences("x", shape, is), "; "), c.shape)
	}
}
