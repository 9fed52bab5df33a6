package graphapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/errcode"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator"
	"github.com/vektah/gqlparser/v2/validator/core"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/graphapi/cost"
)

// maxSuggesting is the length of queries whose unknown names are compared with all known ones to suggest one. The comparison takes
// time that grows with both lengths.
const maxSuggesting = 4 << 10

// rulesFor are the standard validation rules less those that official clients break (they send unused fragments and variables and
// declare String! for UUID!), those about introspection, which is off, and the one that cost.Merge replaces.
func rulesFor(query string) *rules.Rules {
	r := rules.NewDefaultRules()
	for _, name := range []string{"NoUnusedFragments", "NoUnusedVariables", "VariablesInAllowedPosition", "MaxIntrospectionDepth",
		rules.OverlappingFieldsCanBeMergedRule.Name} {
		r.RemoveRule(name)
	}
	if len(query) <= maxSuggesting {
		return r
	}
	for with, without := range map[string]core.Rule{
		rules.FieldsOnCorrectTypeRule.Name: rules.FieldsOnCorrectTypeRuleWithoutSuggestions,
		rules.KnownArgumentNamesRule.Name:  rules.KnownArgumentNamesRuleWithoutSuggestions,
		rules.KnownTypeNamesRule.Name:      rules.KnownTypeNamesRuleWithoutSuggestions,
		rules.ValuesOfCorrectTypeRule.Name: rules.ValuesOfCorrectTypeRuleWithoutSuggestions,
	} {
		r.RemoveRule(with)
		r.AddRule(without.Name, without.RuleFunc)
	}
	return r
}

// operation is a request that was found to be cheap enough and valid.
type operation struct {
	ctx    *graphql.OperationContext
	weight cost.Weight
}

// prepare reads a request: parse, weigh, validate, in this order, so that nothing looks at a document before its weight is known.
// A document that was valid before is not validated again; it is weighed, because its variables are others.
func (h *Handler) prepare(ctx context.Context, req api.GraphQLRequest) (*operation, gqlerror.List) {
	doc, known := h.valid.Get(ctx, req.Query)
	if !known {
		var err error
		if doc, err = parser.ParseQueryWithTokenLimit(&ast.Source{Input: req.Query}, h.cfg.MaxTokens); err != nil {
			return nil, listOf(err, errcode.ParseFailed)
		}
	}
	if len(doc.Operations) == 0 {
		return nil, listOf(gqlerror.Errorf("no operation provided"), errcode.ValidationFailed)
	}
	op := doc.Operations.ForName(req.OperationName)
	if op == nil {
		return nil, listOf(gqlerror.Errorf("operation %s not found", fault.Clip(req.OperationName, 100)), errcode.ValidationFailed)
	}
	schema := h.schema.Schema()
	weight, err := cost.Walk(ctx, schema, doc, op, req.Variables, h.prices, h.cfg.limits())
	if err == nil && !known {
		err = cost.Merge(ctx, schema, doc)
	}
	if err != nil {
		return nil, listOf(err, errcode.ValidationFailed)
	}
	if !known {
		if list := validator.ValidateWithRules(schema, doc, rulesFor(req.Query)); len(list) > 0 {
			for _, e := range list {
				errcode.Set(e, errcode.ValidationFailed)
			}
			return nil, list[:min(len(list), maxErrors)]
		}
		h.valid.Add(ctx, req.Query, doc)
	}
	vars, err := validator.VariableValues(schema, op, req.Variables)
	if err != nil {
		return nil, listOf(err, errcode.ValidationFailed)
	}
	places := make(chan struct{}, parallelRoots)
	return &operation{weight: weight, ctx: &graphql.OperationContext{
		RawQuery: req.Query, Variables: vars, OperationName: req.OperationName, Doc: doc, Operation: op,
		DisableIntrospection: true, RecoverFunc: h.recovered,
		ResolverMiddleware: func(ctx context.Context, next graphql.Resolver) (any, error) {
			if err := ctx.Err(); err != nil {
				return nil, err // the client left
			}
			return next(ctx)
		},
		RootResolverMiddleware: func(ctx context.Context, next graphql.RootResolver) graphql.Marshaler {
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
			case <-ctx.Done():
			}
			return next(ctx) // fails at its first resolver when the client left
		},
	}}, nil
}

const (
	// maxErrors bounds the errors that are told of one document.
	maxErrors = 20
	// parallelRoots is how many fields of the root are resolved at one time: each holds a connection to the database.
	parallelRoots = 4
	// keptDocuments is how many valid documents are remembered.
	keptDocuments = 256
)

// listOf makes an error of the wire.
func listOf(err error, code string) gqlerror.List {
	var refusal *cost.Refusal
	var out *gqlerror.Error
	switch {
	case errors.As(err, &refusal):
		out = gqlerror.ErrorPosf(refusal.Position, "%s", fmt.Sprintf("%s; %s", refusal.Msg, refusal.Next))
	case errors.As(err, &out):
	default:
		return gqlerror.List{gqlerror.Wrap(err)}
	}
	errcode.Set(out, code)
	return gqlerror.List{out}
}
