package shape_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/shape"
)

// TestDifferences shows that the comparison notices what is missing and what has another type.
func TestDifferences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ shape, is, want string }{
		{`{"a":"string|null"}`, `{"a":null,"b":1}`, ""},
		{`{"a":"string"}`, `{"b":1}`, "the answer has no a"},
		{`{"a":"string"}`, `{"a":1}`, "the answer.a is number, not string"},
		{`{"*":{"n":"bool"}}`, `{"k":{"n":[]}}`, "the answer.k.n is list, not bool"},
		{`[{"a":"object"}]`, `[{"a":{}},{"a":"s"}]`, "the answer[].a is string, not object"},
		{`["string"]`, `[]`, "the answer is no list with items"},
		{`{"a":"string"}`, `[]`, "the answer is no object with members"},
		{`{`, `{}`, "the shape { is no JSON: unexpected end of JSON input"},
		{`{}`, `<html>`, "the answer <html> is no JSON: invalid character '<' looking for beginning of value"},
	} {
		require.Equal(t, c.want, strings.Join(shape.Differences(c.shape, c.is), "; "), c.shape)
	}
}
