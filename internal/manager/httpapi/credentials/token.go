package credentials

import (
	"net/http"

	"berth.dev/berth/api"
	"berth.dev/berth/api/credential"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/tenancy/token"
)

func (h *Handlers) createToken(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	r := token.Request{Name: p.Need("name"), For: p.Text("for", ""), ReadOnly: p.Flag("read_only", false),
		Provider: p.Text("scim_provider", ""), Projects: p.List("projects"),
		Life: p.Span("expires_in")}
	for _, area := range p.List("areas") {
		r.Areas = append(r.Areas, authz.Area(area))
	}
	if err := p.Err(); err != nil {
		return err
	}
	t, secret, err := h.Tokens.Create(c.Context(), c.Actor(), r)
	if err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, credential.NewToken{Token: tokenView(&t), Secret: secret.Reveal()})
}

func (h *Handlers) listTokens(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	f := token.Filter{Filter: p.Text("filter", ""), Order: p.Text("order", ""), Limit: p.Number("limit", 20, 1, 100),
		Offset: p.Number("offset", 0, 0, 10_000_000), Email: p.Text("user", "")}
	if f.Email == "" && !p.Flag("all", false) {
		f.Email = c.Actor().Email
	}
	if err := p.Err(); err != nil {
		return err
	}
	page, err := h.Tokens.List(c.Context(), c.Actor(), f)
	if err != nil {
		return err
	}
	out := credential.TokenPage{Items: make([]credential.Token, 0, len(page.Items)), TotalCount: page.Total}
	for _, t := range page.Items {
		out.Items = append(out.Items, tokenView(t))
	}
	return route.OK(c, out)
}

func (h *Handlers) deleteToken(c route.Call) error {
	if err := h.Tokens.Delete(c.Context(), c.Actor(), c.Path("id")); err != nil {
		return err
	}
	return c.Nothing()
}

func (h *Handlers) createServiceAccount(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	name, domain, project := p.Need("name"), p.Text("domain", ""), p.Text("project|group", "")
	if err := p.Err(); err != nil {
		return err
	}
	u, err := h.Tenancy.CreateServiceAccount(c.Context(), c.Actor(), name, domain, project)
	if err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, credential.ServiceAccount{ID: string(u.ID), Email: u.Email, Domain: u.Domain})
}

func tokenView(t *token.Token) credential.Token {
	out := credential.Token{ID: t.ID, Name: t.Name, Email: t.Email, Service: t.Service, AccessKey: string(t.AccessKey),
		ReadOnly: t.ReadOnly,
		Provider: t.Provider, Areas: texts(t.Areas), Projects: texts(t.Projects), CreatedAt: api.Time{Time: t.CreatedAt},
		ExpiresAt: api.Time{Time: t.ExpiresAt},
		LastUsed:  lastUsed(t)}
	return out
}

// texts are values as plain texts, never nil.
func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

func lastUsed(t *token.Token) *api.Time {
	if t.LastUsed == nil {
		return nil
	}
	return &api.Time{Time: *t.LastUsed}
}
