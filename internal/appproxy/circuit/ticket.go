package circuit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Ticket is a visitor's right to use one circuit until it expires. It travels as a cookie of the circuit's own host, or as
// the bearer token of a client that is no browser; it never reaches an app.
type Ticket struct {
	Circuit string    `json:"c"`
	User    string    `json:"u"`
	Epoch   int64     `json:"e"`
	Expires time.Time `json:"x"`
}

// MaxTicket is the longest text that is looked at, in bytes.
const MaxTicket = 1 << 10

// Sign writes a ticket as payload.mac, both base64url; the MAC is HMAC-SHA256 of the payload text.
func Sign(t Ticket, key []byte) string {
	b, _ := json.Marshal(t) // strings, numbers and a time always encode
	text := base64.RawURLEncoding.EncodeToString(b)
	return text + "." + base64.RawURLEncoding.EncodeToString(mac(text, key))
}

// Verify reads a ticket that one of the keys signed for this circuit in its present epoch and that is valid at now.
func (c *Circuit) Verify(text string, keys [][]byte, now time.Time) (Ticket, bool) {
	if len(text) > MaxTicket {
		return Ticket{}, false
	}
	payload, sum, ok := strings.Cut(text, ".")
	if !ok {
		return Ticket{}, false
	}
	given, err := base64.RawURLEncoding.DecodeString(sum)
	if err != nil {
		return Ticket{}, false
	}
	good := false
	for _, key := range keys {
		if hmac.Equal(given, mac(payload, key)) { // constant time
			good = true
		}
	}
	if !good {
		return Ticket{}, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return Ticket{}, false
	}
	var t Ticket
	if json.Unmarshal(raw, &t) != nil || t.Circuit != c.ID || t.Epoch != c.Epoch || !now.Before(t.Expires) {
		return Ticket{}, false
	}
	return t, true
}

func mac(text string, key []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("berth ticket 1 " + text))
	return h.Sum(nil)
}

// cookiePrefix begins the names of all our cookies; the browser keeps those with __Host- to one host over TLS.
const cookiePrefix = "berth-"

// CookieName is the cookie that carries a ticket for the circuit. Ports do not separate cookies, so the id is part of it.
func (c *Circuit) CookieName(secure bool) string {
	name := cookiePrefix + strings.ReplaceAll(c.ID, "-", "")
	if secure {
		return "__Host-" + name
	}
	return name
}

// PlatformCookie reports whether a cookie is ours, of whatever circuit: such cookies are taken out of every request before an
// app sees it, and out of what apps set.
func PlatformCookie(name string) bool {
	return strings.HasPrefix(strings.TrimPrefix(name, "__Host-"), cookiePrefix)
}
