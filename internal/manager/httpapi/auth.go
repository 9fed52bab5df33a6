package httpapi

import (
	"net/http"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
)

// loginRate is how many passwords one address may try in 15 minutes.
const loginRate = 600

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
	a.handle(signedOnly, func(c *call) error { return c.ok(object{"client_ip": c.actor.ClientIP}) }, "GET /auth/my-ip")
}

func (a *API) authTest(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	reply := object{"authorized": "yes"}
	if s := p.optional("echo"); s != nil {
		reply["echo"] = *s
	}
	if err := p.err(); err != nil {
		return err
	}
	return c.ok(reply)
}

func (a *API) authorize(c *call) error {
	if _, ok := a.limiter.Take(c.ctx(), "login:"+clientIP(c.r), loginRate); !ok {
		return fault.Exhaustedf("too many logins from %s", clientIP(c.r)).WithReason(reasonRateLimit).WithNext("wait some minutes")
	}
	p, err := c.params()
	if err != nil {
		return err
	}
	kind, domain := p.text("type", "keypair"), p.text("domain", "default")
	user, password := p.need("username|email"), p.need("password")
	if err := p.err(); err != nil {
		return err
	}
	if kind != "keypair" {
		return fault.Invalidf("login of type %.40q is not supported", kind).WithReason(reasonInvalidParams).WithNext(`use type "keypair"`)
	}
	k, err := a.tenancy.Authorize(c.ctx(), domain, user, seal.Secret(password))
	if err != nil {
		return err
	}
	actor, _, err := a.tenancy.Authenticate(c.ctx(), k.AccessKey)
	if err != nil {
		return err
	}
	if err := authz.From(actor, peer(c.r)); err != nil {
		return err
	}
	return c.ok(object{"data": object{
		"response_type": "success", "type": "keypair", "access_key": k.AccessKey, "secret_key": k.SecretKey.Reveal(),
		"role": k.Role, "status": k.Status,
		// Newer clients insist on a token; there are no login sessions here, signatures are what counts.
		"session_token": requestID() + requestID(),
	}})
}

func (a *API) authRole(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	group := p.text("group", "")
	if err := p.err(); err != nil {
		return err
	}
	r, err := a.tenancy.Roles(c.ctx(), c.actor, group)
	if err != nil {
		return err
	}
	return c.ok(object{"global_role": r.Global, "domain_role": r.Domain, "group_role": r.Group})
}

func (a *API) updatePassword(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	old, fresh, again := p.need("old_password"), p.need("new_password"), p.need("new_password2")
	if err := p.err(); err != nil {
		return err
	}
	if fresh != again {
		return c.json(http.StatusBadRequest, object{
			"error_msg": "new password mismatch", "type": problemBase + reasonInvalidParams, "title": outcomes[reasonInvalidParams].title,
			"msg": "the two new passwords differ; type the same one twice",
		})
	}
	if err := a.tenancy.UpdatePassword(c.ctx(), c.actor, seal.Secret(old), seal.Secret(fresh)); err != nil {
		return err
	}
	return c.ok(object{})
}

func (a *API) updateFullName(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	email, name := p.text("email", ""), p.need("full_name")
	if err := p.err(); err != nil {
		return err
	}
	if err := a.tenancy.UpdateFullName(c.ctx(), c.actor, email, name); err != nil {
		return err
	}
	return c.ok(object{})
}

func (a *API) getSSHKeypair(c *call) error {
	k, err := a.tenancy.SSHKeypair(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(object{"ssh_public_key": k.Public})
}

func (a *API) generateSSHKeypair(c *call) error {
	k, err := a.tenancy.GenerateSSHKeypair(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(object{"ssh_public_key": k.Public, "ssh_private_key": k.Private.Reveal()})
}

func (a *API) setSSHKeypair(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	public, private := p.need("pubkey"), p.need("privkey")
	if err := p.err(); err != nil {
		return err
	}
	if err := a.tenancy.SetSSHKeypair(c.ctx(), c.actor, public, seal.Secret(private)); err != nil {
		return err
	}
	return c.ok(object{"ssh_public_key": public, "ssh_private_key": private})
}

// owner reads the keypair that an administrator acts for.
func owner(p *params) cluster.AccessKey {
	return cluster.AccessKey(p.text("owner_access_key|ownerAccessKey", ""))
}
