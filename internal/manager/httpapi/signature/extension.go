package signature

import (
	"encoding/hex"
	"net/http"
	"strings"

	"berth.dev/berth/internal/fault"
)

// The signature of the wire covers neither the body nor anything that is used once. Our own client adds the header Extension:
//
//	X-Berth-Signature: nonce=<32 hex digits>, body=<SHA-256 in hex, or "stream">, mac=<hex>
//
// mac is the HMAC, with the key of the signature, of "berth-request-1", what the signature covers, nonce and body, one a line.
//
// The signature of the wire has to say that there is an extension, or whoever captures a request could leave the header out and use it
// like one of an official client. The date is covered by that signature as text, so the client writes its zone as UnknownOffset, which
// means UTC to every reader of dates and which no official client writes. A request with such a date needs the extension.
const (
	Extension     = "X-Berth-Signature"
	UnknownOffset = "-00:00"
	// stream stands for the digest of a body that was not known when the request was signed.
	stream = "stream"
	// extensionMark begins what mac covers; methods are upper case, so nothing that the signature of the wire covers begins so.
	extensionMark = "berth-request-1\n"
)

// extension is the parsed header Extension.
type extension struct {
	nonce string
	// body is the SHA-256 that the body must have; nil for a stream.
	body []byte
	// bodyText is body as it came.
	bodyText string
	mac      []byte
}

func (e *extension) text(signed []byte) []byte {
	b := make([]byte, 0, len(extensionMark)+len(signed)+len(e.nonce)+len(e.bodyText)+2)
	b = append(b, extensionMark...)
	b = append(b, signed...)
	b = append(b, '\n')
	b = append(b, e.nonce...)
	b = append(b, '\n')
	return append(b, e.bodyText...)
}

// extensionOf reads the extension of a request; nil when it has none and its date does not ask for one.
func extensionOf(r *http.Request, date string) (*extension, error) {
	bad := func(why string) (*extension, error) {
		return nil, fault.Invalidf("the %s header %s", Extension, why).WithReason(ReasonInvalid).
			WithNext("use a client of this cluster's version, and check that proxies on the way keep the header")
	}
	all := r.Header.Values(Extension)
	if len(all) == 0 {
		if strings.HasSuffix(strings.TrimSpace(date), UnknownOffset) {
			return bad("is missing, and the date says that there is one")
		}
		return nil, nil
	}
	if len(all) > 1 || len(all[0]) > 512 {
		return bad("is there twice or too long")
	}
	var e extension
	for part := range strings.SplitSeq(all[0], ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "nonce":
			e.nonce = value
		case "body":
			e.bodyText = value
		case "mac":
			e.mac, _ = hex.DecodeString(value)
		}
	}
	if raw, err := hex.DecodeString(e.nonce); err != nil || len(raw) != 16 {
		return bad("has no nonce of 16 bytes")
	}
	if e.bodyText != stream {
		var err error
		if e.body, err = hex.DecodeString(e.bodyText); err != nil || len(e.body) != 32 {
			return bad("has no digest of the body")
		}
	}
	if len(e.mac) == 0 {
		return bad("has no mac")
	}
	return &e, nil
}

// Extended reports whether the request carries the extension.
func (s *Signed) Extended() bool { return s.extra != nil }

// Digest is the SHA-256 that the body must have; nil when the sender did not say.
func (s *Signed) Digest() []byte {
	if s.extra == nil {
		return nil
	}
	return s.extra.body
}

// Writes reports whether the request may change something or opens a stream.
func (s *Signed) Writes() bool { return s.writes }
