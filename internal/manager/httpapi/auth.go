package httpapi

import (
	"net/http"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/throttle"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
)

func (a *API) authRoutes() {
	for _, m := range []string{"GET", "POST"} {
		a.handle(signedOnly, a.authTest, m+" /auth", m+" /auth/test")
	}
	a.handle(public, a.authorize, "POST /auth/authorize")
	a.handle(signedOnly, a.authRole, "GET /auth/role")
	a.handle(signedOnly, a.updatePassword, "POST /auth/update-password")
	a.handle(signedOnly, a.updateFullName, "POST /auth/update-full-name")
	a.handle(signedOnly, a.getSSHKeypair, "GET /auth/ssh-keypair")
	a.handle(signedOnly, a.generateSSHKeypair, "PATCH /auth/ssh-keypair")
	a.handle(signedOnly, a.setSSHKeypair, "POST /auth/ssh-keypair")
	a.handle(signedOnly, func(c *call) error { return c.ok(api.ClientAddress{IP: c.actor.ClientIP}) }, "GET /auth/my-ip")
}

func (a *API) authTest(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	reply := api.AuthTest{Authorized: "yes", Echo: p.Optional("echo")}
	if err := p.Err(); err != nil {
		return err
	}
	return c.ok(reply)
}

func (a *API) authorize(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	kind, domain := p.Text("type", "keypair"), p.Text("domain", "default")
	user, password := p.Need("username|email"), p.Need("password")
	if err := p.Err(); err != nil {
		return err
	}
	if kind != "keypair" {
		return fault.Invalidf("login of type %.40q is not supported", kind).WithNext(`use type "keypair"`)
	}
	outcome := throttle.Undecided
	done, err := a.logins.Begin(c.ctx(), user, a.client(c.r), a.now())
	if err != nil {
		return err
	}
	defer func() { done(outcome) }()
	k, err := a.tenancy.Authorize(c.ctx(), domain, user, seal.Secret(password))
	if err != nil {
		if fault.Is(err, fault.Unauthenticated) {
			outcome = throttle.Wrong
		}
		return err
	}
	actor, _, err := a.tenancy.Authenticate(c.ctx(), k.AccessKey)
	if err != nil {
		return err
	}
	if err := authz.From(actor, a.client(c.r)); err != nil {
		// Whoever guesses passwords from elsewhere hears and costs the same whether one is right.
		a.log.Warn("a login with the right password came from an address that the user may not come from", "user", actor.Email,
			"client", a.client(c.r))
		outcome = throttle.Wrong
		return tenancy.AuthFailed()
	}
	outcome = throttle.Good
	return c.ok(api.LoginReply{Data: api.Login{
		ResponseType: "success", Type: "keypair", AccessKey: string(k.AccessKey), SecretKey: k.SecretKey.Reveal(),
		Role: string(k.Role), Status: string(k.Status),
		// Newer clients insist on a token; there are no login sessions here, signatures are what counts.
		SessionToken: requestID() + requestID(),
	}})
}

func (a *API) authRole(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	group := p.Text("group", "")
	if err := p.Err(); err != nil {
		return err
	}
	r, err := a.tenancy.Roles(c.ctx(), c.actor, group)
	if err != nil {
		return err
	}
	return c.ok(api.Roles{Global: r.Global, Domain: r.Domain, Group: r.Group})
}

func (a *API) updatePassword(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	old, fresh, again := p.Need("old_password"), p.Need("new_password"), p.Need("new_password2")
	if err := p.Err(); err != nil {
		return err
	}
	if fresh != again {
		return c.json(http.StatusBadRequest, api.PasswordMismatch{ErrorMsg: "new password mismatch", Problem: api.Problem{
			Type: problemBase + reasonInvalidParams, Title: outcomes[reasonInvalidParams].title,
			Msg: "the two new passwords differ; type the same one twice",
		}})
	}
	// Whoever has a keypair of somebody may try passwords here as at a login, and each takes the same work.
	outcome := throttle.Undecided
	done, err := a.logins.Begin(c.ctx(), c.actor.Email, a.client(c.r), a.now())
	if err != nil {
		return err
	}
	defer func() { done(outcome) }()
	switch err = a.tenancy.UpdatePassword(c.ctx(), c.actor, seal.Secret(old), seal.Secret(fresh)); {
	case fault.Is(err, fault.Unauthenticated):
		outcome = throttle.Wrong
		return err
	case err != nil:
		return err
	}
	outcome = throttle.Good
	return c.ok(api.Empty{})
}

func (a *API) updateFullName(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	email, name := p.Text("email", ""), p.Need("full_name")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.tenancy.UpdateFullName(c.ctx(), c.actor, email, name); err != nil {
		return err
	}
	return c.ok(api.Empty{})
}

func (a *API) getSSHKeypair(c *call) error {
	k, err := a.tenancy.SSHKeypair(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(api.SSHPublicKey{Public: k.Public})
}

func (a *API) generateSSHKeypair(c *call) error {
	k, err := a.tenancy.GenerateSSHKeypair(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(api.SSHKeypair{SSHPublicKey: api.SSHPublicKey{Public: k.Public}, Private: k.Private.Reveal()})
}

func (a *API) setSSHKeypair(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	public, private := p.Need("pubkey"), p.Need("privkey")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.tenancy.SetSSHKeypair(c.ctx(), c.actor, public, seal.Secret(private)); err != nil {
		return err
	}
	return c.ok(api.SSHKeypair{SSHPublicKey: api.SSHPublicKey{Public: public}, Private: private})
}

// owner reads the keypair that an administrator acts for.
func owner(p *params.Set) cluster.AccessKey {
	return cluster.AccessKey(p.Text("owner_access_key|ownerAccessKey", ""))
}
