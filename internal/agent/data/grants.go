package data

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/durable"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// maxVerified bounds the grants that are remembered as verified; each takes some 500 bytes.
const maxVerified = 8192

// Grants decides which grants of app proxies this agent obeys. Managers tell it the keys; it keeps them in a file, so that it
// obeys them after a restart without a manager. It is safe for concurrent use.
type Grants struct {
	path  string
	clock chassis.Clock
	// changed, of capacity 1, says that what is carried may be allowed no more.
	changed chan struct{}

	mu       sync.RWMutex
	keys     []ed25519.PublicKey // empty until a manager has told them: every grant is refused
	ended    map[string]bool     // circuits
	revoked  []proxy.Revocation  // of all managers; none is forgotten before it is over
	verified map[string]proxy.Grant
}

// kept is what an agent keeps over restarts. Earlier versions kept the list of keys alone.
type kept struct {
	Keys    [][]byte           `json:"keys"`
	Revoked []proxy.Revocation `json:"revoked,omitempty"`
}

// OpenGrants reads what was kept in the file at path; it is made when there is something.
func OpenGrants(path string, clock chassis.Clock) (*Grants, error) {
	g := &Grants{path: path, clock: clock, changed: make(chan struct{}, 1), verified: map[string]proxy.Grant{}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys of grants: %w", err)
	}
	var k kept
	if json.Unmarshal(raw, &k) != nil && json.Unmarshal(raw, &k.Keys) != nil {
		return g, nil // a file that cannot be read counts as none: the manager tells everything again
	}
	g.keys, g.revoked = usable(k.Keys), proxy.MergeRevocations(nil, k.Revoked, clock.Now())
	return g, nil
}

func usable(keys [][]byte) []ed25519.PublicKey {
	var out []ed25519.PublicKey
	for _, k := range keys[:min(len(keys), proxy.MaxGrantKeys)] {
		if len(k) == ed25519.PublicKeySize {
			out = append(out, ed25519.PublicKey(k))
		}
	}
	return out
}

// Set replaces the keys and the ended circuits by what a manager says, and adds the app proxies that it says were revoked. A manager
// that tells no key changes no key: an agent that has verified grants never goes back.
func (g *Grants) Set(keys [][]byte, ended []string, revoked []proxy.Revocation) error {
	fresh := usable(keys)
	gone := make(map[string]bool, len(ended))
	for _, id := range ended[:min(len(ended), proxy.MaxEnded)] {
		gone[id] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = gone
	select {
	case g.changed <- struct{}{}:
	default:
	}
	merged := proxy.MergeRevocations(g.revoked, revoked, g.clock.Now())
	newKeys := len(fresh) > 0 && !equalKeys(fresh, g.keys)
	if !newKeys && slices.Equal(merged, g.revoked) {
		return nil
	}
	g.revoked = merged
	if newKeys {
		g.keys = fresh
		clear(g.verified) // some may be signed by a key that is no longer good
	}
	k := kept{Revoked: g.revoked}
	for _, key := range g.keys {
		k.Keys = append(k.Keys, key)
	}
	raw, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("keep the keys of grants: %w", err)
	}
	if err := durable.WriteFile(g.path, raw, 0o600); err != nil {
		return fmt.Errorf("keep the keys of grants: %w", err)
	}
	return nil
}

func equalKeys(a, b []ed25519.PublicKey) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Equal(b[i]) {
			return false
		}
	}
	return true
}

// changes says that what is carried may be allowed no more.
func (g *Grants) changes() <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.changed
}

// over says why a grant that was obeyed, or would be, counts no more: its circuit ended, or its app proxy was revoked since it was
// signed. It is "" while the grant counts.
func (g *Grants) over(grant proxy.Grant) string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.ended[grant.Circuit] {
		return "circuit-ended"
	}
	if slices.ContainsFunc(g.revoked, func(r proxy.Revocation) bool { return r.Refuses(grant) }) {
		return "proxy-revoked"
	}
	return ""
}

// verify reads a grant that a manager signed. What was verified before costs a look-up.
func (g *Grants) verify(text string) (proxy.Grant, error) {
	g.mu.RLock()
	known, ok := g.verified[text]
	keys := g.keys
	g.mu.RUnlock()
	if ok {
		return known, nil
	}
	if len(keys) == 0 {
		return proxy.Grant{}, fault.Unavailablef("this agent does not know yet what app proxies may do").WithReason("no-grant-keys").
			WithNext("upgrade the managers before the agents, and wait until one of them is connected")
	}
	fresh, err := proxy.VerifyGrant(text, keys)
	if err != nil {
		return proxy.Grant{}, refused("not-valid").WithCause(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !equalKeys(keys, g.keys) {
		return fresh, nil // the keys changed meanwhile: the next connection verifies again
	}
	if len(g.verified) >= maxVerified {
		clear(g.verified)
	}
	g.verified[strings.Clone(text)] = fresh
	return fresh, nil
}

// request is what a caller asks of the data port, as the connection proves it.
type request struct {
	kernel cluster.KernelID
	port   int
	// proxy is the name in the caller's certificate; "" on the unix socket, whose callers are of the agent's own user.
	proxy string
	now   time.Time
}

// admit refuses every request that no grant is for. The caller compares the generation, when it knows the kernel: strangers do not
// learn which kernels there are.
func (g *Grants) admit(text, issuer string, r request) (proxy.Grant, error) {
	if text == "" {
		return proxy.Grant{}, fault.Deniedf("the app proxy shows no grant of a manager for this connection").WithReason("grant-missing").
			WithNext("upgrade the managers, then the app proxies, then the agents")
	}
	grant, err := g.verify(text)
	if err != nil {
		return proxy.Grant{}, err
	}
	over := g.over(grant)
	switch {
	case grant.Issuer != issuer:
		return grant, refused("other-cluster")
	case r.proxy != "" && grant.Proxy != r.proxy:
		return grant, refused("other-proxy")
	case grant.Kernel != r.kernel:
		return grant, refused("other-kernel")
	case grant.Port != r.port:
		return grant, refused("other-port")
	case over != "":
		return grant, refused(over)
	case !r.now.Before(grant.Expires):
		return grant, fault.Unavailablef("the app proxy's grant has expired: no manager has renewed it").WithReason("grant-expired").
			WithNext("see that the app proxy has a manager, and that the clocks of the hosts agree")
	}
	return grant, nil
}

func refused(why string) *fault.Error {
	return fault.Deniedf("the app proxy's grant is not for this connection (%s)", why).WithReason("grant-" + why).
		WithNext("open the app again; if it stays so, tell your administrator")
}

// callerOf is the app proxy that a connection's certificate names; "" on the unix socket.
func callerOf(r *http.Request) (string, error) {
	if r.TLS == nil {
		return "", nil
	}
	var leaf *x509.Certificate
	if len(r.TLS.PeerCertificates) > 0 {
		leaf = r.TLS.PeerCertificates[0]
	}
	if leaf != nil {
		if name, ok := strings.CutPrefix(leaf.Subject.CommonName, proxy.NamePrefix); ok && name != "" {
			return name, nil
		}
	}
	return "", fault.Deniedf("the connection's certificate names no app proxy").WithReason("not-an-app-proxy")
}
