package circuit

import (
	"strings"
	"time"

	"berth.dev/berth/internal/wire/proxy"
)

// Verify reads a ticket that one of the keys signed for this circuit in its present epoch and that is valid at now.
func (c *Circuit) Verify(text string, keys [][]byte, now time.Time) (proxy.Ticket, bool) {
	t, ok := proxy.ReadTicket(text, keys)
	if !ok || t.Circuit != c.ID || t.Epoch != c.Epoch || !now.Before(t.Expires) {
		return proxy.Ticket{}, false
	}
	return t, true
}

// cookiePrefix begins the names of all our cookies; the browser keeps those with __Host- to one host over TLS.
const (
	cookiePrefix = "berth-"
	hostPrefix   = "__Host-"
)

// CookieName is the cookie that carries a ticket for the circuit. Ports do not separate cookies, so the id is part of it.
func (c *Circuit) CookieName(secure bool) string {
	if secure {
		return c.secureCookie
	}
	return c.secureCookie[len(hostPrefix):]
}

func cookieOf(id string) string { return hostPrefix + cookiePrefix + strings.ReplaceAll(id, "-", "") }

// PlatformCookie reports whether a cookie is ours, of whatever circuit: such cookies are taken out of every request before an
// app sees it, and out of what apps set. Browsers know the prefix in any case of letters, so we do too.
func PlatformCookie(name string) bool {
	if len(name) >= len(hostPrefix) && strings.EqualFold(name[:len(hostPrefix)], hostPrefix) {
		name = name[len(hostPrefix):]
	}
	return len(name) >= len(cookiePrefix) && strings.EqualFold(name[:len(cookiePrefix)], cookiePrefix)
}
