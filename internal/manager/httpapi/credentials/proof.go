package credentials

import (
	"encoding/json"

	"berth.dev/berth/api"
	"berth.dev/berth/api/credential"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/openid"
	"berth.dev/berth/internal/manager/tenancy/passkey"
)

// LoginView is a login as the wire has it.
func LoginView(l tenancy.Login) api.Login {
	return api.Login{
		ResponseType: "success", Type: "keypair", AccessKey: string(l.AccessKey), SecretKey: l.SecretKey.Reveal(),
		Role: string(l.Role), Status: l.Status, UserID: string(l.UserID), Email: l.Email, Domain: l.Domain,
		SessionToken: l.Token.Reveal(), LoginID: l.ID, Expires: l.Expires.UTC(),
	}
}

// attempt is who asks, for a login that no password opens.
func attempt(c route.Call, means string, force bool) tenancy.LoginAttempt {
	return tenancy.LoginAttempt{From: c.Client(), Agent: c.Agent(), Force: force, Means: means}
}

func (h *Handlers) listProviders(c route.Call) error {
	out := credential.Providers{Items: []credential.Provider{}}
	for _, p := range h.Proofs.OpenID.Providers() {
		out.Items = append(out.Items, credential.Provider{Name: p.Name, Title: p.Title})
	}
	return route.OK(c, out)
}

func (h *Handlers) beginOIDC(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	at := openid.Start{Provider: p.Need("provider"), Origin: p.Need("origin"), Next: p.Text("next", ""), Force: p.Flag("force", false)}
	if err := p.Err(); err != nil {
		return err
	}
	b, err := h.Proofs.OpenID.Begin(c.Context(), at)
	if err != nil {
		return err
	}
	return route.OK(c, credential.OIDCBegun{URL: b.URL, Flow: b.Flow.Reveal()})
}

func (h *Handlers) finishOIDC(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	a := openid.Answer{Provider: p.Need("provider"), Flow: p.Text("flow", ""), State: p.Text("state", ""), Code: p.Text("code", ""),
		Issuer: p.Text("iss", ""), Error: p.Text("error", ""), Details: p.Text("error_description", "")}
	if err := p.Err(); err != nil {
		return err
	}
	l, err := h.Proofs.OpenID.Finish(c.Context(), a, attempt(c, tenancy.ByOpenID, false))
	if err != nil {
		return err
	}
	return route.OK(c, credential.OIDCDone{LoginReply: api.LoginReply{Data: LoginView(l.Login)}, Next: l.Next})
}

func (h *Handlers) tokenLogin(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	token, force := p.Need("sToken|stoken|token"), p.Flag("force", false)
	if err := p.Err(); err != nil {
		return err
	}
	l, err := h.Proofs.OpenID.LoginByToken(c.Context(), token, attempt(c, tenancy.ByOpenID, force))
	return loginReply(c, l, err)
}

func loginReply(c route.Call, l tenancy.Login, err error) error {
	if err != nil {
		return err
	}
	return route.OK(c, api.LoginReply{Data: LoginView(l)})
}

func ceremony(c route.Call, is passkey.Ceremony, err error) error {
	if err != nil {
		return err
	}
	return route.OK(c, credential.Ceremony{Options: is.Options, Flow: is.Flow.Reveal()})
}

func (h *Handlers) beginPasskeyLogin(c route.Call) error {
	is, err := h.Proofs.Passkeys.BeginLogin(c.Context())
	return ceremony(c, is, err)
}

// answerOf is what an authenticator says, as JSON.
func answerOf(p *params.Set) []byte {
	v, ok := p.Get("credential")
	if _, object := v.(map[string]any); !ok || !object {
		p.Fail("credential", "must be what the authenticator answers")
	}
	raw, err := json.Marshal(v)
	if err != nil {
		p.Fail("credential", "must be JSON")
	}
	return raw
}

func (h *Handlers) finishPasskeyLogin(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	flow, answer, force := p.Need("flow"), answerOf(p), p.Flag("force", false)
	if err := p.Err(); err != nil {
		return err
	}
	l, err := h.Proofs.Passkeys.Login(c.Context(), flow, answer, attempt(c, tenancy.ByPasskey, force))
	return loginReply(c, l, err)
}

func (h *Handlers) beginEnrol(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	token := p.Need("session_token")
	if err := p.Err(); err != nil {
		return err
	}
	is, err := h.Proofs.Passkeys.BeginEnrol(c.Context(), token)
	return ceremony(c, is, err)
}

func (h *Handlers) finishEnrol(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	token, flow, name, answer := p.Need("session_token"), p.Need("flow"), p.Need("name"), answerOf(p)
	if err := p.Err(); err != nil {
		return err
	}
	k, err := h.Proofs.Passkeys.Enrol(c.Context(), token, flow, name, answer)
	if err != nil {
		return err
	}
	return route.OK(c, passkeyView(k))
}

func passkeyView(k passkey.Passkey) credential.Passkey {
	out := credential.Passkey{ID: k.ID, Name: k.Name, CreatedAt: api.Time{Time: k.CreatedAt}, Cloned: k.Cloned}
	if k.LastUsed != nil {
		out.LastUsed = &api.Time{Time: *k.LastUsed}
	}
	return out
}

func (h *Handlers) listPasskeys(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	user := p.Text("user", "")
	if err := p.Err(); err != nil {
		return err
	}
	list, err := h.Proofs.Passkeys.List(c.Context(), c.Actor(), user)
	if err != nil {
		return err
	}
	out := credential.Passkeys{Items: []credential.Passkey{}}
	for _, k := range list {
		out.Items = append(out.Items, passkeyView(k))
	}
	return route.OK(c, out)
}

func (h *Handlers) renamePasskey(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	name := p.Need("name")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Proofs.Passkeys.Rename(c.Context(), c.Actor(), c.Path("id"), name); err != nil {
		return err
	}
	return c.Nothing()
}

func (h *Handlers) deletePasskey(c route.Call) error {
	if err := h.Proofs.Passkeys.Delete(c.Context(), c.Actor(), c.Path("id")); err != nil {
		return err
	}
	return c.Nothing()
}

func (h *Handlers) listIdentities(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	user := p.Text("user", "")
	if err := p.Err(); err != nil {
		return err
	}
	list, err := h.Proofs.Identities.List(c.Context(), c.Actor(), user)
	if err != nil {
		return err
	}
	out := credential.Identities{Items: []credential.Identity{}}
	for _, i := range list {
		out.Items = append(out.Items, credential.Identity{Provider: i.Provider, Subject: i.Subject, Email: i.Email,
			GivenRole: string(i.GivenRole), CreatedAt: api.Time{Time: i.CreatedAt}, LastSeen: api.Time{Time: i.LastSeen}})
	}
	return route.OK(c, out)
}

func (h *Handlers) unlinkIdentity(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	user := p.Text("user", "")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Proofs.Identities.Unlink(c.Context(), c.Actor(), user, c.Path("provider")); err != nil {
		return err
	}
	return c.Nothing()
}
