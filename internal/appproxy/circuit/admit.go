package circuit

import (
	"net/http"
	"net/netip"
	"slices"
	"time"

	"berth.dev/berth/internal/clientaddr"
)

// Visitor is what is known of a request or connection before anything of it is forwarded.
type Visitor struct {
	At     time.Time
	Addr   netip.Addr // as the proxy sees it, or as a trusted proxy in front says
	Secure bool       // came over TLS
	// Origin is what this circuit's own pages send as Origin: scheme://host[:port], made of configuration, not of the request.
	Origin string

	Method  string
	Upgrade bool // WebSocket or another upgrade
	// Cookie is the value of the circuit's own cookie, Bearer of a ticket in Authorization: Berth; empty when missing. More
	// than one cookie of that name counts as none.
	Cookie, Bearer string
	// The headers Origin, Sec-Fetch-Site, Sec-Fetch-Mode and Sec-Fetch-Dest; empty when missing. More than one Origin counts as
	// a foreign one.
	HeaderOrigin, FetchSite, FetchMode, FetchDest string
}

// Decision is the outcome of an admission.
type Decision int

// The decisions. Pass: forward it. Login: the visitor needs a ticket first. Refuse: no ticket would help.
const (
	Pass Decision = iota + 1
	Login
	Refuse
)

// Verdict is a decision with its reason: a slug for logs and counters, and words for people.
type Verdict struct {
	Decision Decision
	User     string // who, when a ticket said so
	Reason   string
	Words    string
}

// Admit decides about one request to a circuit whose app speaks HTTP.
//
// A browser sends the circuit's cookie whichever page caused the request, so the cookie does not prove that one of the circuit's
// own pages did. Requests that a page of another origin caused are refused, except for plain navigation.
func (c *Circuit) Admit(keys [][]byte, v Visitor) Verdict {
	if r := c.closedTo(v); r != nil {
		return *r
	}
	foreign := v.HeaderOrigin != "" && v.HeaderOrigin != v.Origin
	if v.Upgrade && foreign && v.Bearer == "" {
		return Verdict{Refuse, "", "foreign-origin", "A page of another site may not open this connection."}
	}
	if v.Bearer != "" {
		if t, ok := c.Verify(v.Bearer, keys, v.At); ok {
			if !t.From(v.Addr) {
				return elsewhere(t.User)
			}
			return Verdict{Decision: Pass, User: t.User, Reason: "bearer"}
		}
		return Verdict{Login, "", "bad-ticket", "The ticket is not valid any more."}
	}
	// A public app answers requests that foreign pages caused, but as those of an unknown visitor: the ticket does not count.
	if t, ok := c.Verify(v.Cookie, keys, v.At); ok && !(c.Public && (foreign || crossSite(v))) {
		if foreign || crossSite(v) {
			return Verdict{Refuse, t.User, "foreign-origin", "A page of another site may not use this app."}
		}
		switch {
		case t.From(v.Addr):
			return Verdict{Decision: Pass, User: t.User, Reason: "cookie"}
		case !c.Public:
			return elsewhere(t.User)
		}
	}
	if c.Public {
		return Verdict{Decision: Pass, Reason: "public"}
	}
	return Verdict{Login, "", "no-ticket", "This app is open only to those whom its owner let in."}
}

// elsewhere refuses a ticket whose user may not come from the visitor's address.
func elsewhere(user string) Verdict {
	return Verdict{Refuse, user, "address-not-allowed", "This app cannot be opened from your address."}
}

// crossSite reports whether the browser says that a page of another origin caused the request; other apps of the same domain are
// other origins. Following a link does not count, showing the app in a frame of a foreign page does.
func crossSite(v Visitor) bool {
	switch v.FetchSite {
	case "", "none", "same-origin":
		return false
	}
	link := v.FetchMode == "navigate" && (v.FetchDest == "" || v.FetchDest == "document")
	return !link || v.Method != http.MethodGet && v.Method != http.MethodHead
}

// AdmitConn decides about a raw connection to a circuit's own port.
func (c *Circuit) AdmitConn(addr netip.Addr, now time.Time) Verdict {
	v := Visitor{At: now, Addr: addr}
	if r := c.closedTo(v); r != nil {
		return *r
	}
	if c.Public || slices.Contains(c.Admitted, plain(addr)) {
		return Verdict{Decision: Pass, Reason: "address"}
	}
	return Verdict{Refuse, "", "address-not-admitted", "This address was not let in."}
}

// closedTo refuses visitors whom no ticket could help: the circuit has expired, or their address is not allowed. It is nil for
// all others.
func (c *Circuit) closedTo(v Visitor) *Verdict {
	if c.ExpiresAt != nil && !v.At.Before(*c.ExpiresAt) {
		return &Verdict{Refuse, "", "expired", "This app was published for a time that is over."}
	}
	if len(c.Allowed) == 0 {
		return nil
	}
	addr := plain(v.Addr)
	for _, p := range c.Allowed {
		if p.Contains(addr) {
			return nil
		}
	}
	return &Verdict{Refuse, "", "address-not-allowed", "This app is not open to your address."}
}

// Network is what visitors' addresses are counted by: an IPv4 address, or the /64 of an IPv6 address.
func Network(a netip.Addr) netip.Addr { return clientaddr.Network(a) }
