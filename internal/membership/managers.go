package membership

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// Managers is the list of managers' agent ports that a process chooses from: those of its configuration, and those that a
// manager named since. It stays with one of them as long as that one works, and goes to the next when it does not. The list
// is kept in memory only. It is safe for concurrent use.
type Managers struct {
	mu      sync.Mutex
	fixed   []string // of the configuration
	learned []string // told by a manager; none of fixed
	present string
}

// NewManagers makes a list of at least one address. start, from 0 to 1, chooses the first manager to try, so that processes
// with the same configuration spread over the managers.
func NewManagers(configured []string, start float64) *Managers {
	fixed := unique(nil, configured)
	m := &Managers{fixed: fixed}
	if len(fixed) > 0 {
		m.present = fixed[min(int(start*float64(len(fixed))), len(fixed)-1)]
	}
	return m
}

// unique returns the addresses of list that are not in known, each once.
func unique(known, list []string) []string {
	var out []string
	for _, addr := range list {
		if !slices.Contains(known, addr) && !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// Present is the manager to connect to now.
func (m *Managers) Present() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.present
}

// All are the addresses in the order in which they are tried: those of the configuration first.
func (m *Managers) All() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Concat(m.fixed, m.learned)
}

// Failed goes on to the next manager when addr is the present one. After the last comes the first.
func (m *Managers) Failed(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if addr != m.present {
		return
	}
	all := slices.Concat(m.fixed, m.learned)
	if len(all) > 0 {
		m.present = all[(slices.Index(all, addr)+1)%len(all)] // one that is in the list no more is followed by the first
	}
}

// Learn replaces what a manager said before about where managers are. The present manager stays, named or not. Addresses
// that cannot be used are left out, and no more than node.MaxManagers are kept.
func (m *Managers) Learn(list []string) {
	var good []string
	for _, addr := range list[:min(len(list), node.MaxManagers)] {
		if len(addr) > node.MaxAddress {
			continue
		}
		if host, port, err := net.SplitHostPort(addr); err == nil && host != "" && port != "" {
			good = append(good, addr)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.learned = unique(m.fixed, good)
}

// The pauses between two attempts to connect.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
	// steady is how long a connection must have worked to count as a success.
	steady = 10 * time.Second
)

// Connect is what Keep does again and again.
type Connect struct {
	Clock  chassis.Clock
	Random func() float64 // from 0 to 1: many processes must not come back at once
	Log    *slog.Logger
	// To connects to a manager and returns when the connection is over. worked says whether the manager served it.
	To func(ctx context.Context, addr string) (worked bool, err error)
	// Lost is told the outcome of every call of To but that of ctx's end; optional.
	Lost func(addr string, worked bool, err error)
}

// Keep keeps a connection to one of the managers until ctx ends. A manager whose connection worked for a while is tried
// again first, because managers restart; after a failure the next one is tried. The pauses grow while nothing works.
func (m *Managers) Keep(ctx context.Context, c Connect) error {
	pause := chassis.Backoff{Min: minPause, Max: maxPause}
	told := map[string]string{} // by address: the same trouble is told once, not at every attempt
	for {
		addr := m.Present()
		began := c.Clock.Now()
		worked, err := c.To(ctx, addr)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if worked && c.Clock.Now().Sub(began) > steady {
			pause.Reset()
			clear(told)
		} else {
			m.Failed(addr)
		}
		if err == nil {
			err = errors.New("the manager closed the connection")
		}
		if c.Lost != nil {
			c.Lost(addr, worked, err)
		}
		if text := err.Error(); told[addr] != text {
			if len(told) > 2*node.MaxManagers {
				clear(told)
			}
			told[addr] = text
			c.Log.Warn("the connection to the manager is down; trying again",
				"manager", addr, "then", m.Present(), "error", err, "next", fault.NextOf(err))
		}
		wait := pause.Next()
		wait = wait/2 + time.Duration(c.Random()*float64(wait/2))
		if err := chassis.Wait(ctx, c.Clock, wait); err != nil {
			return err
		}
	}
}
