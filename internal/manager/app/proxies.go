package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/proxy"
)

const (
	// SeeEvery is how often a manager says that a replica still watches; seenFor is how long that is believed.
	SeeEvery = 10 * time.Second
	seenFor  = 35 * time.Second
	// proxyKept is how long replicas that left are remembered.
	proxyKept = 24 * time.Hour
)

// See notes that a replica of a proxy watches now. Name is what its certificate says.
func (s *Service) See(ctx context.Context, name string, i proxy.Instance) error {
	i.Name = name
	if err := checkInstance(i); err != nil {
		return err
	}
	raw, err := json.Marshal(i)
	if err != nil {
		return fmt.Errorf("render an app proxy: %w", err)
	}
	if err := s.takeAddresses(ctx, i); err != nil {
		return err
	}
	if err := s.d.Store.SeeProxy(ctx, name, i.Node, raw, s.d.Clock()); err != nil {
		return fmt.Errorf("note app proxy %s: %w", name, err)
	}
	return nil
}

// Leave notes that a replica does not watch any more, unless it was seen again meanwhile. at is when it was seen last.
func (s *Service) Leave(ctx context.Context, name, node string, at time.Time) error {
	if err := s.d.Store.DropProxy(ctx, name, node, at); err != nil {
		return fmt.Errorf("note that app proxy %s left: %w", name, err)
	}
	return nil
}

// checkInstance refuses announcements that would make bad addresses.
func checkInstance(i proxy.Instance) error {
	bad := func(what, value string) error {
		return fault.Invalidf("app proxy %s announces %s %.200q, which cannot be used", i.Name, what, value).WithReason("bad-proxy-instance")
	}
	if i.Node == "" || len(i.Node) > 128 {
		return bad("the node", i.Node)
	}
	if !webURL(i.URL) {
		return bad("the url", i.URL)
	}
	if i.Domain != "" && (!webURL(i.DomainURL) || len(i.Domain) > 189 || strings.ContainsAny(i.Domain, "/ @?#")) {
		return bad("the domain", i.Domain+" "+i.DomainURL)
	}
	if i.PortFrom != 0 && (i.PortFrom < 1 || i.PortTo > 65535 || i.PortFrom > i.PortTo || i.PortHost == "") {
		return bad("the ports", fmt.Sprintf("%s:%d-%d", i.PortHost, i.PortFrom, i.PortTo))
	}
	return nil
}

func webURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && len(text) <= 512
}

// Proxy is an app proxy as its replicas announced it.
type Proxy struct {
	proxy.Instance
	Connected bool
	Replicas  int // connected ones
}

// proxies reads what is known of them by name; the newest announcement speaks for a proxy.
func (s *Service) proxies(ctx context.Context, q *dbgen.Queries) (map[string]Proxy, error) {
	rows, err := q.ListProxies(ctx)
	if err != nil {
		return nil, fmt.Errorf("read app proxies: %w", err)
	}
	slices.SortStableFunc(rows, func(a, b dbgen.AppProxy) int { return a.SeenAt.Compare(b.SeenAt) })
	now := s.d.Clock()
	out := map[string]Proxy{}
	for _, r := range rows {
		p := Proxy{Replicas: out[r.Name].Replicas}
		if err := json.Unmarshal(r.Instance, &p.Instance); err != nil {
			continue // of some later version
		}
		if now.Sub(r.SeenAt) <= seenFor {
			p.Replicas++
		}
		p.Name, p.Connected = r.Name, p.Replicas > 0
		out[r.Name] = p
	}
	return out, nil
}

// Proxies lists the app proxies that are known.
func (s *Service) Proxies(ctx context.Context) ([]Proxy, error) {
	all, err := s.proxies(ctx, s.d.Store.Queries)
	if err != nil {
		return nil, err
	}
	out := make([]Proxy, 0, len(all))
	for _, p := range all {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Proxy) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// ProxyVersion is what clients are told about the app proxy of a resource group.
func (s *Service) ProxyVersion(ctx context.Context, a authz.Actor, group string) (string, error) {
	if err := authz.Authenticated(a); err != nil {
		return "", err
	}
	_, err := s.d.Store.GroupProxyAddress(ctx, group)
	if store.Missing(err) {
		return "", authz.NotFound("resource group", group)
	}
	if err != nil {
		return "", fmt.Errorf("find resource group %s: %w", group, err)
	}
	return "v2", nil
}

// chosen is the connected proxy for a resource group whose configured address is given: the one of that address, else the
// first by name.
func chosen(all map[string]Proxy, address string) (Proxy, error) {
	var best *Proxy
	for _, p := range all {
		if !p.Connected {
			continue
		}
		fits := address != "" && sameURL(p.URL, address)
		if best == nil || fits || best.Name > p.Name && !sameURL(best.URL, address) {
			best = &p
		}
		if fits {
			break
		}
	}
	if best == nil {
		return Proxy{}, noProxy()
	}
	return *best, nil
}

func sameURL(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

func noProxy() error {
	return fault.Unavailablef("no app proxy is connected").WithReason("no-app-proxy").
		WithNext("start one (`berth appproxy`; `berth up` has one), or use `berth port-forward`, which can do without")
}

// Address is where visitors of a circuit go; "" when its proxy has no such way.
func (p Proxy) Address(mode proxy.Mode, label string, port int, http bool) string {
	switch {
	case mode == proxy.ModePort && p.PortHost != "":
		scheme := "http"
		if p.PortTLS {
			scheme = "https"
		}
		if !http {
			scheme = "tcp"
		}
		return scheme + "://" + net.JoinHostPort(p.PortHost, strconv.Itoa(port))
	case mode == proxy.ModeSubdomain && p.Domain != "":
		u, err := url.Parse(p.DomainURL)
		if err != nil {
			return ""
		}
		host := label + "." + strings.TrimPrefix(p.Domain, ".")
		if u.Port() != "" {
			host = net.JoinHostPort(host, u.Port())
		}
		return u.Scheme + "://" + host
	}
	return ""
}
