package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/administration"
	"berth.dev/berth/internal/manager/httpapi/credentials"
	"berth.dev/berth/internal/manager/httpapi/device"
	"berth.dev/berth/internal/manager/httpapi/notice"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/httpapi/scim"
)

// partRoutes mounts the parts of the interface that stand in packages of their own.
func (a *API) partRoutes() {
	c := &credentials.Handlers{Tenancy: a.tenancy, Tokens: a.tokens, OTP: a.otp, Letters: a.letters, Proofs: a.proofs}
	h := &administration.Handlers{Audit: a.audit, Usage: a.usage, Metrics: a.metrics,
		Nodes: a.nodes, Images: a.images, Resources: a.resources, Sessions: a.sessions,
		Operations: a.operations, Folders: a.folders, Tenancy: a.tenancy, Tenancies: a.tenancies, Purges: a.purges, Directory: a.directory,
		Provision: a.provision, NodeID: a.info.NodeID, Now: a.now}
	s, n := &scim.Handlers{Provision: a.provision}, &notice.Handlers{Notices: a.notices}
	d := &device.Handlers{Sessions: a.sessions, Now: a.now}
	for _, r := range slices.Concat(c.Routes(), h.Routes(), s.Routes(), n.Routes(), d.Routes()) {
		who := map[route.Access]access{route.Public: public, route.Probed: probed, route.Signed: signedOnly, route.Unfrozen: unfrozen}[r.Who]
		a.handle(who, func(c *call) (err error) {
			if r.Means != "" {
				defer func() { a.recordRefusal(c, audit.Refusal{Action: r.Action, Means: r.Means}, err) }()
			}
			return r.Handle(asked{c, a})
		}, r.Pattern)
	}
}

// asked is a call as parts see it.
type asked struct {
	c *call
	a *API
}

func (q asked) Context() context.Context           { return q.c.ctx() }
func (q asked) Actor() authz.Actor                 { return q.c.actor }
func (q asked) Params() (*params.Set, error)       { return q.c.params() }
func (q asked) Path(name string) string            { return q.c.r.PathValue(name) }
func (q asked) Answer(status int, reply any) error { return q.c.json(status, reply) }
func (q asked) Client() netip.Addr                 { return q.a.client(q.c.r) }
func (q asked) Agent() string                      { return q.c.r.UserAgent() }
func (q asked) Nothing() error                     { return q.c.nothing() }
func (q asked) Header(name string) string          { return q.c.r.Header.Get(name) }
func (q asked) Query() url.Values                  { return q.c.r.URL.Query() }
func (q asked) Raw(most int64) ([]byte, error)     { return q.c.readBody(most) }

func (q asked) Reply(status int, contentType string, fields map[string]string, body []byte) error {
	h := q.c.w.Header()
	for name, value := range fields {
		h.Set(name, value)
	}
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	q.c.w.WriteHeader(status)
	if q.c.r.Method != http.MethodHead {
		_, _ = q.c.w.Write(body) // the client has gone when this fails
	}
	q.c.w.Flush()
	return nil
}
