// Package cost says how much work a GraphQL document asks for, before any other code looks at the document.
//
// Fragments make a short document long: each may be spread several times, and may itself spread others. A validator or an
// executor that follows every spread does work that grows exponentially with the document. Walk visits every selection of the
// document once. It keeps what it found about a fragment and multiplies where the fragment is spread, in arithmetic that
// saturates. It is pure: variables, prices and limits are arguments.
package cost

import (
	"cmp"
	"context"
	"fmt"

	"github.com/vektah/gqlparser/v2/ast"
)

// Limits bound a document. Config has the defaults.
type Limits struct {
	// Depth bounds how deep fields are nested.
	Depth int
	// Fields bounds the fields of all operations, fragments expanded and lists counted once.
	Fields int
	// Roots bounds the fields of the operation's root: each is a query to the database of its own.
	Roots int
	// Aliases bounds the fields that have another name in the answer than in the schema, fragments expanded.
	Aliases int
	// Cost bounds the fields that the answer may hold, lists counted with their items and fields with their prices.
	Cost int
	// Nodes bounds what the validator visits: for each operation and each fragment of the document all selections, directives and values
	// below it, fragments expanded.
	Nodes int
}

// Price is what a field costs beside its selection.
type Price struct {
	// Flat is the price of the field itself; 0 means 1.
	Flat int
	// Items is how many items a list without a page argument is counted with; 0 means 1.
	Items int
	// Page says that the arguments limit, first and last bound the items; without any of them Items counts.
	Page bool
	// Most is the largest page; 0 means MaxItems.
	Most int
}

// Prices are the prices of fields by "Type.field".
type Prices map[string]Price

// MaxItems is the largest page: nouns return no more items at once.
const MaxItems = 100

// Weight is what a selection asks for.
type Weight struct {
	Depth, Fields, Roots, Aliases, Cost, Nodes int
}

// Refusal says why a document is refused.
type Refusal struct {
	// Msg says what is too much, with both numbers; Next what to do.
	Msg, Next string
	Position  *ast.Position
}

func (r *Refusal) Error() string { return r.Msg }

// top is where arithmetic saturates: sums and products of two such numbers still fit.
const top = 1 << 30

func add(a, b int) int { return min(a+b, top) }
func mul(a, b int) int { return min(a*b, top) }

// Walk weighs all operations of doc and returns the weight of op, which is one of them. It returns a *Refusal when doc exceeds a
// limit or holds a fragment that spreads itself, and the error of ctx when that ends. Fields, types and fragments that the schema or
// the document does not have count as leaves; validation reports them later.
func Walk(ctx context.Context, schema *ast.Schema, doc *ast.QueryDocument, op *ast.OperationDefinition, vars map[string]any,
	prices Prices, limits Limits) (Weight, error) {
	w := &walker{ctx: ctx, schema: schema, prices: prices, fragments: make(map[string]*fragment, len(doc.Fragments))}
	for _, f := range doc.Fragments {
		if w.fragments[f.Name] == nil {
			w.fragments[f.Name] = &fragment{def: f}
		}
	}
	// The operation that is executed comes first: only its cost depends on variables, and what is kept of fragments is then right for it.
	w.vars, w.defaults = vars, op.VariableDefinitions
	of, err := w.set(op.SelectionSet, rootType(schema, op.Operation))
	if err != nil {
		return Weight{}, err
	}
	all := of
	for _, o := range doc.Operations {
		if o == op {
			continue
		}
		it, err := w.set(o.SelectionSet, rootType(schema, o.Operation))
		if err != nil {
			return Weight{}, err
		}
		all.Depth, all.Roots = max(all.Depth, it.Depth), max(all.Roots, it.Roots)
		all.Fields, all.Aliases, all.Nodes = add(all.Fields, it.Fields), add(all.Aliases, it.Aliases), add(all.Nodes, add(it.Nodes, 1))
	}
	// Fragments that nobody spreads are validated all the same, and the others once more by themselves.
	for _, f := range doc.Fragments {
		it, err := w.spread(f.Name, f.Position)
		if err != nil {
			return Weight{}, err
		}
		all.Depth, all.Fields, all.Nodes = max(all.Depth, it.Depth), max(all.Fields, it.Fields), add(all.Nodes, it.Nodes)
	}
	return of, limits.check(all, op.Position)
}

func rootType(schema *ast.Schema, kind ast.Operation) *ast.Definition {
	switch kind {
	case ast.Mutation:
		return schema.Mutation
	case ast.Subscription:
		return schema.Subscription
	}
	return schema.Query
}

func (l Limits) check(w Weight, at *ast.Position) error {
	for _, c := range []struct {
		is, most int
		what     string
		next     string
	}{
		{w.Depth, l.Depth, "levels of nested fields", "ask for less in one request"},
		{w.Fields, l.Fields, "fields with its fragments", "ask for less in one request"},
		{w.Roots, l.Roots, "queries in one operation", "send several requests"},
		{w.Aliases, l.Aliases, "aliases with its fragments", "send several requests"},
		{w.Nodes, l.Nodes, "selections, directives and values with its fragments", "send fewer operations and fragments in one document"},
		{w.Cost, l.Cost, "units of cost, where a list costs its fields times its items", "ask for smaller pages or fewer fields"},
	} {
		if c.is > c.most {
			return &Refusal{Msg: fmt.Sprintf("the query has %s %s; at most %d are allowed", number(c.is), c.what, c.most), Next: c.next,
				Position: at}
		}
	}
	return nil
}

func number(n int) string {
	if n >= top {
		return fmt.Sprintf("more than %d", top)
	}
	return fmt.Sprint(n)
}

// fragment is a fragment and, once it was walked, its weight.
type fragment struct {
	def    *ast.FragmentDefinition
	state  state
	weight Weight
}

type state int

const (
	unknown state = iota
	walking
	known
)

type walker struct {
	ctx       context.Context
	schema    *ast.Schema
	prices    Prices
	fragments map[string]*fragment
	vars      map[string]any
	defaults  ast.VariableDefinitionList
	// steps counts selections that were visited; tests look at it.
	steps int
}

func (w *walker) step() error {
	w.steps++
	if w.steps%64 == 0 {
		return w.ctx.Err()
	}
	return nil
}

// set weighs a selection set on a type; of is nil when the type is unknown.
func (w *walker) set(set ast.SelectionSet, of *ast.Definition) (Weight, error) {
	var sum Weight
	for _, s := range set {
		if err := w.step(); err != nil {
			return sum, err
		}
		var it Weight
		var err error
		switch s := s.(type) {
		case *ast.Field:
			it, err = w.field(s, of)
			it.Nodes = add(it.Nodes, nodes(s.Directives, s.Arguments))
		case *ast.InlineFragment:
			on := of
			if s.TypeCondition != "" {
				on = w.schema.Types[s.TypeCondition]
			}
			it, err = w.set(s.SelectionSet, on)
			it.Nodes = add(it.Nodes, nodes(s.Directives, nil))
		case *ast.FragmentSpread:
			it, err = w.spread(s.Name, s.Position)
			it.Nodes = add(it.Nodes, nodes(s.Directives, nil))
		}
		if err != nil {
			return sum, err
		}
		sum.Depth = max(sum.Depth, it.Depth)
		sum.Fields, sum.Roots = add(sum.Fields, it.Fields), add(sum.Roots, it.Roots)
		sum.Aliases, sum.Cost = add(sum.Aliases, it.Aliases), add(sum.Cost, it.Cost)
		sum.Nodes = add(sum.Nodes, add(it.Nodes, 1))
	}
	return sum, nil
}

// nodes are the directives and values of a selection itself.
func nodes(directives ast.DirectiveList, args ast.ArgumentList) (n int) {
	var values func(v *ast.Value)
	values = func(v *ast.Value) {
		n++
		for _, c := range v.Children {
			values(c.Value)
		}
	}
	of := func(args ast.ArgumentList) {
		for _, a := range args {
			values(a.Value)
		}
	}
	of(args)
	for _, d := range directives {
		n++
		of(d.Arguments)
	}
	return n
}

func (w *walker) field(f *ast.Field, of *ast.Definition) (Weight, error) {
	var result *ast.Definition
	price := Price{Flat: 1, Items: 1}
	if of != nil {
		if p, ok := w.prices[of.Name+"."+f.Name]; ok {
			price = p
		}
		if def := of.Fields.ForName(f.Name); def != nil {
			result = w.schema.Types[def.Type.Name()]
		}
	}
	child, err := w.set(f.SelectionSet, result)
	if err != nil {
		return child, err
	}
	it := Weight{Depth: add(child.Depth, 1), Fields: add(child.Fields, 1), Roots: 1, Aliases: child.Aliases,
		Nodes: child.Nodes}
	if f.Alias != "" && f.Alias != f.Name {
		it.Aliases = add(it.Aliases, 1)
	}
	it.Cost = add(max(price.Flat, 1), mul(w.items(f, price), child.Cost))
	return it, nil
}

// items is how many items a list may return.
func (w *walker) items(f *ast.Field, p Price) int {
	n := max(p.Items, 1)
	if !p.Page {
		return n
	}
	asked := 0
	for _, name := range [...]string{"limit", "first", "last"} {
		if arg := f.Arguments.ForName(name); arg != nil {
			asked = max(asked, w.number(arg.Value, cmp.Or(p.Most, MaxItems)))
		}
	}
	if asked == 0 {
		return n
	}
	return asked
}

// number reads a page size: 0 when there is none, most when it cannot be told.
func (w *walker) number(v *ast.Value, most int) int {
	var raw any
	switch v.Kind {
	case ast.IntValue:
		raw = v.Raw
	case ast.Variable:
		given, ok := w.vars[v.Raw]
		if !ok {
			def := w.defaults.ForName(v.Raw)
			if def == nil || def.DefaultValue == nil || def.DefaultValue.Kind == ast.Variable {
				return 0
			}
			return w.number(def.DefaultValue, most)
		}
		raw = given
	case ast.NullValue:
		return 0
	default:
		return most
	}
	if raw == nil {
		return 0
	}
	var n int
	if _, err := fmt.Sscan(fmt.Sprint(raw), &n); err != nil {
		return most
	}
	return min(max(n, 1), most)
}

// spread weighs a fragment, once.
func (w *walker) spread(name string, at *ast.Position) (Weight, error) {
	f := w.fragments[name]
	if f == nil {
		return Weight{}, nil
	}
	switch f.state {
	case known:
		return f.weight, nil
	case walking:
		return Weight{}, &Refusal{Msg: fmt.Sprintf("Cannot spread fragment %q within itself", name), Next: "remove the cycle of fragments",
			Position: at}
	}
	f.state = walking
	it, err := w.set(f.def.SelectionSet, w.schema.Types[f.def.TypeCondition])
	if err != nil {
		return it, err
	}
	f.weight, f.state = it, known
	return it, nil
}
