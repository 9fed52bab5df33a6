package graphapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/99designs/gqlgen/graphql/handler/lru"
	"github.com/stretchr/testify/require"
	"github.com/vektah/gqlparser/v2/ast"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/graphapi/gqlexec"
)

// The validator walks what a fragment holds once more for every operation and every fragment that leads there. Fifteen kilobytes of
// operations that asked for no more than one field each kept it busy for nine seconds and took 1.5 GB of memory.
func TestWhatIsValidatedAgainAndAgainIsRefused(t *testing.T) {
	t.Parallel()
	schema := gqlexec.NewExecutableSchema(gqlexec.Config{})
	h := &Handler{cfg: DefaultConfig(), schema: schema, prices: pricesOf(schema.Schema()), valid: lru.New[*ast.QueryDocument](keptDocuments)}
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, query := range map[string]string{
		"operations with directives": repeat(650, "query a%d{...A}") +
			`fragment A on Queries{agent(agent_id:"x")` + strings.Repeat("@x", 1900) + "{id}}",
		"operations with values": repeat(650, "query a%d{...A}") +
			"fragment A on Queries{agent(agent_id:[" + strings.Repeat("1 ", 3900) + "]){id}}",
		"operations with spreads": repeat(650, "query a%d{...A}") + "fragment A on Queries{" + strings.Repeat("...X ", 1900) + "}",
		"fragments with spreads": "query a0{...A}" + repeat(450, "fragment g%d on Queries{...A}") +
			"fragment A on Queries{" + strings.Repeat("...X ", 1900) + "}",
		"a chain of fragments": "query a0{domains{name}}" + func() (chain string) {
			for i := range 880 {
				chain += fmt.Sprintf("fragment g%d on Queries{...g%d}", i, i+1)
			}
			return chain
		}(),
	} {
		_, errs := h.prepare(t.Context(), api.GraphQLRequest{Query: query, OperationName: "a0"})
		require.Len(t, errs, 1, name)
		require.Contains(t, errs[0].Message, "selections, directives and values with its fragments; at most 16000 are allowed", name)
	}
}
