package tenancy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/manager/audit"
)

// Refusal is an attempt to log in, or to prove again who one is, that failed.
type Refusal struct {
	// Account is the name that was tried, "" where none was; Domain is the domain that it was tried in.
	Account, Domain string
	// Means is what was shown: password, passkey, or an identity provider.
	Means string
	From  netip.Addr
}

// Wrong proofs cost whoever sends them nothing, so what the audit log takes of them is bounded. What is left out is counted.
const (
	maxRefusals    = 60
	refusalsWindow = time.Minute
)

// refusals bounds the entries of one manager.
type refusals struct {
	mu      sync.Mutex
	since   time.Time
	n, left int
}

// take reports whether an entry may be written now, and how many were left out since the last one.
func (r *refusals) take(now time.Time) (left int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.since) >= refusalsWindow || now.Before(r.since) {
		r.since, r.n = now, 0
	}
	if r.n >= maxRefusals {
		r.left++
		return 0, false
	}
	r.n++
	left, r.left = r.left, 0
	return left, true
}

// NoteRefusal records in the audit log that somebody failed to prove who they are; err is what they hear. Other errors are not recorded.
func (s *Service) NoteRefusal(ctx context.Context, r Refusal, err error) {
	if err == nil || !WrongGuess(err) {
		return
	}
	left, ok := s.refused.take(s.d.Clock())
	if !ok {
		return
	}
	reason := fmt.Sprintf("%s: %s", r.Means, err)
	if left > 0 {
		reason += fmt.Sprintf("; %d more before this one are not listed", left)
	}
	account := r.Account
	if account != "" && !strings.Contains(account, "@") {
		account = "(no email address)" // people type their passwords there
	}
	from := ""
	if r.From.IsValid() {
		from = r.From.String()
	}
	audit.Refuse(ctx, s.d.Store, "login.open", account, r.Domain, from, reason)
}
