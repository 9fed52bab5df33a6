package httpapi

import (
	"context"
	"net/http"
)

// CheckRights examines the requests that last, as Run does.
func CheckRights(ctx context.Context, a *API) bool { return a.checkRights(ctx) }

// Routed reports whether a request has a handler of its own.
func Routed(a *API, r *http.Request) bool {
	_, pattern := a.mux.Handler(r)
	return pattern != "" && pattern != "/"
}
