// Package credentials answers requests about who callers are and how they prove it: names, roles, SSH keypairs, API tokens, service
// accounts, one-time passwords, accounts that strangers make, and what e-mails let their readers do. It decodes, calls one use case,
// encodes. httpapi mounts it and does the rest.
package credentials

import (
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/identity"
	"berth.dev/berth/internal/manager/tenancy/letter"
	"berth.dev/berth/internal/manager/tenancy/openid"
	"berth.dev/berth/internal/manager/tenancy/otp"
	"berth.dev/berth/internal/manager/tenancy/passkey"
	"berth.dev/berth/internal/manager/tenancy/token"
)

// Handlers answer the routes. All fields are required.
type Handlers struct {
	Tenancy *tenancy.Service
	Tokens  *token.Service
	OTP     *otp.Service
	Letters *letter.Service
	Proofs  Proofs
}

// Proofs are ways to log in besides passwords.
type Proofs struct {
	Identities *identity.Service
	OpenID     *openid.Service
	Passkeys   *passkey.Service
}

// Routes are all of them.
func (h *Handlers) Routes() []route.Route {
	return []route.Route{
		route.Signed.To("GET /auth/role", h.authRole),
		route.Signed.To("POST /auth/update-full-name", h.updateFullName),
		route.Signed.To("GET /auth/ssh-keypair", h.getSSHKeypair),
		route.Signed.To("PATCH /auth/ssh-keypair", h.generateSSHKeypair),
		route.Signed.To("POST /auth/ssh-keypair", h.setSSHKeypair),
		route.Probed.To("POST /auth/logout", h.logout),
		route.Probed.To("POST /auth/logins/resume", byToken(h.Tenancy.ResumeLogin)),
		route.Probed.To("POST /auth/logins/extend", byToken(h.Tenancy.ExtendLogin)),
		route.Probed.To("POST /auth/logins/sibling", h.siblingLogin),
		route.Signed.To("GET /auth/logins", h.listLogins),
		route.Signed.To("DELETE /auth/logins/{id}", h.endLogin),
		route.Signed.To("GET /auth/tokens", h.listTokens),
		route.Unfrozen.To("POST /auth/tokens", h.createToken),
		route.Signed.To("DELETE /auth/tokens/{id}", h.deleteToken),
		route.Unfrozen.To("POST /auth/service-accounts", h.createServiceAccount),
		// A web console that gets 200 from GET /totp shows one-time passwords.
		route.Signed.To("GET /totp", h.otpStatus),
		route.Signed.To("POST /totp", h.otpEnrol),
		route.Signed.To("POST /totp/verify", h.otpConfirm),
		route.Signed.To("POST /totp/recovery-codes", h.otpRecoveryCodes),
		route.Signed.To("DELETE /totp", h.otpRemove),
		// For those who have to enrol before the login: the token of its refusal stands for them.
		route.Public.To("POST /totp/anon", h.otpEnrolBefore).Proving("user.enrol-otp", "registration-token"),
		route.Public.To("POST /totp/anon/verify", h.otpConfirmBefore).Proving("user.confirm-otp", "registration-token"),
		// For web servers: logins of browsers at identity providers, with tokens of these, and with passkeys.
		route.Public.To("GET /auth/oidc", h.listProviders),
		route.Public.To("POST /auth/oidc/begin", h.beginOIDC),
		route.Public.To("POST /auth/oidc/finish", h.finishOIDC).Proving("login.open", tenancy.ByOpenID),
		route.Public.To("POST /auth/token-login", h.tokenLogin).Proving("login.open", tenancy.ByOpenID),
		route.Public.To("POST /auth/passkeys/login/begin", h.beginPasskeyLogin),
		route.Public.To("POST /auth/passkeys/login/finish", h.finishPasskeyLogin).Proving("login.open", tenancy.ByPasskey),
		// The token of a fresh login stands for its user.
		route.Public.To("POST /auth/passkeys/enrol/begin", h.beginEnrol).Proving("passkey.enrol", "login"),
		route.Public.To("POST /auth/passkeys/enrol/finish", h.finishEnrol).Proving("passkey.enrol", "login"),
		route.Signed.To("GET /auth/passkeys", h.listPasskeys),
		route.Signed.To("PATCH /auth/passkeys/{id}", h.renamePasskey),
		route.Signed.To("DELETE /auth/passkeys/{id}", h.deletePasskey),
		route.Signed.To("GET /auth/identities", h.listIdentities),
		route.Signed.To("DELETE /auth/identities/{provider}", h.unlinkIdentity),
		route.Public.To("POST /auth/signup", h.signUp),
		route.Public.To("POST /auth/reset-password", h.requestReset),
		route.Public.To("POST /auth/reset-password/confirm", h.resetPassword).Proving("user.reset-password", "letter"),
		route.Unfrozen.To("POST /auth/invitations", h.invite),
		route.Public.To("POST /auth/invitations/accept", h.takeInvitation).Proving("user.accept-invitation", "letter"),
	}
}
