package cost

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
)

var schema = gqlparser.MustLoadSchema(&ast.Source{Input: `
	type Query { item(id: Int): Item items(limit: Int!): [Item] nodes(first: Int, last: Int): [Item] all: [Item] name: String }
	type Mutation { touch(id: Int): Item }
	type Item { id: ID name(lang: String): String next: Item items: [Item] }`})

var testPrices = Prices{
	"Query.item": {Flat: 10}, "Query.items": {Flat: 10, Items: 100, Page: true}, "Query.nodes": {Flat: 10, Items: 50, Page: true},
	"Query.all": {Flat: 10, Items: 50}, "Item.items": {Items: 3},
}

var wide = Limits{Depth: top, Fields: top, Roots: top, Aliases: top, Cost: top, Nodes: top}

func parse(t testing.TB, query string) *ast.QueryDocument {
	t.Helper()
	doc, err := parser.ParseQuery(&ast.Source{Input: query})
	require.NoError(t, err)
	return doc
}

func weigh(t testing.TB, query string, vars map[string]any, limits Limits) (Weight, error) {
	t.Helper()
	doc := parse(t, query)
	return Walk(t.Context(), schema, doc, doc.Operations[0], vars, testPrices, limits)
}

func TestWalkCountsWhatTheAnswerMayHold(t *testing.T) {
	t.Parallel()
	for query, c := range map[string]struct {
		vars map[string]any
		want Weight
	}{
		`{ name }`:                                                          {nil, Weight{Depth: 1, Fields: 1, Roots: 1, Cost: 1}},
		`{ a: item(id: 1) { id b: name } name }`:                            {nil, Weight{Depth: 2, Fields: 4, Roots: 2, Aliases: 2, Cost: 13}},
		`{ items(limit: 20) { id name } }`:                                  {nil, Weight{2, 3, 1, 0, 10 + 20*2, 0}},
		`{ items(limit: 5000) { id } }`:                                     {nil, Weight{2, 2, 1, 0, 10 + 100, 0}},
		`{ items(limit: -1) { id } }`:                                       {nil, Weight{2, 2, 1, 0, 11, 0}},
		`{ nodes { id } }`:                                                  {nil, Weight{2, 2, 1, 0, 10 + 50, 0}},
		`{ nodes(first: 3, last: 7) { id } }`:                               {nil, Weight{2, 2, 1, 0, 10 + 7, 0}},
		`query($n: Int) { nodes(first: $n) { id } }`:                        {map[string]any{"n": 4}, Weight{2, 2, 1, 0, 10 + 4, 0}},
		`query($n: Int = 9) { nodes(first: $n) { id } }`:                    {nil, Weight{2, 2, 1, 0, 10 + 9, 0}},
		`query($n: Int = 9) { nodes(first: $n) { name } }`:                  {map[string]any{"n": nil}, Weight{2, 2, 1, 0, 10 + 50, 0}},
		`query($n: Int) { nodes(first: $n) { id name } }`:                   {map[string]any{"n": "many"}, Weight{2, 3, 1, 0, 10 + 200, 0}},
		`{ all { items { items { id } } } }`:                                {nil, Weight{4, 4, 1, 0, 10 + 50*(1+3*(1+3)), 0}},
		`{ item { ...A ...A } } fragment A on Item { id x: next { id } }`:   {nil, Weight{3, 7, 1, 2, 10 + 6, 0}},
		`{ ...Q } fragment Q on Query { ... on Query { a: name b: name } }`: {nil, Weight{1, 2, 2, 2, 2, 0}},
		`query A { name } query B { all { id } }`:                           {nil, Weight{1, 1, 1, 0, 1, 0}},
		`mutation { touch { id } }`:                                         {nil, Weight{2, 2, 1, 0, 2, 0}},
		`{ nothing { of: this } ...Unknown }`:                               {nil, Weight{2, 2, 1, 1, 2, 0}},
		`query($n: Int) { ...P } fragment P on Query { nodes(last: $n) {id} }`: {
			map[string]any{"n": 2}, Weight{2, 2, 1, 0, 12, 0}},
	} {
		w, err := weigh(t, query, c.vars, wide)
		require.NoError(t, err, query)
		require.Positive(t, w.Nodes, query)
		w.Nodes = 0 // has its own test
		require.Equal(t, c.want, w, query)
	}
}

// bomb is a document whose fields double with each level of fragments.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("{ item { ...F0 } }\n")
	for i := range levels {
		fmt.Fprintf(&b, "fragment F%d on Item { next { ...F%d } next { ...F%d } }\n", i, i+1, i+1)
	}
	fmt.Fprintf(&b, "fragment F%d on Item { id }", levels)
	return b.String()
}

func TestDoublingFragmentsAreWeighedOnce(t *testing.T) {
	t.Parallel()
	_, err := weigh(t, bomb(60), nil, Limits{Depth: 12, Fields: 3000, Roots: 50, Aliases: 300, Cost: 40_000, Nodes: 16_000})
	var r *Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, "the query has 62 levels of nested fields; at most 12 are allowed", r.Msg)
	w, err := weigh(t, bomb(60), nil, wide)
	require.NoError(t, err)
	require.Equal(t, top, w.Fields)
	doc := parse(t, bomb(60))
	k := walkerOf(t.Context(), doc)
	_, err = k.set(doc.Operations[0].SelectionSet, schema.Query)
	require.NoError(t, err)
	require.Equal(t, selections(doc), k.steps)
}

// What the validator visits counts, whether or not it asks for fields, and once more for each operation and fragment that leads there.
func TestNodesAreWhatIsValidated(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]int{
		`{ name }`:                                                            1,
		`{ item(id: 1) { name(lang: "x") } }`:                                 4,
		`{ name @include(if: [true, true]) }`:                                 5,
		`{ ... @a { name } ...X @b }`:                                         5,
		`{ ...F } fragment F on Query { ...X ...X }`:                          1 + 2 + 2,
		`query A { ...F } query B { ...F } fragment F on Query { ...X ...X }`: 3 + 1 + 3 + 2,
	} {
		limits := wide
		limits.Nodes = want
		_, err := weigh(t, query, nil, limits)
		require.NoError(t, err, query)
		limits.Nodes--
		_, err = weigh(t, query, nil, limits)
		require.ErrorContains(t, err, fmt.Sprintf("the query has %d selections", want), query)
	}
}

func TestEveryLimitRefusesWithItsNumber(t *testing.T) {
	t.Parallel()
	for query, c := range map[string]struct {
		limits Limits
		want   string
	}{
		`{ item { next { id } } }`: {Limits{2, top, top, top, top, top}, "the query has 3 levels of nested fields; at most 2 are allowed"},
		`{ item { id name } }`:     {Limits{top, 2, top, top, top, top}, "the query has 3 fields with its fragments; at most 2 are allowed"},
		`{ a: name b: name name }`: {Limits{top, top, 2, top, top, top}, "the query has 3 queries in one operation; at most 2 are allowed"},
		`{ a: name b: name }`:      {Limits{top, top, top, 1, top, top}, "the query has 2 aliases with its fragments; at most 1 are allowed"},
		`{ items(limit: 9) { id } }`: {Limits{top, top, top, top, 18, top},
			"the query has 19 units of cost, where a list costs its fields times its items; at most 18 are allowed"},
		// What is not executed is bounded, too: the validator reads it.
		`query A { name } query B { item { id name } }`: {Limits{top, 3, top, top, top, top},
			"the query has 4 fields with its fragments; at most 3 are allowed"},
		`{ name } fragment X on Item { id name next { id } }`: {Limits{top, 3, top, top, top, top},
			"the query has 4 fields with its fragments; at most 3 are allowed"},
	} {
		_, err := weigh(t, query, nil, c.limits)
		require.EqualError(t, err, c.want, query)
	}
}

func TestFragmentsThatSpreadThemselvesAreRefused(t *testing.T) {
	t.Parallel()
	for _, query := range []string{
		`{ item { ...A } } fragment A on Item { next { ...A } }`,
		`{ item { ...A } } fragment A on Item { ...B } fragment B on Item { next { ...C } } fragment C on Item { ...A }`,
		`{ name } fragment A on Item { ...A }`,
	} {
		_, err := weigh(t, query, nil, wide)
		require.EqualError(t, err, `Cannot spread fragment "A" within itself`, query)
	}
}

func TestWalkAndMergeEndWithTheirContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	doc := parse(t, "{"+strings.Repeat(" name", 200)+"}")
	_, err := Walk(ctx, schema, doc, doc.Operations[0], nil, testPrices, wide)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, Merge(ctx, schema, doc), context.Canceled)
}

func TestMergeRefusesWhatConflicts(t *testing.T) {
	t.Parallel()
	differ := func(name, why string) string { return fmt.Sprintf("Fields %q conflict because %s", name, why) }
	args := "they have differing arguments"
	for query, want := range map[string]string{
		`{ name name item(id: 1) { id } item(id: 1) { name } }`:                        "",
		`{ a: item { x: name } b: item { x: id } }`:                                    "",
		`{ item(id: 1) { id } item(id: 2) { id } }`:                                    differ("item", args),
		`{ a: name a: all { id } }`:                                                    differ("a", "name and all are different fields"),
		`{ item { x: id } item { x: name } }`:                                          differ("x", "id and name are different fields"),
		`{ item { x: id ...F } } fragment F on Item { x: name }`:                       differ("x", "id and name are different fields"),
		`{ ...Q item { x: id } } fragment Q on Query { item { x: name(lang: "en") } }`: differ("x", "name and id are different fields"),
		`{ item { ... on Item { x: id } ... on Other { x: name } } }`:                  "",
		`query A { name } query B { a: name a: item { id } }`:                          differ("a", "name and item are different fields"),
	} {
		err := Merge(t.Context(), schema, parse(t, query))
		if want == "" {
			require.NoError(t, err, query)
		} else {
			require.EqualError(t, err, want, query)
		}
	}
}

func walkerOf(ctx context.Context, doc *ast.QueryDocument) *walker {
	w := &walker{ctx: ctx, schema: schema, prices: testPrices, fragments: map[string]*fragment{}}
	for _, f := range doc.Fragments {
		w.fragments[f.Name] = &fragment{def: f}
	}
	return w
}

// selections counts the selections of the text of a document.
func selections(doc *ast.QueryDocument) int {
	var count func(ast.SelectionSet) int
	count = func(set ast.SelectionSet) int {
		n := len(set)
		for _, s := range set {
			switch s := s.(type) {
			case *ast.Field:
				n += count(s.SelectionSet)
			case *ast.InlineFragment:
				n += count(s.SelectionSet)
			}
		}
		return n
	}
	n := 0
	for _, o := range doc.Operations {
		n += count(o.SelectionSet)
	}
	for _, f := range doc.Fragments {
		n += count(f.SelectionSet)
	}
	return n
}

var errLong = errors.New("the expansion is too long to be written out")

// naive weighs a selection set by following every spread; room bounds how many selections it follows.
func naive(w *walker, doc *ast.QueryDocument, set ast.SelectionSet, of *ast.Definition, room *int) (sum Weight, err error) {
	for _, s := range set {
		if *room--; *room < 0 {
			return sum, errLong
		}
		var it Weight
		switch s := s.(type) {
		case *ast.Field:
			var below *ast.Definition
			price := Price{}
			if of != nil {
				price = testPrices[of.Name+"."+s.Name]
				if def := of.Fields.ForName(s.Name); def != nil {
					below = schema.Types[def.Type.Name()]
				}
			}
			child, err := naive(w, doc, s.SelectionSet, below, room)
			if err != nil {
				return sum, err
			}
			it = Weight{child.Depth + 1, child.Fields + 1, 1, child.Aliases, max(price.Flat, 1) + w.items(s, price)*child.Cost, 0}
			if s.Alias != s.Name {
				it.Aliases++
			}
		case *ast.InlineFragment:
			on := of
			if s.TypeCondition != "" {
				on = schema.Types[s.TypeCondition]
			}
			if it, err = naive(w, doc, s.SelectionSet, on, room); err != nil {
				return sum, err
			}
		case *ast.FragmentSpread:
			f := doc.Fragments.ForName(s.Name)
			if f == nil {
				continue
			}
			if it, err = naive(w, doc, f.SelectionSet, schema.Types[f.TypeCondition], room); err != nil {
				return sum, err
			}
		}
		sum.Depth = max(sum.Depth, it.Depth)
		sum.Fields, sum.Roots, sum.Aliases, sum.Cost = sum.Fields+it.Fields, sum.Roots+it.Roots, sum.Aliases+it.Aliases, sum.Cost+it.Cost
	}
	return sum, nil
}

// FuzzWalk holds two things for every document: the walk makes one step for each selection of the text at most, and where the
// expansion is short enough to be written out, its weight is that of the expansion.
func FuzzWalk(f *testing.F) {
	for _, seed := range []string{
		`{ name }`, bomb(3), bomb(40), `{ item { ...A ...A } } fragment A on Item { id ...B } fragment B on Item { name }`,
		`{ ...A } fragment A on Query { ...A }`, `query($n: Int = 3) { nodes(first: $n) { id } } query B { name }`,
		`{ items(limit: 7) { a: items { items { b: id } } } ... on Query { name } ... @skip(if: true) { x: name } }`,
		`fragment A on Item { id } fragment A on Item { name } { item { ...A } }`, `mutation { touch(id: 1) { next { next { id } } } }`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		doc, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: query}, 8_000)
		if err != nil || len(doc.Operations) == 0 {
			return
		}
		seen := map[string]bool{}
		for _, fr := range doc.Fragments {
			if seen[fr.Name] {
				return // the validator refuses two of one name
			}
			seen[fr.Name] = true
		}
		op := doc.Operations[0]
		k := walkerOf(t.Context(), doc)
		k.defaults = op.VariableDefinitions
		got, err := k.set(op.SelectionSet, rootType(schema, op.Operation))
		if k.steps > selections(doc) {
			t.Fatalf("%d steps for %d selections", k.steps, selections(doc))
		}
		if _, werr := Walk(t.Context(), schema, doc, op, nil, testPrices, wide); werr == nil && err != nil {
			t.Fatalf("the walk of the document succeeds, the one of its operation fails: %v", err)
		}
		if err != nil {
			return
		}
		room := 20_000
		want, nerr := naive(k, doc, op.SelectionSet, rootType(schema, op.Operation), &room)
		if nerr != nil || want.Cost > top {
			return
		}
		got.Nodes = 0 // counts what the expansion does not have
		if got != want {
			t.Fatalf("the walk says %+v, the expansion %+v", got, want)
		}
		m := &merger{ctx: t.Context(), schema: schema, fragments: map[string]*ast.FragmentDefinition{}, args: map[*ast.Field]string{}}
		for _, fr := range doc.Fragments {
			m.fragments[fr.Name] = fr
		}
		_ = m.scope([]scoped{{op.SelectionSet, nameOf(rootType(schema, op.Operation))}})
		if m.steps > 20_000 {
			t.Fatalf("merging took %d steps for an expansion of %d", m.steps, 20_000-room)
		}
	})
}
