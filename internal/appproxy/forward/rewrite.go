package forward

import (
	"net/http"
	"strconv"
	"strings"

	"berth.dev/berth/internal/appproxy/circuit"
)

// What an app gets of a visitor's request, and a visitor of an app's answer. appendRequest and appendResponse do it for heads
// of HTTP/1, cleanRequest and cleanResponse for those of net/http; they must agree.
//
// A port has one app after the other, of one user after the other, and to browsers they are all the same site. What they keep of
// one must not come up in the next: answers there vary with the cookies, one of which names the circuit.

// visitor is what the app is told about who asks.
type visitor struct {
	addr, proto string
}

// appendRequest writes the head that the app gets.
func appendRequest(b []byte, r *request, v visitor) []byte {
	b = append(b, r.method...)
	b = append(b, ' ')
	b = append(b, r.target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.host...)
	b = append(b, "\r\n"...)
	for i := range r.fields {
		f := &r.fields[i]
		switch f.kind {
		case other:
		case expectField:
			if !r.expect {
				continue
			}
		case authorizationField:
			if platformAuthorization(f.value) {
				continue
			}
		case cookieField:
			rest := stripCookies(f.value)
			if rest == "" {
				continue
			}
			b = appendField(b, f.name, rest)
			continue
		case lengthField:
			b = append(b, "Content-Length: "...)
			b = strconv.AppendInt(b, r.length, 10)
			b = append(b, "\r\n"...)
			continue
		default:
			continue
		}
		b = appendField(b, f.name, f.value)
	}
	b = append(b, "X-Forwarded-For: "...)
	b = append(b, v.addr...)
	b = append(b, "\r\nX-Forwarded-Proto: "...)
	b = append(b, v.proto...)
	b = append(b, "\r\nX-Forwarded-Host: "...)
	b = append(b, r.host...)
	if r.chunked {
		b = append(b, "\r\nTransfer-Encoding: chunked"...)
	}
	switch {
	case r.protocol != "":
		b = append(b, "\r\nConnection: Upgrade\r\nUpgrade: "...)
		b = append(b, r.protocol...)
	case r.trailersOK:
		b = append(b, "\r\nConnection: TE\r\nTE: trailers"...)
	}
	return append(b, "\r\n\r\n"...)
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// bodyForm is how a body reaches the visitor.
type bodyForm int

const (
	noBody      bodyForm = iota
	sizedBody            // Content-Length
	chunkedBody          // chunks in, chunks out
	plainBody            // chunks in, and the end of the connection ends it for a visitor of HTTP/1.0
	endlessBody          // the end of the connection ends it on both sides
)

// appendResponse writes the head that the visitor gets. last says that the connection ends after it.
func appendResponse(b []byte, r *response, form bodyForm, host string, last bool, minor int) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = append(b, r.line...)
	if len(r.line) == 3 {
		b = append(b, ' ')
	}
	b = append(b, "\r\n"...)
	for i := range r.fields {
		f := &r.fields[i]
		switch f.kind {
		case other, authorizationField, cookieField, expectField, hostField, forwardedField:
		case setCookieField:
			if c := cleanSetCookie(f.value, host); c != "" {
				b = appendField(b, f.name, c)
			}
			continue
		case lengthField:
			// A length where no body follows: only the answers to HEAD and 304 may say it.
			if form != sizedBody && (form != noBody || r.status < 200 || r.status == 204) {
				continue
			}
			b = append(b, "Content-Length: "...)
			b = strconv.AppendInt(b, r.framing.length, 10)
			b = append(b, "\r\n"...)
			continue
		default:
			continue
		}
		b = appendField(b, f.name, f.value)
	}
	switch {
	case r.status == http.StatusSwitchingProtocols:
		b = append(b, "Connection: Upgrade\r\nUpgrade: "...)
		b = append(b, r.protocol...)
		b = append(b, "\r\n"...)
	case r.status < 200:
	default:
		if form == chunkedBody {
			b = append(b, "Transfer-Encoding: chunked\r\n"...)
		}
		switch {
		case last:
			b = append(b, "Connection: close\r\n"...)
		case minor == 0:
			b = append(b, "Connection: keep-alive\r\n"...)
		}
	}
	return append(b, "\r\n"...)
}

// platformAuthorization reports whether credentials are ours.
func platformAuthorization(v string) bool {
	const scheme = "Berth"
	return len(v) >= len(scheme) && strings.EqualFold(v[:len(scheme)], scheme) &&
		(len(v) == len(scheme) || v[len(scheme)] == ' ' || v[len(scheme)] == '\t')
}

// stripCookies takes our cookies out of a Cookie field's value.
func stripCookies(v string) string {
	if !strings.Contains(v, "berth-") {
		return v
	}
	var kept []string
	for pair := range strings.SplitSeq(v, ";") {
		pair = strings.Trim(pair, " \t")
		name, _, _ := strings.Cut(pair, "=")
		if pair == "" || circuit.PlatformCookie(strings.Trim(name, " \t\"")) {
			continue
		}
		kept = append(kept, pair)
	}
	return strings.Join(kept, "; ")
}

// cleanSetCookie returns what may stay of a cookie that an app sets on host: "" when it is named as ours are. A Domain that
// is not the app's very host would reach other apps and is left out.
func cleanSetCookie(v, host string) string {
	pair, rest, more := strings.Cut(v, ";")
	name, _, _ := strings.Cut(pair, "=")
	// A cookie without a name comes back as its value alone, which may look like one of ours.
	if name = strings.Trim(name, " \t"); circuit.PlatformCookie(name) || (name == "" || name == strings.Trim(pair, " \t")) && strings.Contains(pair, "berth-") {
		return ""
	}
	if !more || !containsFold(rest, "domain") {
		return v
	}
	out := pair
	for attr := range strings.SplitSeq(rest, ";") {
		key, domain, _ := strings.Cut(attr, "=")
		if strings.EqualFold(strings.Trim(key, " \t"), "domain") {
			domain = strings.TrimPrefix(strings.Trim(domain, " \t"), ".")
			if !strings.EqualFold(domain, hostname(host)) {
				continue
			}
		}
		out += ";" + attr
	}
	return out
}

func containsFold(s, lower string) bool {
	for i := 0; i+len(lower) <= len(s); i++ {
		if strings.EqualFold(s[i:i+len(lower)], lower) {
			return true
		}
	}
	return false
}

// hostname takes the port off an authority.
func hostname(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		return host[:i]
	}
	return host
}

// cleanRequest does to net/http's header what appendRequest does.
func cleanRequest(h http.Header, host string, v visitor) {
	for name, values := range h {
		switch kindOf(name) {
		case other, expectField, lengthField:
		case teField:
			if strings.Contains(strings.ToLower(strings.Join(values, ",")), "trailers") {
				h[name] = []string{"trailers"}
			} else {
				delete(h, name)
			}
		case authorizationField:
			keep := values[:0]
			for _, a := range values {
				if !platformAuthorization(a) {
					keep = append(keep, a)
				}
			}
			setOrDelete(h, name, keep)
		case cookieField:
			keep := values[:0]
			for _, c := range values {
				if c = stripCookies(c); c != "" {
					keep = append(keep, c)
				}
			}
			setOrDelete(h, name, keep)
		default:
			delete(h, name)
		}
	}
	h["X-Forwarded-For"] = []string{v.addr}
	h["X-Forwarded-Proto"] = []string{v.proto}
	h["X-Forwarded-Host"] = []string{host}
}

// cleanResponse does to net/http's header what appendResponse does.
func cleanResponse(h http.Header, host string) {
	for name, values := range h {
		switch kindOf(name) {
		case setCookieField:
			keep := values[:0]
			for _, c := range values {
				if c = cleanSetCookie(c, host); c != "" {
					keep = append(keep, c)
				}
			}
			setOrDelete(h, name, keep)
		case platformField, hopField, connectionField, codingField, upgradeField, teField:
			delete(h, name)
		}
	}
}

func setOrDelete(h http.Header, name string, values []string) {
	if len(values) == 0 {
		delete(h, name)
		return
	}
	h[name] = values
}
