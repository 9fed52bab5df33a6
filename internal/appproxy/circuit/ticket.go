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

// cookiePrefix begins the names of all cookies of the platform. Browsers accept cookies with hostPrefix over TLS only, and send
// them to the host that set them alone.
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

// PlatformCookie reports whether a cookie has a name of the platform's, of whatever circuit. Such cookies are removed from
// requests to apps and from the cookies that apps set. Upper and lower case are the same here, because browsers take the prefix
// __Host- in either.
func PlatformCookie(name string) bool {
	if len(name) >= len(hostPrefix) && strings.EqualFold(name[:len(hostPrefix)], hostPrefix) {
		name = name[len(hostPrefix):]
	}
	return len(name) >= len(cookiePrefix) && strings.EqualFold(name[:len(cookiePrefix)], cookiePrefix)
}
