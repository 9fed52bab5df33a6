package httpapi

import (
	"net/http"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
)

// routes is the list of everything the interface answers.
func (a *API) routes() {
	a.handle(probed, a.hello, "GET /{$}")
	a.handle(public, a.notRouted, "/")
	a.handle(signedOnly, a.graph, "POST /admin/gql", "POST /admin/graphql")
	a.authRoutes()
	a.partRoutes()
	a.sessionRoutes()
	a.streamRoutes()
	a.appRoutes()
	a.eventRoutes()
	a.settingRoutes()
	a.idleRoutes()
	a.presetRoutes()
	a.templateRoutes()
	a.imageRoutes()
	a.dotfileRoutes()
	a.folderRoutes()
	a.laterRoutes()
}

// hello is the version probe.
func (a *API) hello(c *call) error {
	return c.ok(api.Hello{Version: a.info.APIVersion, Manager: a.info.ManagerVersion, Berth: a.info.Build})
}

// graph hands an authenticated request to GraphQL.
func (a *API) graph(c *call) error {
	if a.graphql == nil {
		return notImplemented("GraphQL")
	}
	rc := http.NewResponseController(c.w.ResponseWriter)
	if rc.SetReadDeadline(time.Now().Add(bodyPatience)) == nil {
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	}
	a.graphql.ServeHTTP(c.w, c.r)
	return nil
}

func notImplemented(what string) error {
	return fault.Invalidf("%s is not part of this version of Berth", what).WithReason(reasonNotImplemented).
		WithNext("see the list of supported interfaces in docs/api-extensions.md")
}

// laterRoutes answers what clients may ask but this version does not do, so that they get
// a clear answer instead of one that looks like a wrong address.
func (a *API) laterRoutes() {
	later := func(what string, patterns ...string) {
		a.handle(signedOnly, func(*call) error { return notImplemented(what) }, patterns...)
	}
	later("model serving", "/services", "/services/{rest...}")
	later("making images of sessions", "POST /session/{s}/imagify")
	later("changing registries of images", "PATCH /container-registries/{id}")
	later("the agent watcher", "GET /resource/watcher", "POST /resource/watcher/{rest...}")
	later("exporting reports", "GET /export/{rest...}", "POST /export/{rest...}")
	// Clients show an error of this page as it is.
	a.handle(signedOnly, func(*call) error {
		return fault.NotFoundf("Berth is free software and has no licence key").WithNext("nothing has to be done")
	}, "GET /license")
}

// withKernel returns a pattern and what older clients write for it: /kernel for /session.
func withKernel(method, path string) []string {
	return []string{method + " /session" + path, method + " /kernel" + path}
}

var _ http.Handler = (*API)(nil)
