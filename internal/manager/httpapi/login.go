package httpapi

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/credentials"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/throttle"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
)

func (a *API) loginRoutes() {
	a.handle(probed, a.authorize, "POST /auth/authorize")
	a.handle(public, a.replacePassword, "POST /auth/update-password-no-auth")
	a.handle(signedOnly, a.signOut, "POST /auth/signout")
}

// guess runs something that a password decides about. Attempts are bounded by account and address together, whatever their outcome, and
// the refused ones are recorded.
func (a *API) guess(c *call, action, account string, try func(context.Context) error) (err error) {
	defer func() {
		a.recordRefusal(c, audit.Refusal{Action: action, Account: account, Means: tenancy.ByPassword}, err)
	}()
	outcome := throttle.Undecided
	done, err := a.logins.Begin(c.ctx(), account, a.client(c.r), a.now())
	if err != nil {
		return err
	}
	defer func() { done(outcome) }()
	err = try(c.ctx())
	switch {
	case tenancy.WrongGuess(err):
		outcome = throttle.Wrong
	case err == nil:
		outcome = throttle.Good
	}
	return err
}

// recordRefusal notes that a proof of who somebody is was not taken. Nothing of it is in the way of the answer.
func (a *API) recordRefusal(c *call, r audit.Refusal, err error) {
	switch {
	case err == nil || r.Means == "": // nothing was proven, or tried
		return
	case errors.Is(err, authz.ErrElsewhere):
		r.Reason = "address-not-allowed"
	case tenancy.WrongGuess(err):
		if r.Reason = fault.ReasonOf(err); r.Reason == "" {
			r.Reason = reasonAuthFailed
		}
	case slices.Contains([]string{throttle.Reason, tenancy.ReasonPasswordExpired}, fault.ReasonOf(err)):
		r.Reason = fault.ReasonOf(err)
	default:
		return
	}
	if errors.Is(err, tenancy.ErrSecondFactor) {
		r.Means = "second-factor"
	}
	r.From = a.client(c.r)
	a.audit.Refused(audit.WithRequest(c.ctx(), c.w.requestID), r, a.now())
}

// The members of a login's body that are not answers to second factors.
var loginMembers = map[string]bool{"type": true, "domain": true, "username": true, "email": true, "password": true, "force": true}

// maxAnswers bounds what a login sends beside the password, in members and bytes of each.
const (
	maxAnswers = 16
	maxAnswer  = 4096
)

// attempt reads the members of a login.
func (a *API) attempt(c *call, p *params.Set, password string) tenancy.LoginAttempt {
	return tenancy.LoginAttempt{
		Domain: p.Text("domain", "default"), Email: p.Need("username|email"), Password: seal.Secret(p.Need(password)),
		From: a.client(c.r), Agent: c.r.UserAgent(),
	}
}

func (a *API) authorize(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	kind := p.Text("type", "keypair")
	at := a.attempt(c, p, "password")
	at.Force = p.Flag("force", false)
	at.Answers = answersOf(p)
	if err := p.Err(); err != nil {
		return err
	}
	if kind != "keypair" {
		return fault.Invalidf("login of type %.40q is not supported", kind).WithNext(`use type "keypair"`)
	}
	return a.guess(c, "login.open", at.Email, func(ctx context.Context) error {
		l, err := a.tenancy.Login(ctx, at)
		if err != nil {
			return err
		}
		return c.ok(api.LoginReply{Data: credentials.LoginView(l)})
	})
}

func answersOf(p *params.Set) map[string]string {
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(p.Members())) {
		text, ok := p.Members()[name].(string)
		if ok && !loginMembers[name] && len(out) < maxAnswers && len(text) <= maxAnswer {
			out[name] = text
		}
	}
	return out
}

func (a *API) replacePassword(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	at, fresh := a.attempt(c, p, "current_password"), p.Need("new_password")
	if err := p.Err(); err != nil {
		return err
	}
	return a.guess(c, "user.change-password", at.Email, func(ctx context.Context) error {
		changed, err := a.tenancy.ReplacePassword(ctx, at, seal.Secret(fresh))
		if err != nil {
			return err
		}
		return c.json(http.StatusCreated, api.PasswordReplaced{ChangedAt: changed})
	})
}

func (a *API) signOut(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	user, password := p.Need("email|username"), p.Need("password")
	if err := p.Err(); err != nil {
		return err
	}
	return a.guess(c, "user.sign-out", c.actor.Email, func(ctx context.Context) error {
		if err := a.tenancy.SignOut(ctx, c.actor, user, seal.Secret(password)); err != nil {
			return err
		}
		return c.ok(api.Empty{})
	})
}
