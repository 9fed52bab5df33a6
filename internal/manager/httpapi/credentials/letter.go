package credentials

import (
	"net/http"

	"berth.dev/berth/api/credential"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/letter"
)

func (h *Handlers) signUp(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	domain, email, password := p.Text("domain", "default"), p.Need("email"), seal.Secret(p.Need("password"))
	props := tenancy.UserProps{Username: p.Optional("username"), FullName: p.Optional("full_name"), Description: p.Optional("description"),
		Password: &password}
	if err := p.Err(); err != nil {
		return err
	}
	k, err := h.Tenancy.SignUp(c.Context(), domain, email, props)
	if err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, credential.SignedUp{AccessKey: string(k.AccessKey), SecretKey: k.SecretKey.Reveal()})
}

func (h *Handlers) requestReset(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	email := p.Need("email|username")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Letters.RequestReset(c.Context(), email); err != nil {
		return err
	}
	return route.OK(c, credential.Done{})
}

func (h *Handlers) resetPassword(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	token, fresh := p.Need("token"), p.Need("new_password|password")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Letters.Reset(c.Context(), token, seal.Secret(fresh)); err != nil {
		return err
	}
	return route.OK(c, credential.Done{})
}

func (h *Handlers) invite(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	i := letter.Invitation{Email: p.Need("email"), Domain: p.Text("domain", "")}
	for _, id := range p.List("projects|group_ids") {
		i.Projects = append(i.Projects, cluster.ProjectID(id))
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Letters.Invite(c.Context(), c.Actor(), i); err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, credential.Done{})
}

func (h *Handlers) takeInvitation(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	token, password := p.Need("token"), seal.Secret(p.Need("password"))
	props := tenancy.UserProps{Username: p.Optional("username"), FullName: p.Optional("full_name"), Password: &password}
	if err := p.Err(); err != nil {
		return err
	}
	u, err := h.Letters.Accept(c.Context(), token, props)
	if err != nil {
		return err
	}
	return c.Answer(http.StatusCreated, credential.ServiceAccount{ID: string(u.ID), Email: u.Email, Domain: u.Domain})
}
