package tenancy

import (
	"context"
	"slices"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
)

// SignUpPolicy says whether strangers may make accounts. The zero value lets nobody.
type SignUpPolicy struct {
	// Domains are those in which strangers may make accounts; none means that nobody may.
	Domains []string
	// Active lets them in at once. Otherwise an administrator of the domain sets the status active first.
	Active bool
}

// SignUp makes an account of whoever asks (public), as a user without projects. An address that is taken is a Conflict, as the wire has
// it: the caller bounds how often an address asks.
func (s *Service) SignUp(ctx context.Context, domain, email string, p UserProps) (_ LoginKeypair, err error) {
	if !slices.Contains(s.d.SignUp.Domains, domain) {
		return LoginKeypair{}, fault.Deniedf("nobody makes an account of their own in domain %.60q", domain).
			WithNext("ask an administrator for an account")
	}
	if p.Password == nil || *p.Password == "" {
		return LoginKeypair{}, fault.Invalidf("a new user needs a password")
	}
	ctx, end := audit.Begin(ctx, s.d.Store, authz.Actor{Email: email, Domain: domain}, "user.sign-up", email)
	defer end(&err)
	props := UserProps{Username: p.Username, FullName: p.FullName, Description: p.Description, Password: p.Password}
	if !s.d.SignUp.Active {
		props.Status = new("before-verification")
	}
	_, k, err := s.makeUser(ctx, authz.Actor{}, email, domain, props)
	return k, err
}
