package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
)

// GraphQLError is one error of a GraphQL reply. Extensions carry the problem type and
// the next step, as problems of REST do.
type GraphQLError struct {
	Message    string `json:"message"`
	Path       []any  `json:"path,omitempty"`
	Extensions struct {
		Type string `json:"type,omitempty"`
		Next string `json:"next,omitempty"`
	} `json:"extensions"`
}

// slugStatus gives the HTTP status that REST answers for a problem.
var slugStatus = map[string]int{
	SlugNotFound:      http.StatusNotFound,
	SlugAuthFailed:    http.StatusUnauthorized,
	SlugForbidden:     http.StatusForbidden,
	SlugUnavailable:   http.StatusServiceUnavailable,
	SlugRateLimit:     http.StatusTooManyRequests,
	SlugInvalidParams: http.StatusBadRequest,
}

// GraphQLRequest is the body of POST /admin/gql.
type GraphQLRequest struct {
	Query         string         `json:"query"`
	Variables     map[string]any `json:"variables"`
	OperationName string         `json:"operationName,omitempty"`
	// OldOperationName is the same in the spelling of older clients.
	OldOperationName string `json:"operation_name,omitempty"`
}

// GraphQLReply is the answer to a GraphQLRequest.
type GraphQLReply struct {
	Data   json.RawMessage `json:"data"`
	Errors []GraphQLError  `json:"errors,omitempty"`
}

// MutationReply is what mutations without a result of their own answer.
type MutationReply struct {
	OK  bool   `json:"ok"`
	Msg string `json:"msg"`
}

// selection is the GraphQL selection of everything that T reads: the JSON names of its members.
func selection[T any]() string { return selectionOf(reflect.TypeFor[T]()) }

func selectionOf(t reflect.Type) string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i)
		inner := f.Type
		for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			names = append(names, selectionOf(f.Type))
		case inner.Kind() == reflect.Struct:
			names = append(names, name+"{"+selectionOf(inner)+"}")
		default:
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// GraphQL sends a query or mutation and decodes its data into out.
func (c *Client) GraphQL(ctx context.Context, query string, variables map[string]any, out any) error {
	if variables == nil {
		variables = map[string]any{}
	}
	r := request{method: http.MethodPost, path: "/admin/gql", json: GraphQLRequest{Query: query, Variables: variables},
		reads: !strings.Contains(query, "mutation")}
	var reply GraphQLReply
	if err := c.call(ctx, r, &reply); err != nil {
		return err
	}
	if len(reply.Errors) > 0 {
		return graphQLFailure(r.op(), reply.Errors)
	}
	if err := json.Unmarshal(reply.Data, out); err != nil {
		return fmt.Errorf("read GraphQL reply: %w", err)
	}
	return nil
}

func graphQLFailure(op string, errs []GraphQLError) *Error {
	first := errs[0].Extensions
	e := &Error{Status: http.StatusBadRequest, Op: op, Problem: Problem{
		Type: or(first.Type, ProblemPrefix+SlugGraphQL), Title: "GraphQL error", Next: first.Next,
	}}
	if s, ok := slugStatus[e.Slug()]; ok {
		e.Status = s
	}
	msgs := make([]string, 0, len(errs))
	for _, g := range errs {
		msgs = append(msgs, g.Message)
	}
	e.Msg = strings.Join(msgs, "; ")
	return e
}

// Mutate runs a mutation whose field answers ok and msg.
func (c *Client) Mutate(ctx context.Context, field, query string, variables map[string]any) error {
	var out map[string]MutationReply
	if err := c.GraphQL(ctx, query, variables, &out); err != nil {
		return err
	}
	if r := out[field]; !r.OK {
		e := &Error{
			Status: http.StatusBadRequest, Op: field,
			Problem: Problem{Type: ProblemPrefix + SlugGraphQL, Title: "GraphQL error", Msg: or(r.Msg, field+" was refused")},
		}
		if strings.HasPrefix(r.Msg, "no permission") {
			e.Status, e.Type = http.StatusForbidden, ProblemPrefix+SlugForbidden
		}
		return e
	}
	return nil
}

// pageSize is how many items a list asks for at once; the manager allows 1 to 100.
const pageSize = 100

// maxListed bounds a list that asks for everything.
const maxListed = 100_000

// page is the reply of a paged list.
type page[T any] struct {
	Items []T `json:"items"`
	Total int `json:"total_count"`
}

// list reads pages of a list field until limit items or all; limit 0 = all.
func list[T any](ctx context.Context, c *Client, field, query string, vars map[string]any, limit int) ([]T, error) {
	if limit <= 0 {
		limit = maxListed
	}
	items := []T{}
	for len(items) < limit {
		vars["limit"], vars["offset"] = min(pageSize, limit-len(items)), len(items)
		var out map[string]page[T]
		if err := c.GraphQL(ctx, query, vars, &out); err != nil {
			return nil, err
		}
		p, ok := out[field]
		if !ok {
			return nil, errors.New("read GraphQL reply: it lacks " + field)
		}
		items = append(items, p.Items...)
		if len(p.Items) == 0 || len(items) >= p.Total {
			break
		}
	}
	return items, nil
}
