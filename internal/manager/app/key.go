package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

const (
	keysName = "app-tickets"
	// keyLife is how long a key signs. It checks for as long again, and longer than any ticket lives.
	keyLife = 24 * time.Hour
	// keyHead is how long a new key only checks, so that every manager and proxy has it before the first ticket that needs it.
	keyHead = 10 * time.Minute
	// keysEvery is how often a manager looks for keys that another one made.
	keysEvery = time.Minute
	keyBytes  = 32
)

// ticketKey signs from keyHead after Made until its successor does.
type ticketKey struct {
	Key  []byte    `json:"key"`
	Made time.Time `json:"made"`
}

// keyRing is the keys as they were last read, oldest first.
type keyRing struct {
	list   []ticketKey
	readAt time.Time
}

// rotated decides what keys there should be at now: it returns the list without those that check nothing any more, and
// whether a new one is due.
func rotated(list []ticketKey, now time.Time) (kept []ticketKey, due bool) {
	for i, k := range list {
		if i+1 < len(list) && !now.Before(list[i+1].Made.Add(keyHead+keyLife)) {
			continue // its successor has signed for longer than tickets live
		}
		kept = append(kept, k)
	}
	return kept, len(kept) == 0 || !now.Before(kept[len(kept)-1].Made.Add(keyLife))
}

// ordered are the keys as proxies take them: the one that signs at now first.
func ordered(list []ticketKey, now time.Time) [][]byte {
	sign := 0
	for i, k := range list {
		if i > 0 && !now.Before(k.Made.Add(keyHead)) {
			sign = i
		}
	}
	out := make([][]byte, 0, len(list))
	if len(list) > 0 {
		out = append(out, list[sign].Key)
	}
	for i, k := range list {
		if i != sign {
			out = append(out, k.Key)
		}
	}
	return out
}

// Keys sign (the first) and check (all) tickets now.
func (s *Service) Keys(ctx context.Context) ([][]byte, error) {
	s.keysMu.Lock()
	defer s.keysMu.Unlock()
	now := s.d.Clock()
	_, due := rotated(s.keys.list, now)
	if due || now.Sub(s.keys.readAt) >= keysEvery || now.Before(s.keys.readAt) {
		if err := s.readKeys(ctx, now); err != nil {
			if len(s.keys.list) == 0 {
				return nil, err
			}
			s.d.Log.Warn("cannot read the keys of tickets; the known ones stay", "error", err)
		}
	}
	return ordered(s.keys.list, now), nil
}

func (s *Service) readKeys(ctx context.Context, now time.Time) error {
	raw, err := s.d.Vault.Get(ctx, keysName)
	if err != nil {
		return fmt.Errorf("read the keys of tickets: %w", err)
	}
	list, err := parseKeys(raw)
	if err != nil {
		return err
	}
	if _, due := rotated(list, now); due {
		raw, err = s.d.Vault.Update(ctx, keysName, func(old []byte) ([]byte, error) {
			list, err := parseKeys(old)
			if err != nil {
				return nil, err
			}
			kept, due := rotated(list, now)
			if !due {
				return nil, nil // another manager was first
			}
			key := make([]byte, keyBytes)
			if _, err := io.ReadFull(s.d.Random, key); err != nil {
				return nil, fmt.Errorf("read randomness: %w", err)
			}
			return json.Marshal(append(kept, ticketKey{Key: key, Made: now}))
		})
		if err != nil {
			return fmt.Errorf("rotate the keys of tickets: %w", err)
		}
		if list, err = parseKeys(raw); err != nil {
			return err
		}
	}
	list, _ = rotated(list, now)
	s.keys = keyRing{list: slices.Clip(list), readAt: now}
	return nil
}

func parseKeys(raw []byte) ([]ticketKey, error) {
	if raw == nil {
		return nil, nil
	}
	var list []ticketKey
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read the keys of tickets: %w", err)
	}
	return list, nil
}
