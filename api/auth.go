package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Hello is the answer of the version probe.
type Hello struct {
	Version string `json:"version"`
	Manager string `json:"manager"`
	// Berth is the version of this implementation; an extension.
	Berth string `json:"berth,omitempty"`
}

// Hello asks the manager for its versions.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var h Hello
	err := c.call(ctx, request{method: http.MethodGet, path: "/"}, &h)
	return h, err
}

// Roles are the caller's roles.
type Roles struct {
	Global string  `json:"global_role"`
	Domain string  `json:"domain_role"`
	Group  *string `json:"group_role"`
}

// Roles asks who the caller is allowed to be.
func (c *Client) Roles(ctx context.Context) (Roles, error) {
	var r Roles
	err := c.call(ctx, request{method: http.MethodGet, path: "/auth/role"}, &r)
	return r, err
}

// AuthTest is the answer to a request that only tests the signature.
type AuthTest struct {
	Authorized string  `json:"authorized"` // yes
	Echo       *string `json:"echo,omitempty"`
}

// LoginRequest exchanges a password for a keypair.
type LoginRequest struct {
	Type     string `json:"type"` // keypair
	Domain   string `json:"domain"`
	Username string `json:"username"` // e-mail address or name
	Password string `json:"password"`
}

// LoginReply is the answer to LoginRequest.
type LoginReply struct {
	Data Login `json:"data"`
}

// LoginScheme is the scheme of an Authorization header that has the token of a login. Web servers pass requests on by it.
const LoginScheme = "BerthLogin"

// Login is a keypair, in the clear.
type Login struct {
	ResponseType string `json:"response_type"` // success
	Type         string `json:"type"`          // keypair
	AccessKey    string `json:"access_key"`
	// SecretKey is in the answer to who proves who they are, and left out for who only has the token of a login.
	SecretKey string `json:"secret_key,omitempty"`
	Role      string `json:"role"`
	Status    string `json:"status"`
	// The members below but SessionToken, the secret that holds the login, are an extension. LoginID names the login in lists.
	UserID       string    `json:"user_id"`
	Email        string    `json:"email"`
	Domain       string    `json:"domain_name"`
	SessionToken string    `json:"session_token"`
	LoginID      string    `json:"login_id"`
	Expires      time.Time `json:"expires"`
}

// LoginToken is the body of POST /auth/logout, /auth/logins/resume and /auth/logins/extend.
type LoginToken struct {
	Token string `json:"session_token"`
}

// LoginSession is one of a user's logins.
type LoginSession struct {
	ID        string    `json:"id"`
	AccessKey string    `json:"access_key"`
	Created   time.Time `json:"created_at"`
	Seen      time.Time `json:"last_used"` // to about a minute
	Expires   time.Time `json:"expires"`
	Address   string    `json:"address"`
	Agent     string    `json:"agent"` // the program that logged in
}

// LoginList is the answer of GET /auth/logins, the newest first.
type LoginList struct {
	Items []LoginSession `json:"items"`
}

// LoginsEnded is the answer of DELETE /auth/logins/{id}.
type LoginsEnded struct {
	Ended int `json:"ended"`
}

// Logins lists the caller's logins, the newest first.
func (c *Client) Logins(ctx context.Context) ([]LoginSession, error) {
	var l LoginList
	err := c.call(ctx, request{method: http.MethodGet, path: "/auth/logins"}, &l)
	return l.Items, err
}

// EndLogin ends one of the caller's logins by its id, or all of them for "all", and tells how many ended.
func (c *Client) EndLogin(ctx context.Context, id string) (int, error) {
	var l LoginsEnded
	err := c.call(ctx, request{method: http.MethodDelete, path: "/auth/logins/" + url.PathEscape(id)}, &l)
	return l.Ended, err
}

// SignOutRequest is the body of POST /auth/signout.
type SignOutRequest struct {
	Email    string `json:"email"`
	Password string `json:"password"`
}

// PasswordReplacement is the body of POST /auth/update-password-no-auth.
type PasswordReplacement struct {
	Domain   string `json:"domain"`
	Username string `json:"username"`
	Current  string `json:"current_password"`
	New      string `json:"new_password"`
}

// PasswordReplaced is the answer to PasswordReplacement.
type PasswordReplaced struct {
	ChangedAt time.Time `json:"password_changed_at"`
}

// PasswordChange is the body of POST /auth/update-password.
type PasswordChange struct {
	Old   string `json:"old_password"`
	New   string `json:"new_password"`
	Again string `json:"new_password2"`
}

// PasswordMismatch is the problem of two new passwords that differ; clients look for ErrorMsg.
type PasswordMismatch struct {
	Problem
	ErrorMsg string `json:"error_msg"`
}

// FullNameChange is the body of POST /auth/update-full-name; only administrators name another user.
type FullNameChange struct {
	Email    string `json:"email,omitempty"`
	FullName string `json:"full_name"`
}

// SSHPublicKey is the public half of a user's SSH keypair.
type SSHPublicKey struct {
	Public string `json:"ssh_public_key"`
}

// SSHKeypair is a user's SSH keypair, in the clear.
type SSHKeypair struct {
	SSHPublicKey
	Private string `json:"ssh_private_key"`
}

// NewSSHKeypair is the body of POST /auth/ssh-keypair.
type NewSSHKeypair struct {
	Public  string `json:"pubkey"`
	Private string `json:"privkey"`
}

// ClientAddress is the address that the manager sees of the caller.
type ClientAddress struct {
	IP string `json:"client_ip"`
}
