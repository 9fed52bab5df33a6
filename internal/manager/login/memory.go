package login

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
)

// maxUsers bounds the memory of a Memory: beyond it, the logins of somebody end.
const maxUsers = 100_000

// Memory keeps logins in this process: of one manager alone, until it ends.
type Memory struct {
	now func() time.Time

	mu    sync.Mutex
	users map[cluster.UserID]map[string]Session // by the hash of the token
}

// NewMemory keeps nothing yet.
func NewMemory(now func() time.Time) *Memory {
	return &Memory{now: now, users: map[cluster.UserID]map[string]Session{}}
}

// live removes what has expired; mu is held.
func (m *Memory) live(u cluster.UserID) map[string]Session {
	now := m.now()
	maps.DeleteFunc(m.users[u], func(_ string, s Session) bool { return !now.Before(s.Expires) })
	if len(m.users[u]) == 0 {
		delete(m.users, u)
	}
	return m.users[u]
}

// Open implements Keeper.
func (m *Memory) Open(_ context.Context, t Token, s Session, most int, force bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.live(t.user)
	if most <= 0 || most > MaxSessions {
		most, force = MaxSessions, true
	}
	if len(of) >= most && !force {
		return ErrFull
	}
	for len(of) >= most {
		first := ""
		for hash, s := range of {
			if first == "" || oldest(s, of[first]) < 0 {
				first = hash
			}
		}
		delete(of, first)
	}
	if of == nil {
		for other := range m.users {
			if len(m.users) < maxUsers {
				break
			}
			delete(m.users, other)
		}
		of = map[string]Session{}
		m.users[t.user] = of
	}
	of[t.hash] = s
	return nil
}

// Find implements Keeper.
func (m *Memory) Find(_ context.Context, t Token) (Session, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.live(t.user)[t.hash]
	return s, ok, nil
}

// Replace implements Keeper.
func (m *Memory) Replace(_ context.Context, t Token, s Session) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of := m.live(t.user); of != nil {
		if _, ok := of[t.hash]; ok {
			of[t.hash] = s
		}
	}
	return nil
}

// Remove implements Keeper.
func (m *Memory) Remove(_ context.Context, t Token) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.users[t.user], t.hash)
	m.live(t.user)
	return nil
}

// List implements Keeper.
func (m *Memory) List(_ context.Context, u cluster.UserID) ([]Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return newestFirst(slices.Collect(maps.Values(m.live(u)))), nil
}

// End implements Keeper.
func (m *Memory) End(_ context.Context, u cluster.UserID, id string) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of, before := m.live(u), len(m.users[u])
	maps.DeleteFunc(of, func(_ string, s Session) bool { return id == "" || s.ID == id })
	return before - len(m.live(u)), nil
}
