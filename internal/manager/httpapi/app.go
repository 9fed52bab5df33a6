package httpapi

import (
	"encoding/json"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/httpapi/params"
)

func (a *API) appRoutes() {
	handle := func(h handler, patterns ...string) { a.handle(signedOnly, h, patterns...) }
	for _, base := range []string{"GET /stream/session/{s}", "GET /stream/kernel/{s}"} {
		a.handle(signedOnly, a.listApps, base+"/apps")
		handle(a.lasting(a.tunnel), base+"/tcpproxy", base+"/httpproxy")
	}
	handle(a.startApp, withKernel("POST", "/{s}/start-service")...)
	handle(a.stopApp, withKernel("POST", "/{s}/shutdown-service")...)
	handle(a.appTicket, "POST /session/{s}/tickets")
	handle(a.proxyVersion, "GET /scaling-groups/{sg}/wsproxy-version")
	handle(a.listCircuits, "GET /apps/circuits")
	handle(a.patchCircuit, "PATCH /apps/circuits/{id}")
	handle(a.deleteCircuit, "DELETE /apps/circuits/{id}")
	handle(a.enterCircuit, "POST /apps/circuits/{id}/enter")
}

func (a *API) listApps(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	list, err := a.apps.Apps(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	out := make([]api.App, len(list))
	for i, v := range list {
		out[i] = api.App{State: string(v.State), Detail: v.Detail, Origin: string(v.Origin), ServicePort: api.ServicePort{
			Name: v.Name, Protocol: string(v.Protocol), Ports: notNull(v.Ports), URLTemplate: v.URLTemplate,
			AllowedArguments: v.AllowedArguments, AllowedEnvs: v.AllowedEnvs,
		}}
	}
	return c.ok(out)
}

// wanted reads which app is meant, and how it is to be started: envs and arguments are objects, or such in a JSON text.
func wanted(p *params.Set, names string) (app.Want, error) {
	name, port := p.Text(names, ""), p.Number("port", 0, 0, 65535)
	if name == "" && port == 0 {
		p.Fail(names, "is required: the name of an app")
	}
	texts := map[string]string{}
	for _, n := range []string{"envs", "arguments"} {
		v, ok := p.Get(n)
		if !ok {
			continue
		}
		if s, isText := v.(string); isText {
			texts[n] = s
			continue
		}
		b, err := json.Marshal(v)
		if err != nil {
			p.Fail(n, "must be an object")
		}
		texts[n] = string(b)
	}
	if err := p.Err(); err != nil {
		return app.Want{}, err
	}
	return app.ParseWant(name, port, texts["envs"], texts["arguments"])
}

// startApp starts an app and gives the right to publish it through the app proxy.
func (a *API) startApp(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	if p.Text("app|service", "") == "" {
		p.Fail("app", "is required")
	}
	want, err := wanted(p, "app|service")
	if err != nil {
		return err
	}
	l, err := a.apps.Start(c.ctx(), c.actor, ref, who, want)
	if err != nil {
		return err
	}
	return c.ok(api.Launch{Token: l.Token, Proxy: l.Address})
}

func (a *API) stopApp(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	name := p.Need("service_name|app")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.apps.Stop(c.ctx(), c.actor, ref, who, name); err != nil {
		return err
	}
	return c.nothing()
}

// appTicket is our extension for clients that are no browser.
func (a *API) appTicket(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	want, err := wanted(p, "app")
	if err != nil {
		return err
	}
	t, err := a.apps.Ticket(c.ctx(), c.actor, ref, who, want)
	if err != nil {
		return err
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.ok(api.TicketReply{URL: t.URL, Circuit: t.Circuit, Ticket: t.Ticket, ExpiresAt: api.Time{Time: t.ExpiresAt}})
}

func (a *API) proxyVersion(c *call) error {
	v, err := a.apps.ProxyVersion(c.ctx(), c.actor, c.r.PathValue("sg"))
	if err != nil {
		return err
	}
	return c.ok(api.ProxyVersion{Version: v})
}

// circuitOf is a published way to an app; our extension.
func circuitOf(v app.Circuit) api.Circuit {
	return api.Circuit{
		ID: v.ID, App: v.App, Protocol: v.Protocol, SessionID: string(v.SessionID), SessionName: v.SessionName,
		Kernel: v.Kernel, Mode: string(v.Mode), URL: v.URL,
		Public: v.Public, Mine: v.Mine, Allowed: v.Allowed, Users: v.SharedUsers, Projects: v.SharedProjects,
		CreatedAt: api.Time{Time: v.CreatedAt}, ExpiresAt: timeOrNil(v.ExpiresAt), LastUsed: timeOrNil(v.LastUsed),
	}
}

func (a *API) listCircuits(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	session, who := p.Text("session", ""), owner(p)
	if err := p.Err(); err != nil {
		return err
	}
	list, err := a.apps.Circuits(c.ctx(), c.actor, session, who)
	if err != nil {
		return err
	}
	out := make([]api.Circuit, len(list))
	for i, v := range list {
		out[i] = circuitOf(v)
	}
	return c.ok(out)
}

func (a *API) patchCircuit(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	ch := app.Change{RevokeTickets: p.Flag("revoke_tickets", false)}
	if p.Has("public") {
		ch.Public = new(p.Flag("public", false))
	}
	lists := map[string]**[]string{
		"allowed_client_ips": &ch.Allowed, "shared_users": &ch.SharedUsers, "shared_projects": &ch.SharedProjects,
	}
	for name, into := range lists {
		if p.Has(name) {
			*into = new(p.List(name))
		}
	}
	if p.Has("expires_at") { // "" takes the expiry away
		at, text := time.Time{}, p.Text("expires_at", "")
		if text != "" {
			if at, err = time.Parse(time.RFC3339, strings.Replace(text, " ", "T", 1)); err != nil {
				p.Fail("expires_at", "must be a time such as 2026-01-31T12:00:00Z, or empty")
			}
		}
		ch.ExpiresAt = &at
	}
	if err := p.Err(); err != nil {
		return err
	}
	if ch == (app.Change{}) {
		return fault.Invalidf("nothing was asked to change").
			WithNext("send public, allowed_client_ips, shared_users, shared_projects, expires_at or revoke_tickets")
	}
	v, err := a.apps.Patch(c.ctx(), c.actor, c.r.PathValue("id"), ch)
	if err != nil {
		return err
	}
	return c.ok(circuitOf(v))
}

func (a *API) deleteCircuit(c *call) error {
	if err := a.apps.Delete(c.ctx(), c.actor, c.r.PathValue("id")); err != nil {
		return err
	}
	return c.nothing()
}

func (a *API) enterCircuit(c *call) error {
	e, err := a.apps.Enter(c.ctx(), c.actor, c.r.PathValue("id"))
	if err != nil {
		return err
	}
	c.w.Header().Set("Cache-Control", "no-store")
	return c.ok(api.Entry{
		URL: e.URL, BaseURL: e.Ticket.URL, Circuit: e.Ticket.Circuit, Ticket: e.Ticket.Ticket, ExpiresAt: api.Time{Time: e.Ticket.ExpiresAt},
	})
}
