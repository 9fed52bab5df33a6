package graphapi_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vektah/gqlparser/v2/ast"

	"berth.dev/berth/internal/manager/graphapi/gqlexec"
)

// served says why a name of testdata/names.txt is not served; it is empty for one that is. Names are of types, of fields and values
// (TYPE.NAME), of arguments (TYPE.FIELD(NAME)), and of what a type implements.
func served(schema *ast.Schema, line string) string {
	name, kind, typed := strings.Cut(line, ": ")
	name, face, implements := strings.Cut(name, " implements ")
	of, field, inside := strings.Cut(name, ".")
	field, arg, argued := strings.Cut(strings.TrimSuffix(field, ")"), "(")
	def := schema.Types[of]
	switch {
	case def == nil:
		return "no such type"
	case implements:
		for _, i := range def.Interfaces {
			if i == face {
				return ""
			}
		}
		return "the type does not implement it"
	case !inside || def.Kind == ast.Scalar: // a scalar takes any object
		return ""
	case def.Kind == ast.Enum:
		if def.EnumValues.ForName(field) == nil {
			return "no such value"
		}
		return ""
	}
	f := def.Fields.ForName(field)
	switch {
	case f == nil:
		return "no such field"
	case argued && f.Arguments.ForName(arg) == nil:
		return "no such argument"
	case typed && f.Type.String() != kind && f.Type.String() != strings.TrimSuffix(kind, "!"): // what may be left out can be given
		return "its type is " + f.Type.String()
	}
	return ""
}

// TestNamesOfClients holds the schema against testdata/names.txt: every type, input field, argument and value that official clients are
// known to write or to ask for, besides the operations of the documents beside it.
func TestNamesOfClients(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/names.txt")
	require.NoError(t, err)
	schema := gqlexec.NewExecutableSchema(gqlexec.Config{}).Schema()
	names := strings.Split(strings.TrimSpace(string(raw)), "\n")
	require.Greater(t, len(names), 800)
	for _, name := range names {
		if why := served(schema, name); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
	for name, why := range map[string]string{"Nothing": "no such type", "User.nothing": "no such field", "UserRoleV2.NOBODY": "no such value",
		"Queries.user(nobody)": "no such argument", "UserInput.password: Int": "its type is String!",
		"User implements Node": "the type does not implement it"} {
		require.Equal(t, why, served(schema, name), name)
	}
}
