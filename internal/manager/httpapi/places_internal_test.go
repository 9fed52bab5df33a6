package httpapi

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

var (
	here  = netip.MustParseAddr("192.0.2.7")
	there = netip.MustParseAddr("198.51.100.9")
)

func user(name string) authz.Actor {
	return authz.Actor{UserID: cluster.UserID(name), AccessKey: "k", Role: authz.RoleUser}
}

func TestPlacesBoundUsersAddressesAndAll(t *testing.T) {
	t.Parallel()
	p := newPlaces(Limits{StreamsPerUser: 2, WaitsPerUser: 3, PerAddress: 4, Total: 6})
	take := func(name string, from netip.Addr, kind lastingKind) func() {
		leave, err := p.take(user(name), from, kind)
		require.NoError(t, err)
		return leave
	}
	refused := func(name string, from netip.Addr, kind lastingKind, want ...string) {
		_, err := p.take(user(name), from, kind)
		require.Error(t, err)
		for _, w := range want {
			require.Contains(t, err.Error()+"; "+fault.NextOf(err), w)
		}
	}
	first := take("ada", here, aStream)
	leaves := []func(){take("ada", here, aStream)}
	refused("ada", there, aStream, "you have 2 streams open", "close a stream", "manager.streams.streams_per_user")
	leaves = append(leaves, take("ada", here, aWait), take("bob", here, aStream))
	refused("bob", here, aStream, "4 streams and waiting requests come from address 192.0.2.7", "manager.trusted_proxies")
	leaves = append(leaves, take("bob", there, aStream), take("bob", there, aWait))
	refused("eve", netip.Addr{}, aStream, "this manager has 6 streams", "manager.streams.total")
	// A place is kept for those who repair it.
	admin := user("root")
	admin.Role = authz.RoleSuperadmin
	leave, err := p.take(admin, there, aStream)
	require.NoError(t, err)
	leave()
	first()
	take("eve", netip.Addr{}, aStream)()
	for _, leave := range leaves {
		leave()
	}
	require.Zero(t, p.total)
	require.Empty(t, p.byUser, "nothing is kept of those who hold nothing")
	require.Empty(t, p.byAddress)
}

func TestAnAddressOfIPv6IsItsNetwork(t *testing.T) {
	t.Parallel()
	p := newPlaces(Limits{StreamsPerUser: 9, WaitsPerUser: 9, PerAddress: 1, Total: 9})
	_, err := p.take(user("ada"), netip.MustParseAddr("2001:db8::1"), aStream)
	require.NoError(t, err)
	_, err = p.take(user("bob"), netip.MustParseAddr("2001:db8::2"), aStream)
	require.True(t, fault.Is(err, fault.Exhausted))
	_, err = p.take(user("bob"), netip.MustParseAddr("2001:db8:0:1::2"), aStream)
	require.NoError(t, err)
}

// attempt is a login that ends as said; it returns how long it waited.
func attempt(t *testing.T, l *logins, account string, from netip.Addr, outcome loginOutcome) (time.Duration, error) {
	t.Helper()
	began := time.Now()
	done, err := l.begin(t.Context(), account, from, began)
	if err == nil {
		done(outcome)
	}
	return time.Since(began), err
}

func TestWrongPasswordsLockNobodyElseOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogins()
		_, err := attempt(t, l, "ada@x.org", here, loginGood)
		require.NoError(t, err)
		for range maxWrong {
			_, err = attempt(t, l, "bob@x.org", here, loginWrong)
			require.NoError(t, err)
		}
		_, err = attempt(t, l, "bob@x.org", here, loginGood)
		require.True(t, fault.Is(err, fault.Exhausted))
		require.EqualError(t, err, "bob@x.org got 10 wrong passwords from address 192.0.2.7, which is all that it may get in 15 minutes")
		require.Contains(t, fault.NextOf(err), "wait 15m0s, log in from another network")
		// Others behind the same proxy, and the same account elsewhere, are not concerned.
		for _, at := range []loginPair{{"ada@x.org", here}, {"eve@x.org", here}, {"bob@x.org", there}} {
			waited, err := attempt(t, l, at.account, at.from, loginGood)
			require.NoError(t, err)
			require.Zero(t, waited)
		}
		time.Sleep(loginWindow)
		_, err = attempt(t, l, "bob@x.org", here, loginGood)
		require.NoError(t, err)
	})
}

func TestAnAccountUnderAttackStaysOpenWhereItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogins()
		_, err := attempt(t, l, "ada@x.org", here, loginGood)
		require.NoError(t, err)
		for i := range 60 { // a few guesses from each of many addresses
			_, err := attempt(t, l, "ada@x.org", netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), loginWrong)
			require.NoError(t, err)
		}
		waited, err := attempt(t, l, "ada@x.org", there, loginUndecided)
		require.NoError(t, err, "it is slowed down where it is unknown, and not locked")
		require.Equal(t, maxLoginDelay, waited)
		waited, err = attempt(t, l, "ada@x.org", here, loginGood)
		require.NoError(t, err)
		require.Zero(t, waited)
	})
}

func TestAnAddressHasPlacesForItsKnownAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogins()
		_, err := attempt(t, l, "ada@x.org", here, loginGood)
		require.NoError(t, err)
		var under []func(loginOutcome)
		for i := range maxAttempts {
			done, err := l.begin(t.Context(), fmt.Sprintf("u%d@x.org", i), here, time.Now())
			require.NoError(t, err)
			under = append(under, done)
		}
		_, err = attempt(t, l, "eve@x.org", here, loginGood)
		require.EqualError(t, err, "16 logins from address 192.0.2.7 are under way, which is all that one address may have")
		_, err = attempt(t, l, "ada@x.org", here, loginGood)
		require.NoError(t, err)
		for _, done := range under {
			done(loginWrong)
		}
		require.Empty(t, l.running)
	})
}

func TestALoginThatWaitsEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogins()
		for i := range 200 {
			_, err := attempt(t, l, fmt.Sprintf("u%d@x.org", i), here, loginWrong)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := l.begin(ctx, "eve@x.org", here, time.Now())
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, l.running)
	})
}
