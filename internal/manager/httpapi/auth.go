package httpapi

import (
	"context"
	"net/http"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/seal"
)

func (a *API) authRoutes() {
	for _, m := range []string{"GET", "POST"} {
		a.handle(signedOnly, a.authTest, m+" /auth", m+" /auth/test")
	}
	a.loginRoutes()
	a.handle(signedOnly, a.updatePassword, "POST /auth/update-password")
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
	return a.guess(c, "user.change-password", c.actor.Email, func(ctx context.Context) error {
		if err := a.tenancy.UpdatePassword(ctx, c.actor, seal.Secret(old), seal.Secret(fresh)); err != nil {
			return err
		}
		return c.ok(api.Empty{})
	})
}

// owner reads the keypair that an administrator acts for.
func owner(p *params.Set) cluster.AccessKey {
	return cluster.AccessKey(p.Text("owner_access_key|ownerAccessKey", ""))
}

// headerActAs names the user, by id, as whom a superadmin sends a request.
const headerActAs = "X-Backendai-Act-As"

// actAs replaces the actor of a request by the one that it names.
func (a *API) actAs(c *call) error {
	all := c.r.Header.Values(headerActAs)
	if len(all) == 0 {
		return nil
	}
	if len(all) > 1 {
		return fault.Invalidf("the request names several users to act as").WithReason(reasonBadRequest)
	}
	other, err := a.tenancy.ActAs(c.ctx(), c.actor, all[0])
	if err != nil {
		return err
	}
	c.actor = other
	c.r = c.r.WithContext(context.WithValue(c.r.Context(), actorKey{}, other))
	return nil
}
