package proxy

import (
	"encoding/base64"
	"slices"
	"testing"
	"time"
)

// FuzzTicket: only what a key signed is a ticket, and what was read is what was signed, whatever the parts hold.
func FuzzTicket(f *testing.F) {
	key := []byte("0123456789abcdef0123456789abcdef")
	f.Add(SignTicket(Ticket{Circuit: "c", User: "u", Epoch: 7, Expires: time.Unix(1_800_000_000, 0), Clients: []string{"10.0.0.0/8"}}, key))
	f.Add("c.dQ.7.1800000000")
	f.Add("c.dQ.-1.99999999999999999999")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if _, ok := ReadTicket(text, [][]byte{key}); ok {
			cut := len(text) - base64.RawURLEncoding.EncodedLen(32) - 1
			sum := ticketMAC(text[:cut], key)
			if text[cut+1:] != base64.RawURLEncoding.EncodeToString(sum[:]) {
				t.Fatalf("%q was not signed", text)
			}
		}
		sum := ticketMAC(text, key)
		got, ok := ReadTicket(text+"."+base64.RawURLEncoding.EncodeToString(sum[:]), [][]byte{key})
		if !ok {
			return
		}
		again, ok := ReadTicket(SignTicket(got, key), [][]byte{key})
		if !ok || again.Circuit != got.Circuit || again.User != got.User || again.Epoch != got.Epoch || !again.Expires.Equal(got.Expires) ||
			!slices.Equal(again.Clients, got.Clients) {
			t.Fatalf("%+v became %+v", got, again)
		}
	})
}
