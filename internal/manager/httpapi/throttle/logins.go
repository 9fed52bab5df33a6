package throttle

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/text/unicode/norm"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/fault"
)

// What wrong passwords lead to. No limit is about an address or an account alone, so that nobody locks out others: not the people
// behind the same proxy, not the owner of an account whose name is known.
const (
	// maxWrong is how many wrong passwords an account may get from one address in a window; maxWrongKnown when the account has logged in
	// from there before.
	maxWrong, maxWrongKnown = 10, 100
	loginWindow             = 15 * time.Minute
	// Beyond so many wrong passwords, further logins of the account, or from the address, wait a little longer each time.
	patientWithAccount, patientWithAddress = 30, 100
	loginDelay, maxLoginDelay              = 250 * time.Millisecond, 5 * time.Second
	// maxAttempts is how many logins from one address are under way at one time. As many more are kept for accounts that have logged in
	// from there before.
	maxAttempts = 16
	// maxUnknown is how many passwords of accounts that have not logged in from where they come are checked or wait for that at one time,
	// of all addresses together. Each takes tens of milliseconds of a processor, and the others wait behind them.
	maxUnknown = 64
	// maxLoginKeys and maxKnownPlaces bound what is remembered.
	maxLoginKeys, maxKnownPlaces = 50_000, 100_000
)

// loginPair is an account at an address.
type loginPair struct {
	account string
	from    netip.Addr
}

// attempts are the logins under way at an address, of accounts that are known there or not.
type attempts struct {
	from  netip.Addr
	known bool
}

// Logins remembers how logins went. Everything is kept in the memory of one manager and may be lost: accounts are then unknown
// at their addresses until they log in again.
type Logins struct {
	mu sync.Mutex
	// known are the pairs that logged in; only successes get in, so that wrong passwords push none out.
	known *lru.Cache[loginPair, struct{}]
	// wrong are counts of wrong passwords of pairs, of accounts (from is zero) and of addresses (account is "").
	wrong   *lru.Cache[loginPair, wrongs]
	running map[attempts]int
	// unknown counts the passwords that maxUnknown bounds.
	unknown int
}

// wrongs are the wrong passwords since a moment.
type wrongs struct {
	n     int
	since time.Time
}

// NewLogins remembers nothing yet.
func NewLogins() *Logins {
	// The only error of New is about sizes that are not positive.
	known, _ := lru.New[loginPair, struct{}](maxKnownPlaces)
	wrong, _ := lru.New[loginPair, wrongs](maxLoginKeys)
	return &Logins{known: known, wrong: wrong, running: map[attempts]int{}}
}

// count returns the wrong passwords of the window that has not ended; mu is held.
func (l *Logins) count(key loginPair, now time.Time) wrongs {
	w, ok := l.wrong.Get(key)
	if !ok || now.Sub(w.since) >= loginWindow || now.Before(w.since) {
		return wrongs{since: now}
	}
	return w
}

// folded is an account's name as directories compare names: neither case nor width nor spacing tells two apart. Else each way to write a
// name had guesses of its own.
func folded(account string) string {
	text := norm.NFKC.String(fault.Clip(account, 200))
	return strings.Join(strings.Fields(strings.ToLower(text)), " ")
}

// Begin admits a login, after a while when there were many wrong passwords. The caller tells done how it ended.
func (l *Logins) Begin(ctx context.Context, account string, from netip.Addr, now time.Time) (done func(outcome Outcome), err error) {
	it := loginPair{folded(account), clientaddr.Network(from)}
	wait, place, err := l.admit(it, now)
	if err != nil {
		return nil, err
	}
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		drop(l.running, place)
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			leave()
			return nil, ctx.Err()
		}
	}
	// Those that are made to wait take no place from others meanwhile.
	if !place.known && !l.takeUnknown(1) {
		leave()
		return nil, fault.Exhaustedf("%d logins from places that are new to their accounts are being checked, "+
			"which is all that is done at a time", maxUnknown).WithReason(Reason).
			WithNext("try again in some seconds; if this lasts, somebody tries passwords from many addresses, and berth audit list names them")
	}
	return func(outcome Outcome) {
		if !place.known {
			l.takeUnknown(-1)
		}
		leave()
		l.note(it, outcome, now)
	}, nil
}

// takeUnknown takes places that maxUnknown bounds, or gives them back.
func (l *Logins) takeUnknown(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unknown+n > maxUnknown {
		return false
	}
	l.unknown += n
	return true
}

// Outcome is how a login ended.
type Outcome int

// A login may end by something else than its password.
const (
	Undecided Outcome = iota
	Good
	Wrong
)

// admit decides about a login and takes its place.
func (l *Logins) admit(it loginPair, now time.Time) (wait time.Duration, place attempts, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.known.Contains(it)
	most := maxWrong
	if known {
		most = maxWrongKnown
	}
	if w := l.count(it, now); w.n >= most {
		return 0, place, fault.Exhaustedf("%s got %d wrong passwords from address %s, which is all that it may get in %d minutes",
			it.account, w.n, it.from, int(loginWindow/time.Minute)).WithReason(Reason).
			WithNext("wait %s, log in from another network, or ask an administrator for a new password",
				(loginWindow - now.Sub(w.since)).Round(time.Second))
	}
	place = attempts{it.from, known}
	if l.running[place] >= maxAttempts {
		return 0, place, fault.Exhaustedf("%d logins from address %s are under way, which is all that one address may have", maxAttempts,
			it.from).WithReason(Reason).
			WithNext("try again in some seconds; if a proxy stands there, ask an administrator to add it to manager.trusted_proxies")
	}
	l.running[place]++
	if known {
		return 0, place, nil
	}
	over := max(l.count(loginPair{account: it.account}, now).n-patientWithAccount,
		l.count(loginPair{from: it.from}, now).n-patientWithAddress)
	return min(time.Duration(max(over, 0))*loginDelay, maxLoginDelay), place, nil
}

func (l *Logins) note(it loginPair, outcome Outcome, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch outcome {
	case Good:
		l.known.Add(it, struct{}{})
		l.wrong.Remove(it)
	case Wrong:
		for _, key := range []loginPair{it, {account: it.account}, {from: it.from}} {
			w := l.count(key, now)
			w.n++
			l.wrong.Add(key, w)
		}
	}
}
