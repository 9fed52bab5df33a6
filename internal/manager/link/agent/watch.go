package agent

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/ca"
)

const (
	// watchEvery is how often a manager looks whether certificates ended. It is one small question to the database.
	watchEvery = time.Second
	// lookAnyway is after how many of those all certificates are looked at although nothing was heard of an end.
	lookAnyway = 100
)

// certificates is what a watch asks: package ca, which knows of all managers' doings.
type certificates interface {
	// Ended is a text that changes when certificates have ended before their time.
	Ended(ctx context.Context) (string, error)
	Counts(ctx context.Context, n ca.Node, serial string) error
}

// watch ends the connections of nodes whose certificates were replaced or revoked while the connections were open.
type watch struct {
	// tell says to agents which app proxies were revoked; it reports whether that could be found out. It may be nil.
	tell func(ctx context.Context) bool

	mu      sync.Mutex
	members map[*member]struct{}
}

// member is one open connection of a node.
type member struct {
	w      *watch
	node   ca.Node
	serial string
	end    func(error)
}

func newWatch() *watch { return &watch{members: map[*member]struct{}{}} }

// add watches a connection until it leaves; end is called when its certificate ends. Connections without a node's certificate are
// refused elsewhere.
func (w *watch) add(s tls.ConnectionState, end func(error)) *member {
	if len(s.VerifiedChains) == 0 {
		return nil
	}
	leaf := s.PeerCertificates[0]
	n, err := ca.NodeOf(leaf.Subject.CommonName)
	if err != nil {
		return nil
	}
	m := &member{w: w, node: n, serial: ca.SerialOf(leaf), end: end}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.members[m] = struct{}{}
	return m
}

// leave may be called more than once.
func (m *member) leave() {
	if m == nil {
		return
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	delete(m.w.members, m)
}

// run looks at every tick whether certificates ended, until ctx ends. While none did, it asks about single ones rarely.
func (w *watch) run(ctx context.Context, clock chassis.Clock, every time.Duration, certs certificates, log *slog.Logger) {
	tick := clock.NewTicker(every)
	defer tick.Stop()
	told, looked := "", 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
		lctx, cancel := context.WithTimeout(ctx, max(every, time.Second))
		now, err := certs.Ended(lctx)
		cancel()
		looked++
		switch {
		case err != nil:
			if ctx.Err() == nil {
				log.Warn("cannot look whether certificates ended", "error", err)
			}
		case now != told || looked >= lookAnyway:
			heard := w.tell == nil || w.tell(ctx)
			if w.look(ctx, certs, log) && heard {
				told, looked = now, 0
			}
		}
	}
}

// look ends the connections whose certificates count no more. It reports whether all could be asked about.
func (w *watch) look(ctx context.Context, certs certificates, log *slog.Logger) bool {
	type certificate struct {
		node   ca.Node
		serial string
	}
	open := map[certificate][]*member{}
	w.mu.Lock()
	for m := range w.members {
		c := certificate{m.node, m.serial}
		open[c] = append(open[c], m)
	}
	w.mu.Unlock()
	all := true
	for c, members := range open {
		err := certs.Counts(ctx, c.node, c.serial)
		switch {
		case err == nil:
		case fault.Is(err, fault.Unauthenticated):
			log.Warn("ending the connections of a node whose certificate was replaced or revoked", "node", c.node.String(), "open", len(members))
			for _, m := range members {
				m.end(err)
			}
		default:
			all = false
			if ctx.Err() != nil {
				return false
			}
			log.Warn("cannot look at a certificate", "node", c.node.String(), "error", err)
		}
	}
	return all
}
