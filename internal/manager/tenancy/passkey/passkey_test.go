package passkey_test

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/passkey"
)

const origin = "https://berth.example.org"

type rig struct {
	*managertest.World
	late atomic.Int64
}

func (r *rig) now() time.Time       { return time.Now().Add(time.Duration(r.late.Load())) }
func (r *rig) pass(d time.Duration) { r.late.Add(int64(d)) }

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{}
	r.World = managertest.New(t, func(d *nouns.Deps) { d.Clock, d.WebOrigins = r.now, []string{origin} })
	return r
}

// user makes a user and opens a login of theirs.
func (r *rig) user(email string) (authz.Actor, string) {
	r.T.Helper()
	secret := seal.Secret("a long and unusual phrase 7")
	_, err := r.Tenancy.CreateUser(r.T.Context(), r.Admin, email, tenancy.UserProps{Password: &secret, Domain: new("default")})
	require.NoError(r.T, err)
	l, err := r.Tenancy.Login(r.T.Context(), tenancy.LoginAttempt{Domain: "default", Email: email, Password: secret})
	require.NoError(r.T, err)
	a, _, err := r.Tenancy.Authenticate(r.T.Context(), l.AccessKey)
	require.NoError(r.T, err)
	return a, l.Token.Reveal()
}

func (r *rig) enrol(d *device, token, name string) (passkey.Passkey, error) {
	r.T.Helper()
	c, err := r.Passkeys.BeginEnrol(r.T.Context(), token)
	if err != nil {
		return passkey.Passkey{}, err
	}
	return r.Passkeys.Enrol(r.T.Context(), token, c.Flow.Reveal(), name, d.enrol(c))
}

func (r *rig) begin() passkey.Ceremony {
	r.T.Helper()
	c, err := r.Passkeys.BeginLogin(r.T.Context())
	require.NoError(r.T, err)
	return c
}

func (r *rig) login(d *device) (tenancy.Login, error) {
	r.T.Helper()
	c := r.begin()
	return r.Passkeys.Login(r.T.Context(), c.Flow.Reveal(), d.login(c), tenancy.LoginAttempt{From: netip.MustParseAddr("192.0.2.1")})
}

func TestAPasskeyLogsIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, token := r.user("ada@example.org")
	d := newDevice(t)
	k, err := r.enrol(d, token, "laptop")
	require.NoError(t, err)
	// It stands for both factors.
	_, err = r.Store.Pool().Exec(t.Context(), `UPDATE users SET totp_activated = true WHERE id = $1`, string(a.UserID))
	require.NoError(t, err)
	l, err := r.login(d)
	require.NoError(t, err)
	require.Equal(t, a.UserID, l.UserID)
	_, err = r.Tenancy.ResumeLogin(t.Context(), l.Token.Reveal())
	require.NoError(t, err)
	_, err = r.login(d)
	require.NoError(t, err)

	list, err := r.Passkeys.List(t.Context(), a, "")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.NotNil(t, list[0].LastUsed)
	require.NoError(t, r.Passkeys.Rename(t.Context(), a, k.ID, "old laptop"))
	require.True(t, fault.Is(r.Passkeys.Rename(t.Context(), a, k.ID, ""), fault.Invalid))
	require.NoError(t, r.Passkeys.Delete(t.Context(), a, k.ID))
	_, err = r.login(d)
	require.True(t, fault.Is(err, fault.Unauthenticated))
}

// Whatever does not fit opens nothing.
func TestPasskeysThatOpenNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, token := r.user("ada@example.org")
	_, other := r.user("bob@example.org")
	d := newDevice(t)
	_, err := r.enrol(d, token, "laptop")
	require.NoError(t, err)
	ds := newDevice(t)
	_, err = r.enrol(ds, other, "phone")
	require.NoError(t, err)
	refused := func(words string, err error) {
		t.Helper()
		require.True(t, fault.Is(err, fault.Unauthenticated) || fault.Is(err, fault.Invalid), "%s: %v", words, err)
	}
	try := func(words string, change func(*device)) {
		t.Helper()
		bad := *d
		change(&bad)
		_, err := r.login(&bad)
		refused(words, err)
	}
	try("another site", func(d *device) { d.origin = "https://evil.example.org" })
	try("another port", func(d *device) { d.origin = origin + ":8443" })
	try("without TLS", func(d *device) { d.origin = "http://berth.example.org" })
	try("a passkey of another site", func(d *device) { d.rp = "evil.example.org" })
	try("the user was not checked", func(d *device) { d.verified = false })
	try("another key", func(d *device) { d.key = ds.key })
	try("the handle of another user", func(d *device) { d.handle = ds.handle })
	try("no such passkey", func(d *device) { d.id = []byte("none") })
	try("no handle", func(d *device) { d.handle = nil })

	c := r.begin()
	answer := d.login(c)
	login := func(flow string, answer []byte) error {
		_, err := r.Passkeys.Login(t.Context(), flow, answer, tenancy.LoginAttempt{})
		return err
	}
	refused("the challenge of another ceremony", login(r.begin().Flow.Reveal(), answer))
	refused("a made-up ceremony", login("AAAA", answer))
	refused("no ceremony", login("", answer))
	enrolment, err := r.Passkeys.BeginEnrol(t.Context(), token)
	require.NoError(t, err)
	refused("the ceremony of an enrolment", login(enrolment.Flow.Reveal(), d.login(enrolment)))
	require.NoError(t, login(c.Flow.Reveal(), answer))
	refused("replayed", login(c.Flow.Reveal(), answer))
	for _, raw := range []string{"", "{}", "[]", "null", `{"id":"AA","rawId":"AA","type":"public-key","response":{}}`} {
		refused(raw, login(r.begin().Flow.Reveal(), []byte(raw)))
	}
	c = r.begin()
	r.pass(6 * time.Minute)
	refused("late", login(c.Flow.Reveal(), d.login(c)))

	_, err = r.Store.Pool().Exec(t.Context(), `UPDATE users SET status = 'inactive' WHERE email = 'ada@example.org'`)
	require.NoError(t, err)
	_, err = r.login(d)
	refused("an inactive user", err)
}

// A counter that goes back tells that there are two of a passkey. It opens nothing from then on.
func TestACopyClosesThePasskey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, token := r.user("ada@example.org")
	d := newDevice(t)
	_, err := r.enrol(d, token, "laptop")
	require.NoError(t, err)
	thief := *d
	for range 2 {
		_, err = r.login(d)
		require.NoError(t, err)
	}
	_, err = r.login(&thief)
	require.ErrorContains(t, err, "was copied")
	_, err = r.login(d)
	require.ErrorContains(t, err, "was copied")
	list, err := r.Passkeys.List(t.Context(), a, "")
	require.NoError(t, err)
	require.True(t, list[0].Cloned)
	var n int
	require.NoError(t, r.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM audit_log WHERE action = 'passkey.close'`).Scan(&n))
	require.Equal(t, 1, n)
}

func TestEnrolmentNeedsAFreshLogin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, token := r.user("ada@example.org")
	_, other := r.user("bob@example.org")
	d := newDevice(t)
	c, err := r.Passkeys.BeginEnrol(t.Context(), token)
	require.NoError(t, err)
	answer := d.enrol(c)
	enrol := func(token, name string, answer []byte) error {
		_, err := r.Passkeys.Enrol(t.Context(), token, c.Flow.Reveal(), name, answer)
		return err
	}
	require.Error(t, enrol(other, "x", answer), "somebody else's ceremony")
	require.Error(t, enrol("", "x", answer))
	require.True(t, fault.Is(enrol(token, "", answer), fault.Invalid))
	require.NoError(t, enrol(token, "x", answer))
	require.Error(t, enrol(token, "y", answer), "replayed")
	_, err = r.enrol(newDevice(t), token, "x")
	require.True(t, fault.Is(err, fault.Conflict), "the name is taken")
	_, err = r.enrol(d, other, "stolen")
	require.True(t, fault.Is(err, fault.Conflict), "the passkey is another user's: %v", err)
	for words, change := range map[string]func(*device){
		"another site":     func(d *device) { d.origin = "https://evil.example.org" },
		"another rp":       func(d *device) { d.rp = "evil.example.org" },
		"user not checked": func(d *device) { d.verified = false },
	} {
		d := newDevice(t)
		change(d)
		_, err := r.enrol(d, token, words)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", words, err)
	}
	for i := 2; i <= 20; i++ {
		_, err := r.enrol(newDevice(t), token, fmt.Sprint("key ", i))
		require.NoError(t, err)
	}
	_, err = r.enrol(newDevice(t), token, "one too many")
	require.True(t, fault.Is(err, fault.Exhausted))
	r.pass(11 * time.Minute)
	_, err = r.Passkeys.BeginEnrol(t.Context(), token)
	require.True(t, fault.Is(err, fault.Denied), "the login is old: %v", err)
	require.True(t, fault.Is(enrol(token, "z", answer), fault.Denied))
}

func TestStrangersLeavePasskeysAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, token := r.user("ada@example.org")
	bob, _ := r.user("bob@example.org")
	d := newDevice(t)
	k, err := r.enrol(d, token, "laptop")
	require.NoError(t, err)
	require.True(t, fault.Is(r.Passkeys.Delete(t.Context(), bob, k.ID), fault.NotFound))
	require.True(t, fault.Is(r.Passkeys.Rename(t.Context(), bob, k.ID, "mine"), fault.NotFound))
	_, err = r.Passkeys.List(t.Context(), bob, "ada@example.org")
	require.True(t, fault.Is(err, fault.NotFound))
	scoped := r.Admin.Within(&authz.Scope{Token: "x"})
	require.True(t, fault.Is(r.Passkeys.Delete(t.Context(), scoped, k.ID), fault.Denied), "an API token")
	require.NoError(t, r.Passkeys.Delete(t.Context(), r.Admin, k.ID))
	_, err = r.Tenancy.ResumeLogin(t.Context(), token)
	require.Error(t, err, "an administrator's deletion ends the logins")
}

func TestWithoutOriginsThereAreNone(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	_, err := w.Passkeys.BeginLogin(t.Context())
	require.True(t, fault.Is(err, fault.Conflict))
	_, err = passkey.New(passkey.Deps{Store: w.Store, Seal: managertest.Key(t), Tenancy: w.Tenancy, IDs: func() string { return "" },
		Log: w.Deps.Log, Origins: []string{origin, "https://other.example.org"}})
	require.ErrorContains(t, err, "cannot be used at")
}
