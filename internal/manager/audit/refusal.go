package audit

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Refusal is a proof of who somebody is that was not taken: a wrong password, an answer of an identity provider that is not good. The
// sender is nobody, so strangers choose how many there are. They are counted, and each count is a row a minute.
type Refusal struct {
	Action string // what was asked for
	// Account is whom the sender said to be, as they typed it: an e-mail address, or an access key; "" for nobody.
	Account string
	Means   string // such as password
	Reason  string // the slug of the wire
	From    netip.Addr
}

const (
	// refusalWindow is how long refusals that are alike are counted. The first is written at once, the others when it ends.
	refusalWindow = time.Minute
	// maxRefusals bounds the counts of a window, and maxRefusalsOfNetwork those of one network, so that one sender does not push out the
	// others. What goes beyond is counted without the account, and then without the address.
	maxRefusals, maxRefusalsOfNetwork = 100, 20
	// writeRefusalsEvery is how late the first one is in the log.
	writeRefusalsEvery = time.Second
)

// refusals counts refusals that are alike.
type refusals struct {
	at      time.Time // of the first that is not written
	request string    // of the last
	n       int64     // those that are not written
	written bool      // some of the window are
}

// Refused counts a refusal (internal): Run writes it. It costs the sender the same whether there is such an account.
func (s *Service) Refused(ctx context.Context, r Refusal, now time.Time) {
	request, _ := ctx.Value(requestKey{}).(string)
	r.Account, r.Reason = fault.Clip(store.Text(r.Account), maxObject), fault.Clip(store.Text(r.Reason), maxReason)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(r, refusals{at: now, request: request, n: 1})
}

// count adds to the count of refusals; mu is held.
func (s *Service) count(r Refusal, more refusals) {
	if len(s.counts) == 0 {
		s.window = more.at
	}
	network := clientaddr.Network(r.From)
	if s.counts[r] == nil && s.networks[network] >= maxRefusalsOfNetwork {
		r.Account, r.From = "", network
	}
	if s.counts[r] == nil && len(s.counts) >= maxRefusals {
		r.Account, r.From = "", netip.Addr{} // as many of these at most as there are actions, means and reasons
	}
	c := s.counts[r]
	if c == nil {
		c = &refusals{}
		s.counts[r] = c
		if r.Account != "" {
			s.networks[network]++
		}
	}
	if c.n == 0 {
		c.at = more.at
	}
	c.n, c.request = c.n+more.n, more.request
}

// Run writes refusals until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(writeRefusalsEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
			defer cancel()
			if err := s.WriteRefused(last, time.Now(), true); err != nil {
				s.db.Log().Error("could not record the last refused logins", "error", err)
			}
			return nil
		case now := <-tick.C:
			err := s.WriteRefused(ctx, now, false)
			if err != nil && !failing && ctx.Err() == nil {
				s.db.Log().Error("could not record refused logins; they are counted until it works", "error", err)
			}
			failing = err != nil
		}
	}
}

// WriteRefused writes what was counted (internal): what is the first of its kind in the window; and all, when the window has ended or the
// caller says so. What cannot be written is counted on.
func (s *Service) WriteRefused(ctx context.Context, now time.Time, all bool) error {
	due := s.dueRefusals(now, all)
	if len(due) == 0 {
		return nil
	}
	var p dbgen.RecordRefusalsParams
	for r, c := range due {
		address := ""
		if r.From.IsValid() {
			address = r.From.String()
		}
		p.Ats, p.Actions, p.Accounts = append(p.Ats, c.at), append(p.Actions, r.Action), append(p.Accounts, r.Account)
		p.Reasons, p.Addresses, p.Requests = append(p.Reasons, r.Reason), append(p.Addresses, address), append(p.Requests, c.request)
		p.Means, p.Attempts = append(p.Means, r.Means), append(p.Attempts, c.n)
	}
	err := s.db.RecordRefusals(ctx, p)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, c := range due {
		s.count(r, c)
	}
	return fmt.Errorf("record refused logins: %w", err)
}

// dueRefusals takes what is to be written.
func (s *Service) dueRefusals(now time.Time, all bool) map[Refusal]refusals {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := now.Sub(s.window) >= refusalWindow || now.Before(s.window)
	due := map[Refusal]refusals{}
	for r, c := range s.counts {
		if c.n > 0 && (all || ended || !c.written) {
			due[r] = *c
			c.n, c.written = 0, true
		}
	}
	if ended {
		clear(s.counts)
		clear(s.networks)
	}
	return due
}
