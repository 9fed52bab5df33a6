package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pquerna/otp/totp"
	"github.com/stretchr/testify/require"
)

// asking is a program with the client's library that asks one request and prints the answer.
func asking(method, path, body string) string {
	return `
import asyncio, json
from ai.backend.client.request import Request
from ai.backend.client.session import AsyncSession
async def main():
    async with AsyncSession():
        rqst = Request("` + method + `", "` + path + `")
        rqst.set_json(json.loads('''` + body + `'''))
        async with rqst.fetch() as r:
            print("ANSWER" + json.dumps(await r.json()))
asyncio.run(main())`
}

func (d *driven) answer(into any, method, path, body string) {
	d.t.Helper()
	r := d.ask(driverAsk{Python: asking(method, path, body)})
	_, text, ok := strings.Cut(r.Stdout, "ANSWER")
	require.True(d.t, ok, "%s %s: %s%s", method, path, r.Stdout, r.Stderr)
	require.NoError(d.t, json.Unmarshal([]byte(text), into), text)
}

// login types what the client asks for.
func (d *driven) login(typed ...string) string {
	d.t.Helper()
	_, said := d.run(driverAsk{Args: []string{"login"}, Stdin: strings.Join(typed, "\n") + "\n"})
	return said
}

// TestOfficialLogins logs in and out by both generations of the official client in session mode: with a wrong password, with a second
// factor, with one login too many, after a change of the password, and when the login has ended elsewhere.
func TestOfficialLogins(t *testing.T) {
	t.Parallel()
	p := up(t, "BERTH_MANAGER__LOGIN__CONCURRENT=2")
	for _, g := range generations {
		t.Run(g.version, func(t *testing.T) { logins(t, p, g) })
	}
	p.clean()
}

func logins(t *testing.T, p *platform, g generation) {
	t.Helper()
	email := "ada" + g.version[:2] + "@example.org"
	r := p.run(goodPassword+"\n", "user", "create", email, "--project", "default", "--password-stdin")
	require.Zero(t, r.code, r.stderr)
	env := []string{"BACKEND_ENDPOINT=" + p.web(), "BACKEND_ENDPOINT_TYPE=session"}
	one, two, three := drive(t, g, "one", env), drive(t, g, "two", env), drive(t, g, "three", env)

	const out = "not logged in"
	said := one.login(email, "wrong")
	require.Contains(t, said, "User credential mismatch.")
	require.NotContains(t, said, "Login succeeded")
	require.NotContains(t, said, "Traceback")
	require.Contains(t, one.refused("admin", "user", "info"), out)
	require.Contains(t, one.login(email, goodPassword), "Login succeeded.")
	require.Contains(t, one.must("admin", "user", "info"), email)
	require.Contains(t, two.login(email, goodPassword), "Login succeeded.")

	// Two logins at one time are as many as there may be.
	said = three.login(email, goodPassword)
	require.NotContains(t, said, "Login succeeded")
	require.Regexp(t, `(?i)login|session`, said)
	require.Contains(t, three.refused("admin", "user", "info"), out)
	require.Contains(t, two.must("logout"), "Logout done.")
	require.Contains(t, two.refused("admin", "user", "info"), out)
	require.Contains(t, three.login(email, goodPassword), "Login succeeded.")

	// A changed password ends all other logins. Without a login nothing is changed where passwords do not expire, and the client says so.
	const next = "Another-horse-43-battery"
	_, said = one.run(driverAsk{Args: []string{"update-password", "wrong", next, next}})
	require.NotContains(t, said, "Password updated")
	require.Contains(t, one.must("update-password", goodPassword, next, next), "Password updated.")
	three.eventually(func(said string) bool { return strings.Contains(said, out) }, "admin", "user", "info")
	require.Contains(t, one.login(email, goodPassword), "User credential mismatch.")
	said = one.refused("update-password-no-auth", "default", email, next, goodPassword)
	require.Contains(t, said, "passwords do not expire here")

	require.Contains(t, one.must("logout"), "Logout done.") // the login that changed the password goes on

	// With a second factor the client asks for the code.
	key := drive(t, g, "key", p.withKey("default", "default", email, next))
	var enrolment struct {
		Key string `json:"totp_key"`
	}
	key.answer(&enrolment, "POST", "/totp", "{}")
	require.NotEmpty(t, enrolment.Key)
	code, err := totp.GenerateCode(enrolment.Key, time.Now())
	require.NoError(t, err)
	var confirmed struct {
		Codes []string `json:"recovery_codes"`
	}
	key.answer(&confirmed, "POST", "/totp/verify", `{"otp": "`+code+`"}`)
	require.NotEmpty(t, confirmed.Codes)
	said = one.login(email, next, "000000")
	require.Contains(t, said, "One-time Password")
	require.NotContains(t, said, "Login succeeded")
	require.Contains(t, one.login(email, next, confirmed.Codes[0]), "Login succeeded.")
	require.Contains(t, one.must("admin", "user", "info"), email)

	// A login that ended elsewhere is none any more, and the client says what to do.
	var ended map[string]any
	key.answer(&ended, "DELETE", "/auth/logins/all", "{}")
	one.eventually(func(said string) bool { return strings.Contains(said, out) }, "admin", "user", "info")
	require.Contains(t, one.login(email, next, confirmed.Codes[1]), "Login succeeded.")
	require.Contains(t, one.must("logout"), "Logout done.")
}
