package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// ringKey is one key of a ring. It signs from the ring's head after Made until its successor does.
type ringKey struct {
	Key  []byte    `json:"key"`
	Made time.Time `json:"made"`
}

// schedule says how the keys of a ring take turns.
type schedule struct {
	// life is how long a key signs, head how long a new key only checks before it signs, so that everybody who checks has it in
	// time. keep is how long a key checks after its successor began to sign: at least as long as what it signed is valid.
	life, head, keep time.Duration
}

// kept are the keys without those that check nothing any more; due says that a new one must be made.
func (s schedule) kept(list []ringKey, now time.Time) (kept []ringKey, due bool) {
	for i, k := range list {
		if i+1 < len(list) && !now.Before(list[i+1].Made.Add(s.head+s.keep)) {
			continue
		}
		kept = append(kept, k)
	}
	return kept, len(kept) == 0 || !now.Before(kept[len(kept)-1].Made.Add(s.life))
}

// ordered are the keys with the one that signs at now first.
func (s schedule) ordered(list []ringKey, now time.Time) [][]byte {
	sign := 0
	for i, k := range list {
		if i > 0 && !now.Before(k.Made.Add(s.head)) {
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

// ringEvery is how often a manager looks for keys that another one made.
const ringEvery = time.Minute

// ring is a list of keys in the vault that all managers share, as it was last read.
type ring struct {
	name string // in the vault
	what string // for people
	schedule
	make func(random io.Reader) ([]byte, error)

	mu     sync.Mutex
	list   []ringKey // oldest first
	readAt time.Time
}

// get returns the keys, oldest first, and makes a new one when it is time. Keys that are known stay known while the vault fails.
func (r *ring) get(ctx context.Context, d Deps) ([]ringKey, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := d.Clock()
	_, due := r.kept(r.list, now)
	if due || now.Sub(r.readAt) >= ringEvery || now.Before(r.readAt) {
		if err := r.read(ctx, d, now); err != nil {
			if len(r.list) == 0 {
				return nil, err
			}
			d.Log.Warn("cannot read keys; the known ones stay", "keys", r.what, "error", err)
		}
	}
	return r.list, nil
}

func (r *ring) read(ctx context.Context, d Deps, now time.Time) error {
	raw, err := d.Vault.Get(ctx, r.name)
	if err != nil {
		return fmt.Errorf("read the %s: %w", r.what, err)
	}
	list, err := r.parse(raw)
	if err != nil {
		return err
	}
	if _, due := r.kept(list, now); due {
		raw, err = d.Vault.Update(ctx, r.name, func(old []byte) ([]byte, error) {
			list, err := r.parse(old)
			if err != nil {
				return nil, err
			}
			kept, due := r.kept(list, now)
			if !due {
				return nil, nil // another manager was first
			}
			key, err := r.make(d.Random)
			if err != nil {
				return nil, fmt.Errorf("read randomness: %w", err)
			}
			return json.Marshal(append(kept, ringKey{Key: key, Made: now}))
		})
		if err != nil {
			return fmt.Errorf("rotate the %s: %w", r.what, err)
		}
		if list, err = r.parse(raw); err != nil {
			return err
		}
	}
	list, _ = r.kept(list, now)
	r.list, r.readAt = slices.Clip(list), now
	return nil
}

func (r *ring) parse(raw []byte) ([]ringKey, error) {
	if raw == nil {
		return nil, nil
	}
	var list []ringKey
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read the %s: %w", r.what, err)
	}
	return list, nil
}

// randomBytes makes a key of n random bytes.
func randomBytes(n int) func(io.Reader) ([]byte, error) {
	return func(random io.Reader) ([]byte, error) {
		key := make([]byte, n)
		_, err := io.ReadFull(random, key)
		return key, err
	}
}
