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
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// maxVerified bounds the grants that are remembered as verified; each takes some 500 bytes.
const maxVerified = 8192

// Grants decides which grants of app proxies this agent obeys. Managers tell it the keys; it keeps them in a file, so that it
// obeys them after a restart without a manager. It is safe for concurrent use.
type Grants struct {
	path string

	mu       sync.RWMutex
	keys     []ed25519.PublicKey // empty until a manager has told them: every grant is refused
	ended    map[string]bool     // circuits
	verified map[string]proxy.Grant
}

// OpenGrants reads the keys that were kept in the file at path; it is made when there are some.
func OpenGrants(path string) (*Grants, error) {
	g := &Grants{path: path, verified: map[string]proxy.Grant{}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys of grants: %w", err)
	}
	var keys [][]byte
	if json.Unmarshal(raw, &keys) == nil { // a file that cannot be read counts as none: the manager tells them again
		g.keys = usable(keys)
	}
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

// Set replaces the keys and the ended circuits by what a manager says. A manager that tells no key changes no key: an agent that
// has verified grants never goes back.
func (g *Grants) Set(keys [][]byte, ended []string) error {
	fresh := usable(keys)
	gone := make(map[string]bool, len(ended))
	for _, id := range ended[:min(len(ended), proxy.MaxEnded)] {
		gone[id] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = gone
	if len(fresh) == 0 || equalKeys(fresh, g.keys) {
		return nil
	}
	g.keys = fresh
	clear(g.verified) // some may be signed by a key that is no longer good
	raw, err := json.Marshal(fresh)
	if err != nil {
		return fmt.Errorf("keep the keys of grants: %w", err)
	}
	if err := os.WriteFile(g.path+".new", raw, 0o600); err != nil {
		return fmt.Errorf("keep the keys of grants: %w", err)
	}
	if err := os.Rename(g.path+".new", g.path); err != nil {
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

// over reports whether a circuit has ended.
func (g *Grants) over(circuit string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.ended[circuit]
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
	switch {
	case grant.Issuer != issuer:
		return grant, refused("other-cluster")
	case r.proxy != "" && grant.Proxy != r.proxy:
		return grant, refused("other-proxy")
	case grant.Kernel != r.kernel:
		return grant, refused("other-kernel")
	case grant.Port != r.port:
		return grant, refused("other-port")
	case g.over(grant.Circuit):
		return grant, refused("circuit-ended")
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
