package app

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

const (
	// mastersName is the ring in the vault that the keys of all app proxies are derived from. It never leaves the managers.
	mastersName = "app-ticket-masters"
	// sharedName is the ring of the release before: one for all app proxies, known to each of them.
	sharedName = "app-tickets"
	// keyLife is how long a key signs. It checks for as long again, and longer than any ticket lives.
	keyLife = 24 * time.Hour
	// keyHead is how long a new key only checks, so that every manager and proxy has it before the first ticket that needs it.
	keyHead  = 10 * time.Minute
	keyBytes = 32
)

var ticketSchedule = schedule{life: keyLife, head: keyHead, keep: keyLife}

// ticketKeys are the keys of tickets: for each name of an app proxy a ring of its own, derived from the masters.
type ticketKeys struct {
	masters ring

	mu sync.Mutex
	// older are the names that had circuits before there were masters: visitors have cookies of theirs that a shared key signed.
	older map[string]bool
	// shared is the ring of the release before as it was read at sharedAt.
	shared   []ringKey
	sharedAt time.Time
}

func newTicketKeys() *ticketKeys {
	return &ticketKeys{older: map[string]bool{}, masters: ring{name: mastersName, what: "keys of tickets", schedule: ticketSchedule,
		make: randomBytes(keyBytes)}}
}

// derived is the key of one app proxy. Nobody gets from it to the master or to another proxy's key.
func derived(master []byte, name string) ([]byte, error) {
	return hkdf.Key(sha256.New, master, nil, "berth.dev tickets of app proxy "+name, keyBytes)
}

// Keys sign (the first) and check (all) tickets of the circuits of one app proxy now. Replicas of one name have the same.
func (s *Service) Keys(ctx context.Context, name string) ([][]byte, error) {
	masters, err := s.tickets.masters.get(ctx, s.d)
	if err != nil {
		return nil, err
	}
	now := s.d.Clock()
	var out [][]byte
	for _, master := range ticketSchedule.ordered(masters, now) {
		key, err := derived(master, name)
		if err != nil {
			return nil, fmt.Errorf("derive a key of tickets: %w", err)
		}
		out = append(out, key)
	}
	if len(masters) == 0 || !now.Before(masters[0].Made.Add(TicketLife)) {
		return out, nil
	}
	shared, err := s.sharedKeys(ctx, name, masters[0].Made, now)
	if err != nil {
		return nil, err
	}
	if now.Before(masters[0].Made.Add(keyHead)) {
		return append(shared, out...), nil // other managers may not know of masters yet
	}
	return append(out, shared...), nil
}

// sharedKeys are the keys of the release before, for an app proxy that had circuits when the masters were made. Their last
// tickets end TicketLife after that; the caller asks no longer.
func (s *Service) sharedKeys(ctx context.Context, name string, made, now time.Time) ([][]byte, error) {
	t := s.tickets
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sharedAt.IsZero() || now.Sub(t.sharedAt) >= ringEvery {
		raw, err := s.d.Vault.Get(ctx, sharedName)
		if err != nil {
			return nil, fmt.Errorf("read the keys of tickets: %w", err)
		}
		t.shared = nil
		if raw != nil {
			if err := json.Unmarshal(raw, &t.shared); err != nil {
				return nil, fmt.Errorf("read the keys of tickets: %w", err)
			}
		}
		t.sharedAt = now
	}
	if len(t.shared) == 0 {
		return nil, nil
	}
	older, known := t.older[name]
	if !known {
		var err error
		if older, err = s.d.Store.ProxyHadCircuits(ctx, name, made); err != nil {
			return nil, fmt.Errorf("look for circuits of app proxy %s: %w", name, err)
		}
		t.older[name] = older
	}
	if !older {
		return nil, nil
	}
	kept, _ := ticketSchedule.kept(t.shared, now)
	return ticketSchedule.ordered(kept, now), nil
}
