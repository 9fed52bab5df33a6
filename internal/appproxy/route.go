package appproxy

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/appproxy/forward"
	"berth.dev/berth/internal/appproxy/front"
	"berth.dev/berth/internal/wire/tunnel"
)

// route decides about one request: whose host it names, whether its visitor may pass, or what the proxy itself answers.
// Nothing that a visitor sent chooses more than an entry of the table.
func (p *Proxy) route(h forward.Head) forward.Route {
	host := hostOf(h.Host)
	table := p.client.Table()
	if port := h.Listener.Port; port != 0 {
		c := table.ByPort(port)
		switch {
		case c == nil:
			return forward.Route{Handler: p.front.NoApp()}
		case !c.HTTP() && h.Path == front.TunnelPath:
			return forward.Route{Handler: p.front.Base()}
		case !p.servesPortsAs(host):
			return forward.Route{Handler: p.front.Misdirected()}
		case c.HTTP() && h.Header.Get("Service-Worker") != "":
			return forward.Route{Handler: p.front.NoWorkers()}
		case c.HTTP():
			return p.visit(c, table, h)
		}
		return forward.Route{Handler: p.front.NotHTTP(c)}
	}
	if label, ok := p.label(host); ok {
		c := table.ByLabel(label)
		switch {
		case c == nil:
			return forward.Route{Handler: p.front.Absent(label)}
		case c.HTTP():
			return p.visit(c, table, h)
		}
		return forward.Route{Handler: p.front.NotHTTP(c)}
	}
	switch {
	case p.isBase(host), h.Path == front.TunnelPath && h.Upgrade == tunnel.Protocol: // whoever speaks it names no host, and shows a ticket
		return forward.Route{Handler: p.front.Base()}
	case h.Path == "/healthz": // load balancers ask by address
		return forward.Route{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { front.Healthz(w, p.client) })}
	}
	return forward.Route{Handler: p.front.Misdirected()}
}

// visit decides about a request of a circuit's own host.
func (p *Proxy) visit(c *circuit.Circuit, table *circuit.Table, h forward.Head) forward.Route {
	if front.IsSetup(h.Method, h.Path, h.RawQuery) {
		return forward.Route{Handler: p.front.Setup(c)}
	}
	v := circuit.Visitor{
		At: p.d.Clock.Now(), Addr: h.Client, Method: h.Method, Upgrade: h.Upgrade != "",
		HeaderOrigin: h.Header.Get("Origin"), FetchSite: h.Header.Get("Sec-Fetch-Site"),
	}
	if v.HeaderOrigin != "" {
		own := p.address(c)
		v.Origin = own.String()
		if len(h.Header.Values("Origin")) > 1 {
			v.HeaderOrigin = "null"
		}
	}
	if v.FetchSite != "" {
		v.FetchMode, v.FetchDest = h.Header.Get("Sec-Fetch-Mode"), h.Header.Get("Sec-Fetch-Dest")
	}
	v.Bearer, _ = strings.CutPrefix(h.Header.Get("Authorization"), front.Bearer)
	if v.Bearer == h.Header.Get("Authorization") {
		v.Bearer = ""
	}
	if cookies := h.Header.Cookies(c.CookieName(p.secure(c))); len(cookies) == 1 {
		v.Cookie = cookies[0]
	}
	verdict := c.Admit(table.Keys(), v)
	if verdict.Decision == circuit.Pass {
		route := forward.Route{Circuit: c, User: verdict.User, Key: p.key(c, verdict, h.Client)}
		if verdict.Reason != "bearer" { // a program sends the cookies that it means to send
			route.Jar = c.Jar(table.Keys())
		}
		return route
	}
	return forward.Route{Handler: p.front.Denied(c, verdict)}
}

// key chooses the target of a visitor. Browsers stay at one target: by the user that the circuit's cookie names or, at a
// public app, by their address. Programs that show a ticket with every request are spread over all targets.
func (p *Proxy) key(c *circuit.Circuit, v circuit.Verdict, client netip.Addr) uint64 {
	switch {
	case !c.Several():
		return 0
	case v.Reason == "bearer":
		return uint64(p.d.Random() * (1 << 63))
	case v.User != "":
		return circuit.KeyOf("user " + v.User)
	}
	return circuit.KeyOfAddress(client)
}

// secure reports whether visitors reach a circuit over TLS, which its cookie's name depends on.
func (p *Proxy) secure(c *circuit.Circuit) bool {
	if c.Port != 0 && c.Label == "" {
		return p.at.portTLS
	}
	return p.at.domain != nil && p.at.domain.Scheme == "https"
}

// hostOf is the name in a Host field: without port and final dot, in lower case.
func hostOf(text string) string {
	host := text
	if strings.HasPrefix(host, "[") {
		end := strings.IndexByte(host, ']')
		if end < 0 {
			return ""
		}
		return strings.ToLower(host[1:end])
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// label is the part of a host name that chooses a circuit; false when the host is not one level below the domain.
func (p *Proxy) label(host string) (string, bool) {
	if p.at.suffix == "" || len(host) <= len(p.at.suffix) || host[len(host)-len(p.at.suffix):] != p.at.suffix {
		return "", false
	}
	label := host[:len(host)-len(p.at.suffix)]
	if len(label) > 63 {
		return "", false
	}
	for i := range len(label) {
		c := label[i]
		if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", false
		}
	}
	return label, true
}

// isBase reports whether a host is the base URL's, or the domain itself. Names for this very machine are one.
func (p *Proxy) isBase(host string) bool {
	return host != "" && (host == p.at.baseHost || host == p.cfg.Domain || loopback(host) && loopback(p.at.baseHost))
}

// servesPortsAs refuses foreign names, with which a page elsewhere could lead browsers here; an address names nobody else.
func (p *Proxy) servesPortsAs(host string) bool {
	if host == p.at.portHost || host == p.at.baseHost || loopback(host) && loopback(p.at.portHost) {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
