// Package storage is the manager's way to storage proxies: it watches in etcd who announces itself, and asks the nodes
// of a proxy over HTTP with deadlines and bounded bodies.
//
// The addresses of proxies come from their announcements alone, never from a caller. While etcd is away the last that is
// known stays true; a node that is gone is found out by asking it, and another node of the same proxy is asked instead.
package storage

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/announce"
	"berth.dev/berth/internal/wire/storage"
)

const (
	maxNodes    = 1000
	maxPresence = 256 << 10
	maxGone     = 100
	// avoidFor is how long a node that failed is asked after the others.
	avoidFor = 10 * time.Second
)

// Config says where proxies announce themselves and what they share with managers.
type Config struct {
	Prefix string // of etcd's keys
	Secret chassis.Secret
}

// Deps are what a Link works with. Etcd may be nil: there are no proxies then.
type Deps struct {
	Etcd  *clientv3.Client
	Clock chassis.Clock
	// Transport defaults to one without proxies and with bounds of its own.
	Transport http.RoundTripper
	Log       *slog.Logger
}

// Link knows proxies and asks them. Run must be running for it to learn of any.
type Link struct {
	cfg  Config
	deps Deps
	http *http.Client

	mu     sync.Mutex
	live   map[string]storage.Presence // by proxy/node
	gone   map[string]storage.Presence
	failed map[string]time.Time // when a node did not answer last
	proven map[string]bool      // proxies of which a node proved itself
	turn   int
	heard  chan struct{} // closed by the first look
	first  sync.Once
	moved  chan struct{} // closed when a node comes or goes; nil while nobody waits
}

// New makes a link.
func New(cfg Config, deps Deps) *Link {
	if deps.Clock == nil {
		deps.Clock = chassis.RealClock()
	}
	if deps.Transport == nil {
		deps.Transport = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
			ExpectContinueTimeout: time.Second,
		}
	}
	return &Link{cfg: cfg, deps: deps, heard: make(chan struct{}),
		live: map[string]storage.Presence{}, gone: map[string]storage.Presence{}, failed: map[string]time.Time{},
		proven: map[string]bool{},
		http: &http.Client{Transport: deps.Transport, CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		}}}
}

// Run watches announcements until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	if l.deps.Etcd == nil {
		<-ctx.Done()
		return nil
	}
	return announce.Follow(ctx, l.deps.Etcd, l.deps.Clock, l.deps.Log, l.root(), maxNodes, announce.Listener{
		All: func(all map[string][]byte) {
			now := map[string]storage.Presence{}
			for name, value := range all {
				if p, ok := l.read(name, value); ok {
					now[name] = p
				}
			}
			l.replace(now)
			l.first.Do(func() { close(l.heard) })
		},
		Put: func(name string, value []byte) {
			if p, ok := l.read(name, value); ok {
				l.take(name, p)
			}
		},
		Gone: l.drop,
	})
}

// Heard is closed when the announcements were read once.
func (l *Link) Heard() <-chan struct{} { return l.heard }

func (l *Link) root() string { return l.cfg.Prefix + "/storage/" }

// read decodes an announcement; what cannot be used is left out and said.
func (l *Link) read(name string, value []byte) (storage.Presence, bool) {
	var p storage.Presence
	var problem string
	switch {
	case len(value) > maxPresence:
		problem = "it is too long"
	case json.Unmarshal(value, &p) != nil:
		problem = "it is no announcement"
	case p.Proxy+"/"+p.Node != name || p.Proxy == "" || strings.ContainsAny(p.Proxy, ":/"):
		problem = "it is of another node than its key"
	case !address(p.ManagerURL) || !address(p.ClientURL):
		problem = "its addresses are none"
	case !l.believe(p):
		problem = "nothing proves that it is of this storage proxy; start it with the key of its name (berth admin storage-key)"
	}
	if problem != "" {
		l.deps.Log.Warn("the announcement of a storage proxy cannot be used", "key", name, "problem", problem)
		return p, false
	}
	return p, true
}

// believe reports whether an announcement is of the proxy that it names: managers show a proxy's key to whoever announces its name. One
// of a release that proved nothing counts as long as no node of its proxy has proved itself.
func (l *Link) believe(p storage.Presence) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if storage.Proven(storage.Key(l.cfg.Secret.Reveal(), p.Proxy, storage.AnnounceKey), p) {
		if len(l.proven) < maxNodes {
			l.proven[p.Proxy] = true
		}
		return true
	}
	return p.Proof == "" && p.Protocol < provenProtocol && !l.proven[p.Proxy]
}

// provenProtocol is the first protocol whose announcements carry a proof.
const provenProtocol = 3

func address(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

func (l *Link) replace(now map[string]storage.Presence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.live {
		if _, still := now[key]; !still {
			l.lose(key)
		}
	}
	for key, p := range now {
		l.live[key] = p
		delete(l.gone, key)
	}
	l.nodeMoved()
}

func (l *Link) take(key string, p storage.Presence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.live[key]; !known && len(l.live) >= maxNodes {
		l.deps.Log.Warn("too many storage proxies announce themselves", "key", key)
		return
	}
	if old, known := l.live[key]; !known || !old.StartedAt.Equal(p.StartedAt) {
		defer l.nodeMoved()
	}
	l.live[key] = p
	delete(l.gone, key)
}

func (l *Link) drop(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose(key)
}

// lose remembers a node that is gone; mu is held.
func (l *Link) lose(key string) {
	p, known := l.live[key]
	if !known {
		return
	}
	delete(l.live, key)
	delete(l.failed, key)
	if len(l.gone) >= maxGone {
		for oldest := range l.gone {
			delete(l.gone, oldest)
			break
		}
	}
	l.gone[key] = p
	l.nodeMoved()
}

// View returns the nodes that announce themselves and the last that is known of proxies without any.
func (l *Link) View() (live, gone []storage.Presence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	there := map[string]bool{}
	for _, p := range l.live {
		live = append(live, p)
		there[p.Proxy] = true
	}
	for _, p := range l.gone {
		if !there[p.Proxy] {
			gone = append(gone, p)
		}
	}
	byNode := func(a, b storage.Presence) int { return strings.Compare(a.Proxy+"/"+a.Node, b.Proxy+"/"+b.Node) }
	slices.SortFunc(live, byNode)
	slices.SortFunc(gone, byNode)
	return live, gone
}

// ClientURL is where clients reach a proxy: a node that answered lately, if one did.
func (l *Link) ClientURL(proxy string) (string, error) {
	nodes := l.nodes(proxy)
	if len(nodes) == 0 {
		return "", noNode(proxy)
	}
	return nodes[0].ClientURL, nil
}

// nodes are those of a proxy in the order in which to ask them: in turns, those that failed just now last.
func (l *Link) nodes(proxy string) []storage.Presence {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []storage.Presence
	for _, p := range l.live {
		if p.Proxy == proxy {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b storage.Presence) int { return strings.Compare(a.Node, b.Node) })
	if len(out) > 1 {
		l.turn++
		at := l.turn % len(out)
		out = slices.Concat(out[at:], out[:at])
	}
	now := l.deps.Clock.Now()
	slices.SortStableFunc(out, func(a, b storage.Presence) int { return l.avoid(a, now) - l.avoid(b, now) })
	return out
}

// avoid is 1 for nodes that failed just now; mu is held.
func (l *Link) avoid(p storage.Presence, now time.Time) int {
	if at, ok := l.failed[p.Proxy+"/"+p.Node]; ok && now.Sub(at) < avoidFor {
		return 1
	}
	return 0
}

func (l *Link) note(p storage.Presence, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := p.Proxy + "/" + p.Node
	if ok {
		delete(l.failed, key)
	} else if _, known := l.live[key]; known {
		l.failed[key] = l.deps.Clock.Now()
	}
}

func noNode(proxy string) error {
	return fault.Unavailablef("no storage proxy %s is connected", proxy).WithReason("storage-proxy-unavailable").
		WithNext("start it, or look at `berth doctor`")
}
