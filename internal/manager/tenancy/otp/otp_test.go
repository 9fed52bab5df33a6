package otp_test

import (
	"crypto/rand"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pquerna/otp/totp"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/otp"
)

// rig is a cluster with a clock that a test moves.
type rig struct {
	*managertest.World
	t    *testing.T
	late atomic.Int64
}

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newRig(t *testing.T, required ...authz.Role) *rig {
	t.Helper()
	r := &rig{t: t}
	r.World = managertest.New(t, func(d *nouns.Deps) { d.Clock, d.OTPRoles = r.now, required })
	return r
}

func (r *rig) now() time.Time { return began.Add(time.Duration(r.late.Load())) }

func (r *rig) pass(d time.Duration) { r.late.Add(int64(d)) }

// code is what an app shows for a secret, steps from now.
func (r *rig) code(key seal.Secret, steps int) string {
	r.t.Helper()
	code, err := totp.GenerateCode(key.Reveal(), r.now().Add(time.Duration(steps)*30*time.Second))
	require.NoError(r.t, err)
	return code
}

func (r *rig) enrolled() (seal.Secret, []string) {
	r.t.Helper()
	e, err := r.OTP.Enrol(r.t.Context(), r.Admin)
	require.NoError(r.t, err)
	codes, err := r.OTP.Confirm(r.t.Context(), r.Admin, r.code(e.Key, 0))
	require.NoError(r.t, err)
	require.Len(r.t, codes, 10)
	r.pass(time.Minute) // the code was used
	return e.Key, codes
}

func (r *rig) login(code string) error {
	return r.Tenancy.CheckSecondFactors(r.t.Context(), r.Admin, map[string]string{"otp": code})
}

// Codes of the moment, and of the step before and after, are good once; the answers are those that official clients know.
func TestCodes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, r.login(""), "who has no second factor is asked for none")
	key, _ := r.enrolled()
	err := r.login("")
	require.EqualError(t, err, "OTP not provided")
	require.Equal(t, tenancy.ReasonOTPNeeded, fault.ReasonOf(err))

	right := r.code(key, 0)
	require.NoError(t, r.login(right[:3]+" "+right[3:]))
	require.ErrorContains(t, r.login(right), "Invalid TOTP code provided", "a code was good twice")
	require.ErrorContains(t, r.login(r.code(key, -1)), "Invalid TOTP", "a code of before the last one is good")
	require.NoError(t, r.login(r.code(key, 1)), "a clock may be 30 seconds fast")
	r.pass(5 * time.Minute)
	require.NoError(t, r.login(r.code(key, -1)), "a clock may be 30 seconds slow")
	for _, wrong := range []string{r.code(key, -2), r.code(key, 2), "000000", "12345", "1234567", strings.Repeat("1", 10000), "é", "-1"} {
		require.ErrorContains(t, r.login(wrong), "Invalid TOTP", wrong)
	}
	require.NoError(t, r.login(r.code(key, 0)))
}

// Of logins that come at one time with one code, one is let in.
func TestOneCodeLetsOneIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key, codes := r.enrolled()
	for _, code := range []string{r.code(key, 0), codes[0]} {
		var in atomic.Int32
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if r.login(code) == nil {
					in.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, in.Load())
		r.Exec(`UPDATE user_totp SET failures = 0`)
	}
}

func TestRecoveryCodes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key, codes := r.enrolled()
	require.NoError(t, r.login(strings.ToUpper(strings.ReplaceAll(codes[3], "-", " "))), "neither case nor groups matter")
	require.ErrorContains(t, r.login(codes[3]), "Invalid TOTP", "a recovery code was good twice")
	s, err := r.OTP.Status(t.Context(), r.Admin)
	require.NoError(t, err)
	require.Equal(t, otp.Status{Activated: true, RecoveryCodes: 9}, s)

	_, err = r.OTP.RenewRecoveryCodes(t.Context(), r.Admin, codes[4])
	require.True(t, fault.Is(err, fault.Invalid), "recovery codes make no others: %v", err)
	fresh, err := r.OTP.RenewRecoveryCodes(t.Context(), r.Admin, r.code(key, 0))
	require.NoError(t, err)
	require.ErrorContains(t, r.login(codes[5]), "Invalid TOTP", "an old recovery code is good")
	require.NoError(t, r.login(fresh[0]))

	var kept int
	require.NoError(t, r.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM user_totp t, totp_recovery_codes c
WHERE t::text LIKE '%' || $1::text || '%' OR c::text LIKE '%' || $2::text || '%'`, key.Reveal(),
		strings.ReplaceAll(fresh[1], "-", "")).Scan(&kept))
	require.Zero(t, kept, "a secret is kept in the clear")
	require.NoError(t, r.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM audit_changes WHERE after::text LIKE '%' || $1::text || '%'
OR after::text LIKE '%\\\\x01%'`, key.Reveal()).Scan(&kept))
	require.Zero(t, kept, "the audit log has a secret")
}

// After ten wrong codes in a row none is looked at for a while, also not a right one.
func TestGuessingCodesEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key, codes := r.enrolled()
	for range 10 {
		require.ErrorContains(t, r.login("000000"), "Invalid TOTP")
	}
	r.Exec(`UPDATE user_totp SET failed_at = $1`, r.now())
	require.True(t, fault.Is(r.login(r.code(key, 0)), fault.Exhausted))
	require.True(t, fault.Is(r.login(codes[0]), fault.Exhausted))
	r.pass(15 * time.Minute)
	require.NoError(t, r.login(r.code(key, 0)))
	require.ErrorContains(t, r.login("000000"), "Invalid TOTP", "the count begins anew")
}

func TestEnrolment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	_, err := r.OTP.Confirm(ctx, r.Admin, "123456")
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	first, err := r.OTP.Enrol(ctx, r.Admin)
	require.NoError(t, err)
	require.NoError(t, r.login(""), "what was not confirmed counts")
	second, err := r.OTP.Enrol(ctx, r.Admin)
	require.NoError(t, err)
	_, err = r.OTP.Confirm(ctx, r.Admin, r.code(first.Key, 0))
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	u, err := url.Parse(second.URI.Reveal())
	require.NoError(t, err)
	require.Equal(t, "otpauth", u.Scheme)
	require.Equal(t, "/Berth:"+r.Admin.Email, u.Path)
	require.Equal(t, second.Key.Reveal(), u.Query().Get("secret"))
	_, err = r.OTP.Confirm(ctx, r.Admin, r.code(second.Key, 0))
	require.NoError(t, err)
	_, err = r.OTP.Enrol(ctx, r.Admin)
	require.True(t, fault.Is(err, fault.Conflict), "an active second factor was replaced: %v", err)
	view, err := r.Tenancy.GetUser(ctx, r.Admin, "")
	require.NoError(t, err)
	require.True(t, view.TOTPActivated)

	// An API token changes no second factor.
	with := r.Admin.Within(&authz.Scope{Token: "t"})
	require.True(t, fault.Is(r.OTP.Remove(ctx, with, ""), fault.Denied))
	stranger := r.Stranger("someone")
	require.True(t, fault.Is(r.OTP.Remove(ctx, stranger, r.Admin.Email), fault.NotFound))
	require.NoError(t, r.OTP.Remove(ctx, r.Admin, ""))
	require.NoError(t, r.login(""))
}

// Whoever has to have a second factor enrols at the login, by a token that the password brought; it ends, and is good for nothing else.
func TestRolesThatNeedASecondFactor(t *testing.T) {
	t.Parallel()
	r := newRig(t, authz.RoleSuperadmin)
	ctx := t.Context()
	ask := func() string {
		err := r.login("")
		require.Equal(t, tenancy.ReasonOTPRegistration, fault.ReasonOf(err))
		return fault.DataOf(err).(map[string]string)["two_factor_registration_token"]
	}
	late := ask()
	r.pass(5 * time.Minute)
	_, err := r.OTP.EnrolBefore(ctx, late)
	require.True(t, fault.Is(err, fault.Unauthenticated))
	token := ask()
	for _, wrong := range []string{"", "x", token[:len(token)-2], token + "AA", strings.Repeat("A", 5000)} {
		_, err := r.OTP.EnrolBefore(ctx, wrong)
		require.True(t, fault.Is(err, fault.Unauthenticated), "%q: %v", wrong, err)
	}
	e, err := r.OTP.EnrolBefore(ctx, token)
	require.NoError(t, err)
	_, err = r.OTP.ConfirmBefore(ctx, token, "000000")
	require.Error(t, err)
	_, err = r.OTP.ConfirmBefore(ctx, token, r.code(e.Key, 0))
	require.NoError(t, err)
	_, err = r.OTP.EnrolBefore(ctx, token)
	require.True(t, fault.Is(err, fault.Unauthenticated), "the token is good after it was used: %v", err)
	r.pass(time.Minute)
	require.NoError(t, r.login(r.code(e.Key, 0)))
	// Others are not asked.
	require.NoError(t, r.Tenancy.CheckSecondFactors(ctx, r.Stranger("someone"), nil))
	s, err := r.OTP.Status(ctx, r.Admin)
	require.NoError(t, err)
	require.True(t, s.Required)
}

// A new master key seals the secrets anew.
func TestReseal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	key, _ := r.enrolled()
	n, err := otp.Reseal(t.Context(), r.Store, managertest.Key(t))
	require.NoError(t, err)
	require.Zero(t, n)
	other, err := seal.New([]byte("another key of thirty-two bytes."), rand.Reader)
	require.NoError(t, err)
	_, err = otp.Reseal(t.Context(), r.Store, other)
	require.ErrorContains(t, err, "another master key", "the secret was not looked at")
	require.NoError(t, r.login(r.code(key, 0)))
}
