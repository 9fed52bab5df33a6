package httpapi

import "context"

// CheckRights examines the requests that last, as Run does.
func CheckRights(ctx context.Context, a *API) bool { return a.checkRights(ctx) }
