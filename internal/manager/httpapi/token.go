package httpapi

import (
	"net/http"
	"strings"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/scim"
	"berth.dev/berth/internal/manager/seal"
)

// bearerOf is the API token of an Authorization header.
func bearerOf(header string) (seal.Secret, bool) {
	scheme, rest, _ := strings.Cut(header, " ")
	return seal.Secret(strings.TrimSpace(rest)), strings.EqualFold(scheme, "Bearer")
}

// authenticateToken finds the actor of a request with an API token, and examines the address that it comes from.
func (a *API) authenticateToken(r *http.Request, text seal.Secret) (authz.Actor, error) {
	var none authz.Actor
	if changes := r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != ""; changes && a.requireDigest {
		return none, fault.New(fault.Unauthenticated, "this cluster takes changes only from clients that sign the body").
			WithReason(reasonAuthFailed).WithNext("sign the request with a keypair, as the berth command line does")
	}
	actor, err := a.tokens.Authenticate(r.Context(), text)
	if fault.Is(err, fault.Unauthenticated) {
		return none, fault.New(fault.Unauthenticated, "the API token is not known, has ended, or belongs to a keypair that is not active").
			WithReason(reasonAuthFailed).WithNext("make another one: berth token create")
	}
	if err != nil {
		return none, err
	}
	if actor.Scope != nil && actor.Scope.Provider != "" && !strings.HasPrefix(r.URL.Path, scim.Prefix) {
		return none, fault.Deniedf("this API token is for SCIM alone, below %s",
			scim.Prefix).WithNext("use another token, or sign the request")
	}
	actor.ClientIP = a.clientText(r)
	return actor, authz.From(actor, a.client(r))
}

// loginOf is the token of a login in an Authorization header.
func loginOf(header string) (seal.Secret, bool) {
	scheme, rest, _ := strings.Cut(header, " ")
	return seal.Secret(strings.TrimSpace(rest)), strings.EqualFold(scheme, api.LoginScheme)
}

// authenticateLogin finds the actor of a request that a web server passes on for a login, and examines the address of the client. Whoever
// has the token of a login can do what its user can, until the login ends; the secret of the keypair stays here.
func (a *API) authenticateLogin(r *http.Request, text seal.Secret) (authz.Actor, error) {
	actor, err := a.tenancy.ActorOfLogin(r.Context(), text)
	if err != nil {
		return authz.Actor{}, err
	}
	actor.ClientIP = a.clientText(r)
	return actor, authz.From(actor, a.client(r))
}
