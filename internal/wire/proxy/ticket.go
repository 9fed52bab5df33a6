package proxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/clientaddr"
)

// Ticket is a visitor's right to use one circuit until it expires. It travels as a cookie of the circuit's own host, or as
// the bearer token of a client that is no browser (`Authorization: Berth TICKET`); it never reaches an app. Managers and
// proxies both sign them with the keys of the watch.
type Ticket struct {
	Circuit string // holds no '.'
	User    string
	Epoch   int64
	Expires time.Time // whole seconds; the rest is cut off
	// Clients are the networks that the ticket is good from, without commas; none means all. Proxies that do not know them refuse
	// such tickets.
	Clients []string
}

// From reports whether the ticket is good for a visitor at an address.
func (t Ticket) From(addr netip.Addr) bool {
	return len(t.Clients) == 0 || clientaddr.ParseNetworks(t.Clients).Admit(addr)
}

// Bounds of tickets and keys, in bytes: the longest text that is looked at, and the shortest key that counts.
const (
	MaxTicket    = 2048
	MinTicketKey = 16
)

// ticketMark stands before what is signed, so that the keys sign nothing else by accident.
const ticketMark = "berth ticket 1 "

// SignTicket writes a ticket as CIRCUIT.USER.EPOCH.EXPIRES[.CLIENTS].MAC: user, clients and MAC base64url, HMAC-SHA256 of what stands
// before it, EXPIRES in Unix seconds. The text is a valid cookie value. It is "" when the key is too short to count.
func SignTicket(t Ticket, key []byte) string {
	if len(key) < MinTicketKey || strings.Contains(t.Circuit, ".") {
		return ""
	}
	b := make([]byte, 0, 160)
	b = append(b, t.Circuit...)
	b = append(b, '.')
	b = base64.RawURLEncoding.AppendEncode(b, []byte(t.User))
	b = append(b, '.')
	b = strconv.AppendInt(b, t.Epoch, 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, t.Expires.Unix(), 10)
	if len(t.Clients) > 0 {
		b = append(b, '.')
		b = base64.RawURLEncoding.AppendEncode(b, []byte(strings.Join(t.Clients, ",")))
	}
	sum := ticketMAC(string(b), key)
	b = append(b, '.')
	return string(base64.RawURLEncoding.AppendEncode(b, sum[:]))
}

// ReadTicket reads a ticket that one of the keys signed. It compares in constant time and decides nothing else: the caller
// looks at circuit, epoch and time.
func ReadTicket(text string, keys [][]byte) (Ticket, bool) {
	if len(text) > MaxTicket {
		return Ticket{}, false
	}
	cut := strings.LastIndexByte(text, '.')
	if cut < 0 {
		return Ticket{}, false
	}
	signed, sum := text[:cut], text[cut+1:]
	var given [sha256.Size]byte
	if base64.RawURLEncoding.EncodedLen(len(given)) != len(sum) {
		return Ticket{}, false
	}
	if n, err := base64.RawURLEncoding.Strict().Decode(given[:], []byte(sum)); err != nil || n != len(given) {
		return Ticket{}, false
	}
	good := false
	for _, key := range keys {
		if len(key) < MinTicketKey {
			continue
		}
		want := ticketMAC(signed, key)
		if hmac.Equal(given[:], want[:]) { // constant time
			good = true
		}
	}
	if !good {
		return Ticket{}, false
	}
	var t Ticket
	circuit, rest, _ := strings.Cut(signed, ".")
	user, rest, _ := strings.Cut(rest, ".")
	epoch, expires, ok := strings.Cut(rest, ".")
	name, err := base64.RawURLEncoding.Strict().DecodeString(user)
	if !ok || err != nil {
		return Ticket{}, false
	}
	t.Circuit, t.User = circuit, string(name)
	if t.Epoch, err = strconv.ParseInt(epoch, 10, 64); err != nil {
		return Ticket{}, false
	}
	expires, clients, bound := strings.Cut(expires, ".")
	if bound {
		list, err := base64.RawURLEncoding.Strict().DecodeString(clients)
		if err != nil || len(list) == 0 {
			return Ticket{}, false
		}
		t.Clients = strings.Split(string(list), ",")
	}
	seconds, err := strconv.ParseInt(expires, 10, 64)
	if err != nil {
		return Ticket{}, false
	}
	t.Expires = time.Unix(seconds, 0)
	return t, true
}

func ticketMAC(text string, key []byte) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(ticketMark))
	h.Write([]byte(text))
	h.Sum(sum[:0])
	return sum
}
