package httpapi

import (
	"context"
	"net/http"
	"time"
)

// CheckRights examines the requests that last, as Run does.
func CheckRights(ctx context.Context, a *API) bool { return a.checkRights(ctx) }

// HoldDestroy sets how long the end of a session holds its request: on a busy machine a test takes longer to bring it about than scripts
// wait for it.
func HoldDestroy(a *API, d time.Duration) { a.destroyWait = d }

// Routed reports whether a request has a handler of its own.
func Routed(a *API, r *http.Request) bool {
	_, pattern := a.mux.Handler(r)
	return pattern != "" && pattern != "/"
}
