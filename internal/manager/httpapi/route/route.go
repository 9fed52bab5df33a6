// Package route is what the parts of httpapi that stand in packages of their own say of their routes, and how they see a request.
// httpapi mounts the routes and does the rest: who calls, limits, problems.
package route

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/params"
)

// Call is one request, authenticated where its route asks for that.
type Call interface {
	Context() context.Context
	// Actor is the zero Actor on public routes.
	Actor() authz.Actor
	Params() (*params.Set, error)
	// Path is a part of the path by its name in the pattern.
	Path(name string) string
	// Client is the address of who asks, Agent the program.
	Client() netip.Addr
	Agent() string
	// Answer replies with a JSON document, Nothing with status 204.
	Answer(status int, reply any) error
	Nothing() error
	// Header and Query are what the request says of itself, Raw is its body. Reply answers with a body of any type, and with fields.
	Header(name string) string
	Query() url.Values
	Raw(most int64) ([]byte, error)
	Reply(status int, contentType string, fields map[string]string, body []byte) error
}

// Access says who may call a route.
type Access int

// The kinds of access: everybody, everybody without a rate of their address, who is authenticated, and the same but not while the cluster
// is frozen.
const (
	Public Access = iota
	Probed
	Signed
	Unfrozen
)

// Route is a handler with its pattern of http.ServeMux.
type Route struct {
	Who     Access
	Pattern string
	Handle  func(Call) error
	// Action and Means say what is asked for on a route where strangers prove who they are, and how; what is refused there is recorded.
	Action, Means string
}

// Proving is a route on which strangers prove by some means who they are, for an action.
func (r Route) Proving(action, means string) Route {
	r.Action, r.Means = action, means
	return r
}

// To is a route with this access.
func (w Access) To(pattern string, handle func(Call) error) Route {
	return Route{Who: w, Pattern: pattern, Handle: handle}
}

// OK replies 200 with a JSON document.
func OK(c Call, reply any) error { return c.Answer(http.StatusOK, reply) }

// TimeOrNil is the wire's text of a moment that may be unknown.
func TimeOrNil(t *time.Time) *string {
	if t == nil {
		return nil
	}
	return new(api.TimeText(*t))
}
