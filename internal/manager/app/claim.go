package app

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/proxy"
)

// This file keeps the addresses of app proxies theirs: visitors and resource groups know a proxy by its addresses, so that nobody may
// announce those of another one, whether that one is connected or not. Who announces an address first has it, until an administrator
// revokes the certificates of its name.

// maxAddresses bounds the addresses of one proxy, past ones too.
const maxAddresses = 32

// The kinds of addresses.
const (
	kindURL    = "url"
	kindDomain = "domain"
	kindPorts  = "ports"
)

// addressesOf are the addresses that a proxy announces and that can be nobody else's, in the form in which they compare. A loopback
// name leads each visitor to the own machine: of those only the URL counts, because resource groups choose proxies by it.
func addressesOf(i proxy.Instance) []dbgen.AppProxyAddress {
	out := []dbgen.AppProxyAddress{{Proxy: i.Name, Kind: kindURL, Address: plainURL(i.URL)}}
	if i.Domain != "" && !loopback(i.Domain) {
		out = append(out, dbgen.AppProxyAddress{Proxy: i.Name, Kind: kindDomain, Address: plainHost(i.Domain)})
	}
	if i.PortHost != "" && i.PortFrom > 0 && !loopback(i.PortHost) {
		out = append(out, dbgen.AppProxyAddress{Proxy: i.Name, Kind: kindPorts, Address: plainHost(i.PortHost), PortFrom: int32(i.PortFrom),
			PortTo: int32(i.PortTo)})
	}
	return out
}

// plainHost is a host or domain as it compares.
func plainHost(host string) string { return strings.Trim(strings.ToLower(host), ".") }

func loopback(host string) bool {
	host = plainHost(host)
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && ip.IsLoopback()
}

// plainURL is an address as it compares: no slash at its end, small letters, no port that the scheme has anyway.
func plainURL(text string) string {
	text = strings.TrimSuffix(text, "/")
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	u.Host = strings.ToLower(u.Host)
	if host := u.Hostname(); u.Port() == map[string]string{"http": "80", "https": "443"}[u.Scheme] && !strings.Contains(host, ":") {
		u.Host = plainHost(host)
	}
	return u.String()
}

// sameAddress reports whether a visitor of one address may reach what is at the other.
func sameAddress(a, b dbgen.AppProxyAddress) bool {
	if a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case kindPorts:
		return a.Address == b.Address && a.PortFrom <= b.PortTo && b.PortFrom <= a.PortTo
	case kindDomain: // labels of one are names of the other, too
		return a.Address == b.Address || strings.HasSuffix(a.Address, "."+b.Address) || strings.HasSuffix(b.Address, "."+a.Address)
	}
	return a.Address == b.Address
}

// claim decides which announced addresses are new to their proxy, and refuses those that another one has. What a proxy has already it
// keeps, also when another one has the same since a release that did not look.
func claim(announced, taken []dbgen.AppProxyAddress) ([]dbgen.AppProxyAddress, error) {
	var fresh []dbgen.AppProxyAddress
	for _, a := range announced {
		own, count, other := false, 0, ""
		for _, t := range taken {
			switch {
			case t == a:
				own = true
			case t.Proxy == a.Proxy:
				count++
			case sameAddress(a, t):
				other = t.Proxy
			}
		}
		switch {
		case own:
		case other != "":
			return nil, addressTaken(a, other)
		case count >= maxAddresses:
			return nil, fault.Exhaustedf("app proxy %s has announced %d addresses", a.Proxy, count).WithReason("too-many-proxy-addresses").
				WithNext("%s", freeAddresses(a.Proxy))
		default:
			fresh = append(fresh, a)
		}
	}
	return fresh, nil
}

func addressTaken(a dbgen.AppProxyAddress, other string) error {
	what := a.Address
	if a.Kind == kindPorts {
		what = fmt.Sprintf("ports %d to %d of %s", a.PortFrom, a.PortTo, a.Address)
	}
	return fault.Conflictf("app proxy %s announces the %s %s, which app proxy %s has", a.Proxy, a.Kind, what, other).
		WithReason("proxy-"+a.Kind+"-taken").
		WithNext("give it an address of its own, or give both one name; if %s is gone for good: %s", other, freeAddresses(other))
}

func freeAddresses(name string) string {
	return "berth admin certificate revoke --role appproxy --name " + name
}

// takeAddresses makes the announced addresses the proxy's, unless another one has them.
func (s *Service) takeAddresses(ctx context.Context, i proxy.Instance) error {
	taken, err := s.d.Store.ListProxyAddresses(ctx)
	if err != nil {
		return fmt.Errorf("read the addresses of app proxies: %w", err)
	}
	announced := addressesOf(i)
	fresh, err := claim(announced, taken)
	if err != nil || len(fresh) == 0 {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockProxyNames(ctx); err != nil {
			return fmt.Errorf("wait for the addresses of app proxies: %w", err)
		}
		taken, err := tx.ListProxyAddresses(ctx)
		if err != nil {
			return fmt.Errorf("read the addresses of app proxies: %w", err)
		}
		fresh, err := claim(announced, taken)
		if err != nil {
			return err
		}
		for _, a := range fresh {
			if err := tx.TakeProxyAddress(ctx, dbgen.TakeProxyAddressParams(a)); err != nil {
				return fmt.Errorf("note the address %s of app proxy %s: %w", a.Address, a.Proxy, err)
			}
		}
		return nil
	})
}
