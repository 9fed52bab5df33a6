package graphapi_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nobody reads the schema, in whatever words.
func TestNoIntrospection(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, query := range []string{`{__schema{types{name}}}`, `query A{s:__schema{queryType{fields{name args{name}}}}}`,
		`{__type(name:"User"){fields{name}}}`, `fragment F on Queries{__schema{types{name}}} query{...F}`, `{agents:__type(name:"Agent"){name}}`,
		`{__schema{directives{name}}}`} {
		var out map[string]json.RawMessage
		require.NotEmpty(t, d.ask(query, nil, &partial{&out}), query)
		for field, value := range out {
			require.Equal(t, "null", string(value), "%s of %s", field, query)
		}
	}
	require.Empty(t, d.ask(`{agents{id __typename}}`, nil, nil), "names of types are part of answers")
}
