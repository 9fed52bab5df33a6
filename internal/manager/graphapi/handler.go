// Package graphapi answers the wire's GraphQL: it decodes a request, resolves fields by
// calling nouns and encodes the envelope that the two entry points ask for. It holds no
// SQL and no rules; the nouns decide who may do what. httpapi authenticates and mounts it.
//
// gqlexec and model are generated from schema.graphql by `make gen`.
package graphapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/executor"
	"github.com/99designs/gqlgen/graphql/handler/lru"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi/cost"
	"berth.dev/berth/internal/manager/graphapi/gqlexec"
	"berth.dev/berth/internal/manager/nouns"
)

// maxBodyFrame is what a request may hold beside its query and its variables.
const maxBodyFrame = 4 << 10

// Budget counts what users spend; see throttle.RateLimiter.
type Budget interface {
	// Spend takes amount of what key may spend in the limiter's window, unless more than limit would be spent.
	Spend(ctx context.Context, key string, amount, limit int) bool
}

// Deps are what a Handler works with; all are required.
type Deps struct {
	Nouns *nouns.Set
	// Actor returns the caller that httpapi authenticated; ok is false for anonymous requests.
	Actor func(context.Context) (authz.Actor, bool)
	// HidesTrash reports whether the request's client knows no trash bin of folders; nil means that all do.
	HidesTrash func(*http.Request) bool
	// Fail writes a fault as problem+json.
	Fail func(http.ResponseWriter, *http.Request, error)
	// Budget counts cost by user and minute; nil counts nothing.
	Budget Budget
	// Config nil takes the defaults.
	Config *Config
	Log    *slog.Logger
}

// Handler serves /admin/gql (standard envelope, always 200) and /admin/graphql (bare data;
// errors as a 400 problem with the list in data).
type Handler struct {
	deps   Deps
	cfg    Config
	schema graphql.ExecutableSchema
	exec   *executor.Executor
	prices cost.Prices
	// valid are documents that passed validation.
	valid *lru.LRU[*ast.QueryDocument]
	turns turns
}

// New builds the handler.
func New(deps Deps) *Handler {
	n := deps.Nouns
	schema := gqlexec.NewExecutableSchema(gqlexec.Config{Resolvers: &resolver{
		tenancy: n.Tenancy, otp: n.OTP, purges: n.Purges,
		resources: n.Resources, images: n.Images, nodes: n.Nodes, folders: n.Folders, sessions: n.Sessions,
		idle: n.Idle, audit: n.Audit,
		actor: deps.Actor,
	}})
	h := &Handler{deps: deps, cfg: DefaultConfig(), schema: schema, exec: executor.New(schema), prices: pricesOf(schema.Schema()),
		valid: lru.New[*ast.QueryDocument](keptDocuments)}
	if deps.Config != nil {
		h.cfg = *deps.Config
	}
	h.turns = turns{most: h.cfg.MaxConcurrent}
	h.exec.SetErrorPresenter(h.present)
	h.exec.SetRecoverFunc(h.recovered)
	return h
}

func (h *Handler) recovered(_ context.Context, v any) error {
	h.deps.Log.Error("graphql resolver panicked", "panic", v)
	return fault.New(fault.Internal, "the server failed while answering this field")
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := h.read(w, r)
	if err != nil {
		h.deps.Fail(w, r, err)
		return
	}
	ctx := r.Context()
	if h.deps.HidesTrash != nil && h.deps.HidesTrash(r) {
		ctx = context.WithValue(ctx, withoutTrashKey{}, true)
	}
	resp, err := h.execute(ctx, req)
	if err != nil {
		h.deps.Fail(w, r, err)
		return
	}
	for _, e := range resp.Errors {
		if fault.ReasonOf(e.Err) == fault.DatabaseAway { // half an answer says that objects are missing which are there
			h.deps.Fail(w, r, e.Err)
			return
		}
	}
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

// read decodes a request and bounds its parts.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (req api.GraphQLRequest, err error) {
	var sent struct {
		api.GraphQLRequest
		Variables json.RawMessage `json:"variables"`
	}
	// A query is quoted in the body, which at most doubles it, but for text that nobody sends.
	most := 2*h.cfg.MaxQueryBytes + h.cfg.MaxVariablesBytes + maxBodyFrame
	bad := func(cause error) error {
		return fault.Invalidf("the body is not a GraphQL request").WithCause(cause).
			WithNext(`send {"query": "...", "variables": {...}} of at most %d bytes`, most)
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, int64(most))).Decode(&sent); err != nil {
		return req, bad(err)
	}
	if len(sent.Query) > h.cfg.MaxQueryBytes {
		return req, fault.Invalidf("the query is %d bytes long; at most %d are allowed", len(sent.Query), h.cfg.MaxQueryBytes).
			WithNext("send several requests, or values as variables")
	}
	if len(sent.Variables) > h.cfg.MaxVariablesBytes {
		return req, fault.Invalidf("the variables are %d bytes long; at most %d are allowed", len(sent.Variables), h.cfg.MaxVariablesBytes).
			WithNext("send several requests")
	}
	req = sent.GraphQLRequest
	if len(sent.Variables) > 0 {
		vars := json.NewDecoder(bytes.NewReader(sent.Variables))
		vars.UseNumber()
		if err := vars.Decode(&req.Variables); err != nil {
			return req, bad(err)
		}
	}
	if req.OperationName == "" {
		req.OperationName = req.OldOperationName
	}
	return req, nil
}

// execute answers a request in its caller's turn. Errors are those that the caller can only wait out.
func (h *Handler) execute(ctx context.Context, req api.GraphQLRequest) (*graphql.Response, error) {
	actor, _ := h.deps.Actor(ctx)
	leave, err := h.turns.enter(ctx, actor.UserID)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx = graphql.StartOperationTrace(withLoaders(ctx, h.deps))
	op, errs := h.prepare(ctx, req)
	if errs != nil {
		none := &graphql.OperationContext{RawQuery: req.Query, RecoverFunc: h.recovered}
		return h.exec.DispatchError(graphql.WithOperationContext(ctx, none), errs), nil
	}
	key := "graphql:" + string(actor.UserID)
	if h.deps.Budget != nil && !h.deps.Budget.Spend(ctx, key, op.weight.Cost, h.cfg.CostPerMinute) {
		return nil, fault.Exhaustedf("your GraphQL requests cost more than %d units in a minute; this one costs %d",
			h.cfg.CostPerMinute, op.weight.Cost).WithReason(reasonRateLimit).
			WithNext("wait a minute, ask for smaller pages, or ask an administrator to raise manager.graphql.cost_per_minute")
	}
	responses, ctx := h.exec.DispatchOperation(graphql.WithOperationContext(ctx, op.ctx), op.ctx)
	return responses(ctx), nil
}

// present turns a fault into a GraphQL error with words for people; what is internal is
// logged here and hidden.
func (h *Handler) present(ctx context.Context, err error) *gqlerror.Error {
	out := graphql.DefaultErrorPresenter(ctx, err)
	var f *fault.Error
	if errors.Is(err, context.Canceled) {
		return out // nobody reads it
	}
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
