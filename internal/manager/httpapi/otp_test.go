package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/pquerna/otp/totp"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/credential"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/tenancy"
)

// A login asks for a code once the user has enrolled, and a role that has to have one enrols by the token of the refusal.
func TestLoginsAskForOneTimePasswords(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *nouns.Deps, _ *httpapi.Deps) { d.OTPRoles = []authz.Role{authz.RoleSuperadmin} })
	post := func(target string, body map[string]string) answer {
		return s.send(s.request("POST", target, "application/json", jsonOf(body)))
	}
	login := func(password, otp string) answer {
		return post("/auth/authorize", map[string]string{"username": tenancy.AdminEmail, "password": password, "otp": otp})
	}
	password := s.admin.Password.Reveal()
	refused := login(password, "")
	require.NotContains(t, refused.body, s.admin.SecretKey.Reveal())
	refused.problem(t, http.StatusUnauthorized, "require-totp-registration")
	var p struct{ Data map[string]string }
	require.NoError(t, json.Unmarshal([]byte(refused.body), &p))
	token := p.Data["two_factor_registration_token"]
	require.NotEmpty(t, token, refused.body)
	login("wrong", "").problem(t, http.StatusUnauthorized, "auth-failed")

	var e credential.OTPEnrolment
	post("/totp/anon", map[string]string{"registration_token": token}).into(t, &e)
	code := func(at time.Time) string {
		c, err := totp.GenerateCode(e.Key, at)
		require.NoError(t, err)
		return c
	}
	post("/totp/anon/verify", map[string]string{"registration_token": token, "otp": "x"}).problem(t, 400, "invalid-api-params")
	confirmed := post("/totp/anon/verify", map[string]string{"registration_token": token, "otp": code(time.Now())})
	require.Equal(t, 200, confirmed.status, confirmed.body)
	var done credential.OTPConfirmed
	confirmed.into(t, &done)
	post("/totp/anon", map[string]string{"registration_token": token}).problem(t, http.StatusUnauthorized, "auth-failed")

	require.Contains(t, login(password, "").problem(t, http.StatusUnauthorized, "require-totp-authentication"), "OTP not provided")
	require.Contains(t, login(password, "000000").problem(t, http.StatusUnauthorized, "auth-failed"), "Invalid TOTP code provided")
	next := code(time.Now().Add(30 * time.Second))
	require.Equal(t, 200, login(password, next).status)
	login(password, next).problem(t, http.StatusUnauthorized, "auth-failed")
	require.Equal(t, 200, login(password, done.RecoveryCodes[0]).status)

	var status credential.OTPStatus
	s.call("GET", "/totp", "").into(t, &status)
	require.Equal(t, credential.OTPStatus{Activated: true, Required: true, RecoveryCodes: 9}, status)
	require.Equal(t, 400, s.call("POST", "/totp", "").status, "an active second factor is not replaced")
	require.Equal(t, 200, s.call("DELETE", "/totp", "").status)
	login(password, "").problem(t, http.StatusUnauthorized, "require-totp-registration")
	// The log tells a wrong code, whose sender knows the password, from a wrong password.
	require.ElementsMatch(t, []string{"login.open|" + tenancy.AdminEmail + "|denied|auth-failed|second-factor|||2",
		"login.open|" + tenancy.AdminEmail + "|denied|auth-failed|password|||1"}, s.logged(`action = 'login.open' AND result = 'denied'`))
	require.NotContains(t, s.log.String(), e.Key)
	require.NotContains(t, s.log.String(), password)
}
