package letter_test

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/apply"
	"berth.dev/berth/internal/manager/tenancy/letter"
	"berth.dev/berth/internal/manager/tenancy/plan"
	"berth.dev/berth/internal/testkit/await"
)

// box keeps e-mails.
type box struct{ mails chan [3]string }

func (b *box) Send(_ context.Context, to, subject, text string) error {
	b.mails <- [3]string{to, subject, text}
	return nil
}

// rig is a cluster whose e-mails a test reads, with a clock that it moves.
type rig struct {
	*managertest.World
	t    *testing.T
	box  *box
	late atomic.Int64
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, box: &box{make(chan [3]string, 100)}}
	began := time.Now()
	r.World = managertest.New(t, func(d *nouns.Deps) {
		d.Mailer, d.Link = r.box, "https://b.example/{kind}?token={token}"
		d.Clock = func() time.Time { return began.Add(time.Duration(r.late.Load())) }
	})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Letters.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return r
}

var tokens = regexp.MustCompile(`https://b\.example/(\w+)\?token=([\w-]{43})\n`)

// read returns the next e-mail's reader and token.
func (r *rig) read(kind string) (to, token string) {
	r.t.Helper()
	m := await.Value(r.t, r.box.mails)
	found := tokens.FindStringSubmatch(m[2])
	require.NotNil(r.t, found, m[2])
	require.Equal(r.t, kind, found[1])
	return m[0], found[2]
}

func (r *rig) login(password string) error {
	_, err := r.Tenancy.Authorize(r.t.Context(), "default", tenancy.AdminEmail, seal.Secret(password))
	return err
}

// A new password is set once, within its time, by who reads the e-mail; nobody learns which addresses there are.
func TestNewPasswordsByEMail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	const fresh = "correct horse battery"
	for _, unknown := range []string{"nobody@x.org", "", strings.Repeat("x", 5000), "a\x00b"} {
		require.NoError(t, r.Letters.RequestReset(ctx, unknown))
	}
	require.NoError(t, r.Letters.RequestReset(ctx, tenancy.AdminEmail))
	require.NoError(t, r.Letters.RequestReset(ctx, tenancy.AdminEmail))
	to, token := r.read("reset")
	require.Equal(t, tenancy.AdminEmail, to)
	_, second := r.read("reset")
	require.Empty(t, r.box.mails, "an unknown address got an e-mail")

	for _, bad := range []string{"", "x", token + "x", strings.ToLower(token)} {
		require.True(t, fault.Is(r.Letters.Reset(ctx, bad, fresh), fault.Unauthenticated), bad)
	}
	require.True(t, fault.Is(r.Letters.Reset(ctx, token, "password1"), fault.Invalid), "the rules hold")
	_, err := r.Letters.Accept(ctx, token, tenancy.UserProps{})
	require.True(t, fault.Is(err, fault.Unauthenticated), "a token of another kind")
	var done atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if r.Letters.Reset(ctx, token, fresh) == nil {
				done.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, done.Load(), "a token is good once")
	require.NoError(t, r.login(fresh))
	require.True(t, fault.Is(r.Letters.Reset(ctx, second, "another good one!"), fault.Unauthenticated), "other e-mails end with a reset")

	require.NoError(t, r.Letters.RequestReset(ctx, tenancy.AdminEmail))
	_, late := r.read("reset")
	r.late.Store(int64(30 * time.Minute))
	require.True(t, fault.Is(r.Letters.Reset(ctx, late, fresh), fault.Unauthenticated))
	for range 5 {
		require.NoError(t, r.Letters.RequestReset(ctx, tenancy.AdminEmail))
	}
	for range 3 {
		_, token = r.read("reset")
	}
	r.Exec(`UPDATE users SET status = 'inactive' WHERE email = $1`, tenancy.AdminEmail)
	require.True(t, fault.Is(r.Letters.Reset(ctx, token, fresh), fault.Unauthenticated), "an inactive user")
	require.NoError(t, r.Letters.RequestReset(ctx, tenancy.AdminEmail))
	require.NoError(t, r.Letters.RequestReset(ctx, "last@x.org"))
	require.Empty(t, r.box.mails, "more than three e-mails, or one of an inactive user")
	var kept int
	require.NoError(t, r.Store.Pool().QueryRow(ctx, `SELECT count(*) FROM letters l WHERE l::text LIKE '%' || $1::text || '%'`, token).
		Scan(&kept))
	require.Zero(t, kept)
}

// An invitation makes one account, with the address that it was sent to, where the inviter may make one still.
func TestInvitations(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	password := seal.Secret("correct horse battery")
	accept := func(token string) (*tenancy.User, error) {
		return r.Letters.Accept(ctx, token, tenancy.UserProps{Password: &password, Username: new("ada")})
	}
	require.NoError(t, r.Letters.Invite(ctx, r.Admin, letter.Invitation{Email: "ada@x.org"}))
	to, token := r.read("invitation")
	require.Equal(t, "ada@x.org", to)
	require.True(t, fault.Is(r.Letters.Reset(ctx, token, password), fault.Unauthenticated), "a token of another kind")
	users := make(chan *tenancy.User, 4)
	var all sync.WaitGroup
	for range cap(users) {
		all.Go(func() {
			if u, err := accept(token); err == nil {
				users <- u
			}
		})
	}
	all.Wait()
	require.Len(t, users, 1, "four take one invitation")
	u := await.Value(t, users)
	require.Equal(t, "ada@x.org", u.Email)
	require.Equal(t, "default", u.Domain)
	_, err := accept(token)
	require.True(t, fault.Is(err, fault.Unauthenticated), "a token is good once: %v", err)

	require.NoError(t, r.Letters.Invite(ctx, r.Admin, letter.Invitation{Email: "bob@x.org"}))
	_, token = r.read("invitation")
	r.Exec(`UPDATE keypairs SET is_active = false WHERE access_key = $1`, r.Admin.AccessKey)
	_, err = accept(token)
	require.True(t, fault.Is(err, fault.Unauthenticated), "the inviter is not active: %v", err)
	require.True(t, fault.Is(r.Letters.Invite(ctx, r.Stranger("eve"), letter.Invitation{Email: "a@x.org", Domain: "default"}), fault.Denied))
	for _, bad := range []letter.Invitation{{Email: "x"}, {Email: "a@x.org\r\nBcc: b@x.org"}} {
		require.True(t, fault.Is(r.Letters.Invite(ctx, r.Admin, bad), fault.Invalid))
	}
}

// Without a mail server the cluster says so, also to strangers: it tells nothing of users.
func TestWithoutMail(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	require.True(t, fault.Is(w.Letters.RequestReset(t.Context(), tenancy.AdminEmail), fault.Conflict))
	require.True(t, fault.Is(w.Letters.Invite(t.Context(), w.Admin, letter.Invitation{Email: "a@x.org"}), fault.Conflict))
}

// Strangers make accounts where the operator says so alone; they are let in when an administrator says so, and have no other role.
func TestSignUp(t *testing.T) {
	t.Parallel()
	password := seal.Secret("correct horse battery")
	props := tenancy.UserProps{Password: &password}
	closed := managertest.New(t)
	_, err := closed.Tenancy.SignUp(t.Context(), "default", "eve@x.org", props)
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	open := managertest.New(t, func(d *nouns.Deps) { d.SignUp.Domains = []string{"default"} })
	k, err := open.Tenancy.SignUp(t.Context(), "default", "eve@x.org", props)
	require.NoError(t, err)
	_, _, err = open.Tenancy.Authenticate(t.Context(), k.AccessKey)
	require.True(t, fault.Is(err, fault.Unauthenticated), "let in before anybody agreed")
	_, err = open.Tenancy.Authorize(t.Context(), "default", "eve@x.org", password)
	require.True(t, fault.Is(err, fault.Unauthenticated))
	require.NoError(t, open.Tenancy.ModifyUser(t.Context(), open.Admin, "eve@x.org", tenancy.UserProps{Status: new("active")}))
	a, _, err := open.Tenancy.Authenticate(t.Context(), k.AccessKey)
	require.NoError(t, err)
	require.Equal(t, "user", string(a.Role))
	for name, bad := range map[string]struct {
		domain, email string
		p             tenancy.UserProps
	}{
		"taken":             {"default", "eve@x.org", props},
		"another domain":    {"other", "a@x.org", props},
		"no address":        {"default", "a", props},
		"a common password": {"default", "a@x.org", tenancy.UserProps{Password: new(seal.Secret("password1"))}},
		"none":              {"default", "a@x.org", tenancy.UserProps{}},
	} {
		_, err := open.Tenancy.SignUp(t.Context(), bad.domain, bad.email, bad.p)
		require.Error(t, err, name)
	}
	root := tenancy.UserProps{Password: &password, Role: new(open.Admin.Role), Status: new("active")}
	k, err = open.Tenancy.SignUp(t.Context(), "default", "mallory@x.org", root)
	require.NoError(t, err)
	require.Equal(t, "user", string(k.Role))
	require.Equal(t, "before-verification", k.Status)
}

// Users whom an import makes get an e-mail with which they set their first password, within a week.
func TestImportedUsersSetTheirFirstPassword(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	results, err := r.Tenancies.Apply(ctx, r.Admin, []apply.Step{{Change: plan.Change{Kind: plan.User, Name: "ada@x", Domain: "default",
		Make: true}, Letter: true}})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	to, token := r.read("reset")
	require.Equal(t, "ada@x", to)
	r.late.Store(int64(6 * 24 * time.Hour))
	require.NoError(t, r.Letters.Reset(ctx, token, "correct horse battery"))
	_, err = r.Tenancy.Authorize(ctx, "default", "ada@x", "correct horse battery")
	require.NoError(t, err)
}
