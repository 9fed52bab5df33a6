package credentials

import (
	"context"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/tenancy"
)

// loginToken takes the token of a login out of a body.
func loginToken(c route.Call) (string, error) {
	p, err := c.Params()
	if err != nil {
		return "", err
	}
	token := p.Need("session_token")
	return token, p.Err()
}

func (h *Handlers) logout(c route.Call) error {
	token, err := loginToken(c)
	if err != nil {
		return err
	}
	if err := h.Tenancy.Logout(c.Context(), token); err != nil {
		return err
	}
	return route.OK(c, api.Empty{})
}

// byToken answers with the login that something finds or makes of a token.
func byToken(find func(ctx context.Context, token string) (tenancy.Login, error)) func(route.Call) error {
	return func(c route.Call) error {
		token, err := loginToken(c)
		if err != nil {
			return err
		}
		l, err := find(c.Context(), token)
		return loginReply(c, l, err)
	}
}

func (h *Handlers) siblingLogin(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	token, agent := p.Need("session_token"), p.Need("agent")
	if err := p.Err(); err != nil {
		return err
	}
	l, err := h.Tenancy.SiblingLogin(c.Context(), token, c.Client(), agent)
	return loginReply(c, l, err)
}

func (h *Handlers) listLogins(c route.Call) error {
	list, err := h.Tenancy.ListLogins(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	out := api.LoginList{Items: []api.LoginSession{}}
	for _, l := range list {
		out.Items = append(out.Items, api.LoginSession{ID: l.ID, AccessKey: string(l.AccessKey), Created: l.Created, Seen: l.Seen,
			Expires: l.Expires, Address: l.Address, Agent: l.Agent})
	}
	return route.OK(c, out)
}

func (h *Handlers) endLogin(c route.Call) error {
	n, err := h.Tenancy.EndLogin(c.Context(), c.Actor(), c.Path("id"))
	if err != nil {
		return err
	}
	return route.OK(c, api.LoginsEnded{Ended: n})
}
