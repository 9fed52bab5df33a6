package throttle

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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
	p := NewPlaces(Limits{StreamsPerUser: 2, WaitsPerUser: 3, PerAddress: 4, Total: 6})
	take := func(name string, from netip.Addr, kind Kind) func() {
		leave, err := p.Take(user(name), from, kind)
		require.NoError(t, err)
		return leave
	}
	refused := func(name string, from netip.Addr, kind Kind, want ...string) {
		_, err := p.Take(user(name), from, kind)
		require.Error(t, err)
		for _, w := range want {
			require.Contains(t, err.Error()+"; "+fault.NextOf(err), w)
		}
	}
	first := take("ada", here, Stream)
	leaves := []func(){take("ada", here, Stream)}
	refused("ada", there, Stream, "you have 2 streams open", "close a stream", "manager.streams.streams_per_user")
	leaves = append(leaves, take("ada", here, Wait), take("bob", here, Stream))
	refused("bob", here, Stream, "4 streams and waiting requests come from address 192.0.2.7", "manager.trusted_proxies")
	leaves = append(leaves, take("bob", there, Stream), take("bob", there, Wait))
	refused("eve", netip.Addr{}, Stream, "this manager has 6 streams", "manager.streams.total")
	// A place is kept for those who repair it.
	admin := user("root")
	admin.Role = authz.RoleSuperadmin
	leave, err := p.Take(admin, there, Stream)
	require.NoError(t, err)
	leave()
	first()
	take("eve", netip.Addr{}, Stream)()
	for _, leave := range leaves {
		leave()
	}
	require.Zero(t, p.total)
	require.Empty(t, p.byUser, "nothing is kept of those who hold nothing")
	require.Empty(t, p.byAddress)
}

func TestAnAddressOfIPv6IsItsNetwork(t *testing.T) {
	t.Parallel()
	p := NewPlaces(Limits{StreamsPerUser: 9, WaitsPerUser: 9, PerAddress: 1, Total: 9})
	_, err := p.Take(user("ada"), netip.MustParseAddr("2001:db8::1"), Stream)
	require.NoError(t, err)
	_, err = p.Take(user("bob"), netip.MustParseAddr("2001:db8::2"), Stream)
	require.True(t, fault.Is(err, fault.Exhausted))
	_, err = p.Take(user("bob"), netip.MustParseAddr("2001:db8:0:1::2"), Stream)
	require.NoError(t, err)
}

// attempt is a login that ends as said; it returns how long it waited.
func attempt(t *testing.T, l *Logins, account string, from netip.Addr, outcome Outcome) (time.Duration, error) {
	t.Helper()
	began := time.Now()
	done, err := l.Begin(t.Context(), account, from, began)
	if err == nil {
		done(outcome)
	}
	return time.Since(began), err
}

func TestWrongPasswordsLockNobodyElseOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLogins()
		_, err := attempt(t, l, "ada@x.org", here, Good)
		require.NoError(t, err)
		for range maxWrong {
			_, err = attempt(t, l, "bob@x.org", here, Wrong)
			require.NoError(t, err)
		}
		_, err = attempt(t, l, "bob@x.org", here, Good)
		require.True(t, fault.Is(err, fault.Exhausted))
		require.EqualError(t, err, "bob@x.org got 10 wrong passwords from address 192.0.2.7, which is all that it may get in 15 minutes")
		require.Contains(t, fault.NextOf(err), "wait 15m0s, log in from another network")
		// Others behind the same proxy, and the same account elsewhere, are not concerned.
		for _, at := range []loginPair{{"ada@x.org", here}, {"eve@x.org", here}, {"bob@x.org", there}} {
			waited, err := attempt(t, l, at.account, at.from, Good)
			require.NoError(t, err)
			require.Zero(t, waited)
		}
		<-time.After(loginWindow)
		_, err = attempt(t, l, "bob@x.org", here, Good)
		require.NoError(t, err)
	})
}

// Directories find an account by its name in any case, width and spacing: each of these is a guess at the same password.
func TestOneAccountHasOneCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLogins()
		names := []string{"bob@x.org", "BOB@x.org", "Bob@X.org", " bob@x.org", "bob@x.org  ", "\uff42ob@x.org", "bob@x.ORG\t"}
		for i := range maxWrong {
			_, err := attempt(t, l, names[i%len(names)], here, Wrong)
			require.NoError(t, err)
		}
		for _, name := range append(names, "bOb@x.org") {
			_, err := attempt(t, l, name, here, Good)
			require.True(t, fault.Is(err, fault.Exhausted), name)
		}
	})
}

func TestAnAccountUnderAttackStaysOpenWhereItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLogins()
		_, err := attempt(t, l, "ada@x.org", here, Good)
		require.NoError(t, err)
		for i := range 60 { // a few guesses from each of many addresses
			_, err := attempt(t, l, "ada@x.org", netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Wrong)
			require.NoError(t, err)
		}
		waited, err := attempt(t, l, "ada@x.org", there, Undecided)
		require.NoError(t, err, "it is slowed down where it is unknown, and not locked")
		require.Equal(t, maxLoginDelay, waited)
		waited, err = attempt(t, l, "ada@x.org", here, Good)
		require.NoError(t, err)
		require.Zero(t, waited)
	})
}

func TestAnAddressHasPlacesForItsKnownAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLogins()
		_, err := attempt(t, l, "ada@x.org", here, Good)
		require.NoError(t, err)
		var under []func(Outcome)
		for i := range maxAttempts {
			done, err := l.Begin(t.Context(), fmt.Sprintf("u%d@x.org", i), here, time.Now())
			require.NoError(t, err)
			under = append(under, done)
		}
		_, err = attempt(t, l, "eve@x.org", here, Good)
		require.EqualError(t, err, "16 logins from address 192.0.2.7 are under way, which is all that one address may have")
		_, err = attempt(t, l, "ada@x.org", here, Good)
		require.NoError(t, err)
		for _, done := range under {
			done(Wrong)
		}
		require.Empty(t, l.running)
	})
}

// TestPasswordsFromEverywhereLeaveRoom: however many addresses send passwords, a bounded number is checked at a time. Those that are made
// to wait take no place, and accounts are let in from where they are known.
func TestPasswordsFromEverywhereLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLogins()
		_, err := attempt(t, l, "ada@x.org", here, Good)
		require.NoError(t, err)
		for range patientWithAddress + 100 {
			l.note(loginPair{"", there}, Wrong, time.Now())
		}
		var waiting sync.WaitGroup
		for i := range maxAttempts {
			waiting.Go(func() {
				_, err := attempt(t, l, fmt.Sprintf("v%d@x.org", i), there, Wrong)
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		var under []func(Outcome)
		for i := range maxUnknown {
			done, err := l.Begin(t.Context(), fmt.Sprintf("u%d@x.org", i), netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), time.Now())
			require.NoError(t, err)
			under = append(under, done)
		}
		_, err = attempt(t, l, "eve@x.org", netip.MustParseAddr("198.51.100.1"), Good)
		require.EqualError(t, err, "64 logins from places that are new to their accounts are being checked, which is all that is done at a time")
		_, err = attempt(t, l, "ada@x.org", here, Good)
		require.NoError(t, err)
		for _, done := range under {
			done(Wrong)
		}
		waiting.Wait()
		require.Empty(t, l.running)
		require.Zero(t, l.unknown)
	})
}

func TestALoginThatWaitsEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLogins()
		for i := range 200 {
			_, err := attempt(t, l, fmt.Sprintf("u%d@x.org", i), here, Wrong)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := l.Begin(ctx, "eve@x.org", here, time.Now())
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, l.running)
	})
}
