// Package notice answers requests about notices by e-mail and webhook. It decodes, calls one use case, encodes. httpapi mounts it and does
// the rest.
package notice

import (
	"net/http"

	"berth.dev/berth/api"
	wire "berth.dev/berth/api/notice"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/notice"
	"berth.dev/berth/internal/manager/notice/rule"
)

// Handlers answer the routes. All fields are required.
type Handlers struct{ Notices *notice.Service }

// Routes are all of them.
func (h *Handlers) Routes() []route.Route {
	return []route.Route{
		route.Signed.To("GET /notices/preferences", h.preferences),
		route.Unfrozen.To("PUT /notices/preferences", h.setPreferences),
		route.Unfrozen.To("POST /notices/test", h.test),
		route.Signed.To("GET /notices", h.list),
	}
}

func (h *Handlers) preferences(c route.Call) error {
	p, err := h.Notices.Preferences(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	return route.OK(c, preferencesView(p))
}

func (h *Handlers) setPreferences(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	change := notice.Change{Wishes: notice.Wishes{Email: kinds(p.List("email_kinds")), URL: p.Text("webhook_url", ""),
		Webhook: kinds(p.List("webhook_kinds"))}, Secret: p.Flag("new_secret", false)}
	if err := p.Err(); err != nil {
		return err
	}
	now, secret, err := h.Notices.SetPreferences(c.Context(), c.Actor(), change)
	if err != nil {
		return err
	}
	view := preferencesView(now)
	view.WebhookSecret = secret.Reveal()
	return route.OK(c, view)
}

func (h *Handlers) test(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	channel := p.Need("channel")
	if err := p.Err(); err != nil {
		return err
	}
	id, err := h.Notices.SendTest(c.Context(), c.Actor(), rule.Channel(channel))
	if err != nil {
		return err
	}
	return c.Answer(http.StatusAccepted, wire.Tried{ID: id})
}

func (h *Handlers) list(c route.Call) error {
	list, err := h.Notices.Deliveries(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	out := wire.Deliveries{Items: make([]wire.Delivery, len(list))}
	for i, d := range list {
		item := wire.Delivery{ID: d.ID, Channel: string(d.Channel), Kind: string(d.Kind), At: api.Time{Time: d.At}, Reason: d.Reason,
			Text: d.Words, State: d.State, Attempts: d.Attempts, Error: d.Error}
		if d.SubjectKind != "" {
			item.Subject = &wire.Subject{Kind: d.SubjectKind, ID: d.Subject, Name: d.Name}
		}
		if d.Next != nil {
			item.NextAt = &api.Time{Time: *d.Next}
		}
		if d.Done != nil {
			item.DoneAt = &api.Time{Time: *d.Done}
		}
		out.Items[i] = item
	}
	return route.OK(c, out)
}

func preferencesView(p notice.Preferences) wire.Preferences {
	return wire.Preferences{Kinds: texts(rule.Kinds()), Email: p.Address, NoEmail: p.NoEmail, EmailKinds: texts(p.Email), WebhookURL: p.URL,
		WebhookKinds: texts(p.Webhook)}
}

func kinds(texts []string) []rule.Kind {
	out := make([]rule.Kind, len(texts))
	for i, t := range texts {
		out[i] = rule.Kind(t)
	}
	return out
}

func texts(kinds []rule.Kind) []string {
	out := make([]string, len(kinds))
	for i, k := range kinds {
		out[i] = string(k)
	}
	return out
}
