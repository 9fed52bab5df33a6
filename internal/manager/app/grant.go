package app

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/proxy"
)

const (
	// grantsName is the ring of signing keys in the vault; agents know the public halves.
	grantsName = "app-grants"
	// grantKeyLife is how long a key signs grants. grantKeyHead is how long agents know a key before it signs, so that an agent
	// that is away from its manager for less than that understands every grant.
	grantKeyLife = 7 * 24 * time.Hour
	grantKeyHead = proxy.GrantLife
	// maxPublic bounds the public halves that are remembered; few keys are in use at a time.
	maxPublic = 16
	// maxGranted bounds the grants that are remembered.
	maxGranted = 200_000
	// maxEnded bounds the ended circuits that agents are told of, in all.
	maxEnded = 100_000
)

// grants signs what app proxies may do, and remembers it while it is good.
type grants struct {
	keys ring

	mu   sync.Mutex
	held map[string]granted // by circuit

	publicMu sync.Mutex
	public   map[string]ed25519.PublicKey // halves of keys, by the key: every heartbeat of every agent asks for them

	endedMu sync.RWMutex
	ended   map[cluster.AgentID][]string // circuits; nil until they were read
}

// granted is the grant of one circuit as it was signed last.
type granted struct {
	what proxy.Grant
	text string
}

func newGrants() *grants {
	return &grants{held: map[string]granted{}, public: map[string]ed25519.PublicKey{}, keys: ring{name: grantsName, what: "keys of grants",
		schedule: schedule{life: grantKeyLife, head: grantKeyHead, keep: proxy.GrantLife + time.Hour},
		make:     randomBytes(ed25519.SeedSize)}}
}

// GrantKeys are the keys with which agents verify grants.
func (s *Service) GrantKeys(ctx context.Context) ([][]byte, error) {
	list, err := s.grants.keys.get(ctx, s.d)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, 0, len(list))
	for _, k := range list {
		public, err := s.grants.publicHalf(k.Key)
		if err != nil {
			return nil, err
		}
		out = append(out, public)
	}
	return out, nil
}

// publicHalf is what verifies what a key signs. It is computed once.
func (g *grants) publicHalf(key []byte) (ed25519.PublicKey, error) {
	g.publicMu.Lock()
	defer g.publicMu.Unlock()
	if known := g.public[string(key)]; known != nil {
		return known, nil
	}
	if len(key) != ed25519.SeedSize {
		return nil, fmt.Errorf("read the keys of grants: one has %d bytes", len(key))
	}
	public, ok := ed25519.NewKeyFromSeed(key).Public().(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("read the keys of grants: no public half")
	}
	if len(g.public) >= maxPublic {
		clear(g.public) // those that are in use come again
	}
	g.public[string(key)] = public
	return public, nil
}

// grant puts a grant into each target of circuits of one app proxy. A grant that is good for longer than GrantRenewal is used
// again.
func (s *Service) grant(ctx context.Context, name string, list ...*proxy.Circuit) error {
	if len(list) == 0 {
		return nil
	}
	keys, err := s.grants.keys.get(ctx, s.d)
	if err != nil {
		return err
	}
	past, err := s.refusedUntil(ctx, name)
	if err != nil {
		return err
	}
	now := s.d.Clock()
	seed := s.grants.keys.ordered(keys, now)[0]
	if len(seed) != ed25519.SeedSize {
		return fmt.Errorf("sign grants: the key has %d bytes", len(seed))
	}
	key := ed25519.NewKeyFromSeed(seed)
	for _, c := range list {
		targets := make([]proxy.Target, len(c.Targets)) // others have the old ones
		copy(targets, c.Targets)
		for i := range targets {
			t := &targets[i]
			if t.Grant, err = s.grants.sign(proxy.Grant{Circuit: c.ID, Kernel: t.Kernel, Generation: t.Generation, Port: t.Port,
				Proxy: name, Issuer: s.d.ClusterID}, key, now, past); err != nil {
				return err
			}
		}
		c.Targets = targets
	}
	return nil
}

// refusedUntil is the end of the last grant of an app proxy that agents refuse, because its certificates ended since; zero without any.
func (s *Service) refusedUntil(ctx context.Context, name string) (until time.Time, err error) {
	if s.d.Revoked == nil {
		return until, nil
	}
	list, err := s.d.Revoked(ctx)
	for _, r := range list {
		if r.Proxy == name && r.Until.After(until) {
			until = r.Until
		}
	}
	return until, err
}

// sign gives the grant that is wanted, with an end after past.
func (g *grants) sign(want proxy.Grant, key ed25519.PrivateKey, now, past time.Time) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.held[want.Circuit]
	want.Expires = old.what.Expires
	// One that is good for longer than any is was signed before the clock was put back; its key may be gone long before it ends.
	most := now.Add(proxy.GrantLife)
	if next := past.Add(time.Second); next.After(most) {
		most = next
	}
	if old.what == want && now.Before(renewAt(want)) && !want.Expires.After(most) && want.Expires.After(past) {
		return old.text, nil
	}
	want.Expires = most.Truncate(time.Second)
	text, err := proxy.SignGrant(want, key)
	if err != nil {
		return "", err
	}
	if len(g.held) >= maxGranted {
		clear(g.held)
	}
	g.held[want.Circuit] = granted{what: want, text: text}
	return text, nil
}

// renewAt is when the next grant is due.
func renewAt(g proxy.Grant) time.Time { return g.Expires.Add(-proxy.GrantRenewal) }

// end notes circuits that are gone: their grants are forgotten, and refused by their agents. It reports whether an agent has more
// ended circuits than can be told: then it is to be read which ones matter.
func (g *grants) end(gone []proxy.Circuit) (overflow bool) {
	if len(gone) == 0 {
		return false
	}
	g.mu.Lock()
	for _, c := range gone {
		delete(g.held, c.ID)
	}
	g.mu.Unlock()
	g.endedMu.Lock()
	defer g.endedMu.Unlock()
	fresh := map[cluster.AgentID][]string{}
	for _, c := range gone {
		for _, t := range c.Targets {
			fresh[t.Agent.ID] = append(fresh[t.Agent.ID], c.ID)
		}
	}
	if g.ended == nil {
		return false // they are about to be read
	}
	next := maps.Clone(g.ended)
	for agent, ids := range fresh {
		if len(ids)+len(next[agent]) > proxy.MaxEnded {
			overflow = true
			continue
		}
		next[agent] = oneOfEach(append(ids, next[agent]...))
	}
	g.ended = next
	return overflow
}

// oneOfEach bounds ids, the first matter most, and sorts them.
func oneOfEach(ids []string) []string {
	ids = ids[:min(len(ids), proxy.MaxEnded)]
	slices.Sort(ids)
	return slices.Compact(ids)
}

// EndedCircuits are circuits of an agent's running kernels that ended lately, in order: their grants may still be valid, and the
// agent refuses them. The list is never changed. ok is false until this manager has read them: an agent that was told of none would
// forget those that it knows.
func (s *Service) EndedCircuits(agent cluster.AgentID) (list []string, ok bool) {
	s.grants.endedMu.RLock()
	defer s.grants.endedMu.RUnlock()
	return s.grants.ended[agent], s.grants.ended != nil
}

// readEnded reads the ended circuits of all agents.
func (s *Service) readEnded(ctx context.Context) error {
	rows, err := s.d.Store.EndedCircuits(ctx, proxy.GrantLife, maxEnded)
	if err != nil {
		return fmt.Errorf("read ended circuits: %w", err)
	}
	ended := map[cluster.AgentID][]string{}
	for _, r := range rows {
		id := cluster.AgentID(r.AgentID)
		ended[id] = append(ended[id], r.CircuitID)
	}
	for id, list := range ended {
		ended[id] = oneOfEach(list)
	}
	s.grants.endedMu.Lock()
	defer s.grants.endedMu.Unlock()
	s.grants.ended = ended
	return nil
}
