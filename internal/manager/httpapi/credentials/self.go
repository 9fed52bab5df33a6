package credentials

import (
	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/seal"
)

func (h *Handlers) authRole(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	group := p.Text("group", "")
	if err := p.Err(); err != nil {
		return err
	}
	r, err := h.Tenancy.Roles(c.Context(), c.Actor(), group)
	if err != nil {
		return err
	}
	return route.OK(c, api.Roles{Global: r.Global, Domain: r.Domain, Group: r.Group})
}

func (h *Handlers) updateFullName(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	email, name := p.Text("email", ""), p.Need("full_name")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Tenancy.UpdateFullName(c.Context(), c.Actor(), email, name); err != nil {
		return err
	}
	return route.OK(c, api.Empty{})
}

func (h *Handlers) getSSHKeypair(c route.Call) error {
	k, err := h.Tenancy.SSHKeypair(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	return route.OK(c, api.SSHPublicKey{Public: k.Public})
}

func (h *Handlers) generateSSHKeypair(c route.Call) error {
	k, err := h.Tenancy.GenerateSSHKeypair(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	return route.OK(c, api.SSHKeypair{SSHPublicKey: api.SSHPublicKey{Public: k.Public}, Private: k.Private.Reveal()})
}

func (h *Handlers) setSSHKeypair(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	public, private := p.Need("pubkey"), p.Need("privkey")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Tenancy.SetSSHKeypair(c.Context(), c.Actor(), public, seal.Secret(private)); err != nil {
		return err
	}
	return route.OK(c, api.SSHKeypair{SSHPublicKey: api.SSHPublicKey{Public: public}, Private: private})
}
