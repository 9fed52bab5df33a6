package signature

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/fault"
)

// Guard remembers the signed requests that may change something and refuses those that come again. Decision 26 has the reasons.
//
//   - A request with the extension is good once: its nonce was drawn for it.
//   - The signature of an official client is not unique: it covers a date of microseconds (Python) or milliseconds (JavaScript) and not
//     the body, so two different requests may share one. It may therefore come again, but only from the same network, and only for a
//     moment after the first time.
//
// What this process received is in its memory. Shared lets all managers know and outlives a restart; while it is away each manager goes
// by its own memory.
type Guard struct {
	now    func() time.Time
	shared Shared // may be nil
	// self tells what this guard wrote into shared from what others did.
	self string
	// awayUntil is when Shared is asked again after a failure, in nanoseconds.
	awayUntil atomic.Int64

	mu    sync.Mutex
	known map[id]sight
	// order are the keys of known, the oldest first, from first on.
	order []id
	first int
	most  int // bounds known
}

// Shared is a memory that all managers have in common.
type Shared interface {
	// FirstSight keeps value under key for the given time unless there is one already, and returns the one that is there.
	FirstSight(ctx context.Context, key, value string, life time.Duration) (first string, err error)
}

type id [16]byte

// sight is when a request first came, and from where.
type sight struct {
	at   time.Time
	from netip.Addr // a network
	// expires is when the date of the request is too old to be accepted.
	expires time.Time
	// agreed says that no manager saw the request before, as far as Shared knows. What is not agreed is asked about again: the request
	// that this manager saw first may have been a copy.
	agreed bool
}

const (
	// maxSights bounds the memory of a process; when it is full the oldest are forgotten.
	maxSights = 200_000
	// repeatFor is how long the signature of an official client may come again: a browser holds requests back while its connections are
	// busy, and proxies send one again when a manager went away.
	repeatFor = 2 * time.Minute
	// sharedPatience bounds a question to Shared, sharedRest the pause after a failure.
	sharedPatience = 100 * time.Millisecond
	sharedRest     = 5 * time.Second
)

// NewGuard returns a guard without memory; shared may be nil.
func NewGuard(now func() time.Time, shared Shared) *Guard {
	return &Guard{now: now, shared: shared, self: rand.Text(), known: map[id]sight{}, most: maxSights}
}

// Known refuses a request that was received before, as far as this process knows. It notes nothing.
func (g *Guard) Known(s *Signed, client netip.Addr) error {
	if !s.writes {
		return nil
	}
	g.mu.Lock()
	first, known := g.known[s.identity()]
	g.mu.Unlock()
	if !known {
		return nil
	}
	return s.again(first, sight{at: g.now(), from: clientaddr.Network(client)})
}

// Take notes a request whose signature was found to be good, and refuses it when it was received before. Requests that only read are
// not noted.
func (g *Guard) Take(ctx context.Context, s *Signed, client netip.Addr) error {
	if !s.writes {
		return nil
	}
	now := g.now()
	key := s.identity()
	fresh := sight{at: now, from: clientaddr.Network(client), expires: s.at.Add(maxSkew)}
	if first, known := g.note(key, fresh, now); known {
		if err := s.again(first, fresh); err != nil || first.agreed {
			return err
		}
	}
	if g.shared == nil || now.UnixNano() < g.awayUntil.Load() {
		return nil
	}
	asked, cancel := context.WithTimeout(ctx, sharedPatience)
	defer cancel()
	mine := fresh.text(g.self)
	text, err := g.shared.FirstSight(asked, hex.EncodeToString(key[:]), mine, max(fresh.expires.Sub(now), time.Second))
	if err != nil {
		if ctx.Err() != nil { // whoever leaves in time learns nothing and gets nothing
			return fmt.Errorf("ask who received the request before: %w", ctx.Err())
		}
		g.awayUntil.Store(now.Add(sharedRest).UnixNano())
		return nil
	}
	first := fresh
	if text != mine {
		first = parseSight(text)
		first.expires = fresh.expires
	}
	g.agree(key, first)
	if text == mine {
		return nil
	}
	return s.again(first, fresh)
}

// agree replaces what this manager saw by what all of them know.
func (g *Guard) agree(key id, first sight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.known[key]; known {
		first.agreed = true
		g.known[key] = first
	}
}

// identity is what tells the request from others.
func (s *Signed) identity() id {
	h := sha256.New()
	h.Write([]byte(s.credential.AccessKey))
	if s.extra != nil {
		h.Write([]byte("\nnonce\n" + s.extra.nonce))
	} else {
		h.Write([]byte("\nsignature\n"))
		h.Write(s.credential.Signature)
	}
	return id(h.Sum(nil)[:16])
}

// note remembers a first sight, or returns the earlier one.
func (g *Guard) note(key id, fresh sight, now time.Time) (first sight, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if first, known = g.known[key]; known {
		return first, true
	}
	for g.first < len(g.order) {
		oldest := g.order[g.first]
		if len(g.known) < g.most && now.Before(g.known[oldest].expires) {
			break
		}
		delete(g.known, oldest)
		g.first++
	}
	if g.first > len(g.order)/2 { // half of it is used up
		g.order = append(g.order[:0:0], g.order[g.first:]...)
		g.first = 0
	}
	g.known[key] = fresh
	g.order = append(g.order, key)
	return sight{}, false
}

// again decides about a request that was received before.
func (s *Signed) again(first, now sight) error {
	switch {
	case s.Extended():
		return received("it is good once")
	case first.from != now.from:
		return received("it came from another address")
	case now.at.Sub(first.at) > repeatFor:
		return received("that is too long ago")
	}
	return nil
}

func received(why string) error {
	return fault.New(fault.Unauthenticated, "this very request was received before, and %s", why).WithReason("auth-failed").
		WithNext("sign every request anew; if you did, somebody uses requests of yours: replace the keypair and reach the manager by https")
}

// text is a sight as Shared keeps it, written by the guard with that name.
func (s sight) text(by string) string {
	return strconv.FormatInt(s.at.UnixMicro(), 10) + " " + s.from.String() + " " + by
}

// parseSight reads what text wrote; what cannot be read is long ago and from nowhere.
func parseSight(text string) sight {
	at, rest, _ := strings.Cut(text, " ")
	from, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.ParseInt(at, 10, 64)
	return sight{at: time.UnixMicro(n), from: clientaddr.Parse(from)}
}
