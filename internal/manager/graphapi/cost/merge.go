package cost

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
)

// Merge reports fields of one selection set that have the same name in the answer and ask for different things. It replaces the
// rule OverlappingFieldsCanBeMerged of the validator, which compares every pair of fields and grows with the square of a document, or
// faster. Merge visits each field of the expanded document once; call it after Walk has bounded their number.
//
// It is stricter and looser than the rule in one point each, and both are harmless: of fields that repeat, all must ask for what
// the first does; fields below different type conditions are not compared, because an object has one type.
func Merge(ctx context.Context, schema *ast.Schema, doc *ast.QueryDocument) error {
	m := &merger{ctx: ctx, schema: schema, fragments: make(map[string]*ast.FragmentDefinition, len(doc.Fragments)),
		args: map[*ast.Field]string{}}
	for _, f := range doc.Fragments {
		if m.fragments[f.Name] == nil {
			m.fragments[f.Name] = f
		}
	}
	for _, o := range doc.Operations {
		if err := m.scope([]scoped{{o.SelectionSet, nameOf(rootType(schema, o.Operation))}}); err != nil {
			return err
		}
	}
	return nil
}

// scoped is a selection set on a type; on is "" when the type is unknown.
type scoped struct {
	set ast.SelectionSet
	on  string
}

type merger struct {
	ctx       context.Context
	schema    *ast.Schema
	fragments map[string]*ast.FragmentDefinition
	args      map[*ast.Field]string
	steps     int
}

func nameOf(t *ast.Definition) string {
	if t == nil {
		return ""
	}
	return t.Name
}

// typeOf is the name of the type of a field; "" when it is unknown.
func (m *merger) typeOf(on, field string) string {
	of := m.schema.Types[on]
	if of == nil {
		return ""
	}
	def := of.Fields.ForName(field)
	if def == nil {
		return ""
	}
	return def.Type.Name()
}

// same are the fields that become one member of the answer.
type same struct {
	first *ast.Field
	below []scoped
}

type memberKey struct{ on, name string }

// scope checks selection sets that are answered by the same object.
func (m *merger) scope(sets []scoped) error {
	members := map[memberKey]*same{}
	var order []*same
	seen := map[string]bool{}
	var collect func(s scoped) error
	collect = func(s scoped) error {
		for _, sel := range s.set {
			if m.steps++; m.steps%64 == 0 && m.ctx.Err() != nil {
				return m.ctx.Err()
			}
			switch sel := sel.(type) {
			case *ast.Field:
				key := memberKey{s.on, sel.Alias}
				if sel.Alias == "" {
					key.name = sel.Name
				}
				it := members[key]
				if it == nil {
					it = &same{first: sel}
					members[key] = it
					order = append(order, it)
				} else if err := m.equal(key.name, it.first, sel); err != nil {
					return err
				}
				if len(sel.SelectionSet) > 0 {
					it.below = append(it.below, scoped{sel.SelectionSet, m.typeOf(s.on, sel.Name)})
				}
			case *ast.InlineFragment:
				on := s.on
				if sel.TypeCondition != "" {
					on = sel.TypeCondition
				}
				if err := collect(scoped{sel.SelectionSet, on}); err != nil {
					return err
				}
			case *ast.FragmentSpread:
				f := m.fragments[sel.Name]
				if f == nil || seen[sel.Name] {
					continue
				}
				seen[sel.Name] = true
				if err := collect(scoped{f.SelectionSet, f.TypeCondition}); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, s := range sets {
		if err := collect(s); err != nil {
			return err
		}
	}
	for _, it := range order {
		if len(it.below) > 0 {
			if err := m.scope(it.below); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *merger) equal(name string, a, b *ast.Field) error {
	reason := ""
	switch {
	case a.Name != b.Name:
		reason = fmt.Sprintf("%s and %s are different fields", a.Name, b.Name)
	case m.arguments(a) != m.arguments(b):
		reason = "they have differing arguments"
	default:
		return nil
	}
	return &Refusal{Msg: fmt.Sprintf("Fields %q conflict because %s", name, reason),
		Next: "use different aliases on the fields to fetch both if this was intentional", Position: b.Position}
}

// arguments is the text of a field's arguments, in order of names as far as order matters.
func (m *merger) arguments(f *ast.Field) string {
	if len(f.Arguments) == 0 {
		return ""
	}
	if text, ok := m.args[f]; ok {
		return text
	}
	texts := make([]string, 0, len(f.Arguments))
	for _, a := range f.Arguments {
		texts = append(texts, a.Name+":"+a.Value.String())
	}
	slices.Sort(texts)
	text := strings.Join(texts, ",")
	m.args[f] = text
	return text
}
