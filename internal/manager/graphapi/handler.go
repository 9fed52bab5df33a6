// Package graphapi answers the wire's GraphQL: it decodes a request, resolves fields by
// calling nouns and encodes the envelope that the two entry points ask for. It holds no
// SQL and no rules; the nouns decide who may do what. httpapi authenticates and mounts it.
//
// gqlexec and model are generated from schema.graphql by `make gen`.
package graphapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/executor"
	"github.com/99designs/gqlgen/graphql/handler/extension"
	"github.com/99designs/gqlgen/graphql/handler/lru"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/validator/core"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi/gqlexec"
	"berth.dev/berth/internal/manager/nouns"
)

const (
	// maxDepth bounds nesting; the deepest query of the official clients has 4 levels.
	maxDepth = 12
	// maxCost bounds the number of fields resolved, lists counted with their limit. The
	// widest query of the official clients asks 100 sessions with all fields and containers.
	maxCost = 40_000
	// maxTokens bounds the parser.
	maxTokens = 8_000
	// maxBody bounds a request.
	maxBody = 1 << 20
)

// Deps are what a Handler works with; all are required.
type Deps struct {
	Nouns *nouns.Set
	// Actor returns the caller that httpapi authenticated; ok is false for anonymous requests.
	Actor func(context.Context) (authz.Actor, bool)
	// Fail writes a fault as problem+json.
	Fail func(http.ResponseWriter, *http.Request, error)
	Log  *slog.Logger
}

// Handler serves /admin/gql (standard envelope, always 200) and /admin/graphql (bare data;
// errors as a 400 problem with the list in data).
type Handler struct {
	deps Deps
	exec *executor.Executor
}

// New builds the handler.
func New(deps Deps) *Handler {
	n := deps.Nouns
	cfg := gqlexec.Config{Resolvers: &resolver{
		tenancy: n.Tenancy, resources: n.Resources, images: n.Images, nodes: n.Nodes, folders: n.Folders, sessions: n.Sessions, idle: n.Idle,
		actor: deps.Actor,
	}}
	setCosts(&cfg.Complexity)
	e := executor.New(gqlexec.NewExecutableSchema(cfg))
	e.SetParserTokenLimit(maxTokens)
	e.SetQueryCache(lru.New[*ast.QueryDocument](256))
	e.SetDefaultRulesFn(lenientRules)
	e.Use(extension.FixedComplexityLimit(maxCost))
	h := &Handler{deps: deps, exec: e}
	e.SetErrorPresenter(h.present)
	e.SetRecoverFunc(func(_ context.Context, v any) error {
		deps.Log.Error("graphql resolver panicked", "panic", v)
		return fault.New(fault.Internal, "the server failed while answering this field")
	})
	return h
}

// lenientRules are the standard validation rules less those that official clients
// break: they send unused fragments and variables and declare String! for UUID!.
func lenientRules() *rules.Rules {
	r := rules.NewDefaultRules()
	for _, name := range []string{"NoUnusedFragments", "NoUnusedVariables", "VariablesInAllowedPosition", "MaxIntrospectionDepth"} {
		r.RemoveRule(name)
	}
	r.AddRule("MaxDepth", depthRule)
	return r
}

func depthRule(observers *core.Events, addError core.AddErrFunc) {
	observers.OnOperation(func(walker *core.Walker, operation *ast.OperationDefinition) {
		if d := depth(operation.SelectionSet, walker.Document, map[string]bool{}); d > maxDepth {
			addError(core.Message("The query is nested %d levels deep; at most %d are allowed.", d, maxDepth), core.At(operation.Position))
		}
	})
}

// depth measures nesting; seen breaks fragment cycles, which another rule reports.
func depth(set ast.SelectionSet, doc *ast.QueryDocument, seen map[string]bool) int {
	deepest := 0
	for _, s := range set {
		d := 0
		switch s := s.(type) {
		case *ast.Field:
			d = 1 + depth(s.SelectionSet, doc, seen)
		case *ast.InlineFragment:
			d = depth(s.SelectionSet, doc, seen)
		case *ast.FragmentSpread:
			f := doc.Fragments.ForName(s.Name)
			if f == nil || seen[s.Name] {
				continue
			}
			seen[s.Name] = true
			d = depth(f.SelectionSet, doc, seen)
			delete(seen, s.Name)
		}
		deepest = max(deepest, d)
		if deepest > maxDepth {
			return deepest
		}
	}
	return deepest
}

// setCosts multiplies the cost of lists by the number of items they may return.
func setCosts(c *gqlexec.ComplexityRoot) {
	c.Queries.ComputeSessionList = func(child, limit, _ int, _, _, _, _, _, _ *string) int { return pageCost(child, limit) }
	c.Queries.ComputeContainerList = func(child, limit, _ int, _, _ *string, _ string, _ *string) int { return pageCost(child, limit) }
	c.Queries.AgentList = func(child, limit, _ int, _, _, _, _ *string) int { return pageCost(child, limit) }
	c.Queries.KeypairList = func(child, limit, _ int, _, _, _, _ *string, _ *bool) int { return pageCost(child, limit) }
	setFolderCosts(c)
	c.ComputeSession.Containers = func(child int) int { return 2 * child }
	c.ComputeSession.Explanation = func(child int) int { return 50 + child }
	c.ComputeSession.Dependencies = func(child int) int { return 2 * child }
	c.Agent.ComputeContainers = func(child int, _ *string) int { return 8 * child }
}

func pageCost(child, limit int) int { return child * min(max(limit, 1), 100) }

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req api.GraphQLRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.UseNumber()
	if err := dec.Decode(&req); err != nil {
		h.deps.Fail(w, r, fault.Invalidf("the body is not a GraphQL request").WithCause(err).
			WithNext(`send {"query": "...", "variables": {...}} of at most %d bytes`, maxBody))
		return
	}
	if req.OperationName == "" {
		req.OperationName = req.OldOperationName
	}
	resp := h.execute(r.Context(), req)
	if strings.HasSuffix(r.URL.Path, "/graphql") {
		if len(resp.Errors) > 0 {
			h.deps.Fail(w, r, fault.Invalidf("%s", resp.Errors[0].Message).WithReason("graphql-error").WithData(resp.Errors))
			return
		}
		writeJSON(w, resp.Data)
		return
	}
	writeJSON(w, resp)
}

func (h *Handler) execute(ctx context.Context, req api.GraphQLRequest) *graphql.Response {
	ctx = graphql.StartOperationTrace(withLoaders(ctx, h.deps))
	opCtx, errs := h.exec.CreateOperationContext(ctx, &graphql.RawParams{
		Query: req.Query, Variables: req.Variables, OperationName: req.OperationName,
		ReadTime: graphql.TraceTiming{Start: graphql.Now(), End: graphql.Now()},
	})
	if errs != nil {
		return h.exec.DispatchError(graphql.WithOperationContext(ctx, opCtx), errs)
	}
	responses, ctx := h.exec.DispatchOperation(ctx, opCtx)
	return responses(ctx)
}

// present turns a fault into a GraphQL error with words for people; what is internal is
// logged here and hidden.
func (h *Handler) present(ctx context.Context, err error) *gqlerror.Error {
	out := graphql.DefaultErrorPresenter(ctx, err)
	var f *fault.Error
	if !errors.As(err, &f) {
		var g *gqlerror.Error
		if errors.As(err, &g) && g.Unwrap() == nil {
			return out // of the parser or a validation rule
		}
		h.deps.Log.Error("graphql field failed", "path", out.Path.String(), "err", err)
		out.Message = "the server failed while answering this field"
		return out
	}
	if f.Kind == fault.Internal {
		h.deps.Log.Error("graphql field failed", "path", out.Path.String(), "err", err)
	}
	out.Message = wireWords(err, f.Msg)
	if next := fault.NextOf(err); next != "" {
		out.Message += "; " + next
	}
	out.Extensions = map[string]any{"code": f.Kind.String()}
	return out
}

// wireWords is a message of err with the wire's word for the object that it is about.
func wireWords(err error, msg string) string {
	if d, ok := fault.DataOf(err).(map[string]string); ok {
		return api.WireMessage(msg, d["object"])
	}
	return msg
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	body, err := json.Marshal(v)
	if err != nil { // a resolver returned something that is not JSON: a defect
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(body) // the client has gone when this fails
}
