package forward

import (
	"net/http"
	"strconv"
	"strings"

	"berth.dev/berth/internal/appproxy/circuit"
)

// This file decides which header fields pass between visitors and apps.
//
// Towards the app: the platform's own cookies and credentials, hop-by-hop fields and every X-Forwarded-* and X-BackendAI-* that
// the visitor sent are removed; X-Forwarded-For, -Proto and -Host are added. Towards the visitor: hop-by-hop fields, the
// platform's own fields, and cookies that could reach another app are removed.
//
// There are two implementations of these rules, and they must agree: appendRequest and appendResponse write the heads of the
// own HTTP/1 engine, cleanRequest and cleanResponse change the headers of net/http, which carries HTTP/2.
//
// In port mode all apps have one host name, and browsers send their cookies to all of them. There a jar (circuit.Jar) lets only
// those reach an app that an app of the same tenant set.
//
// In port mode one port also serves different apps over time, and browsers take them for one site. A browser must not answer a
// request to the present app from what it cached of an earlier one. That is why answers on ports carry "Vary: Cookie": the
// name of the circuit's cookie differs from app to app. The callers add it.

// visitor is what the app is told about the visitor: address and scheme. jar are the cookies that it may hear of.
type visitor struct {
	addr, proto string
	jar         circuit.Jar
}

// appendRequest appends the request head that is sent to the app. Fields of the kinds that the switch does not name are left
// out, among them Host, Connection, Transfer-Encoding and Upgrade: they are written anew from what the parser understood.
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
			if !r.expect { // not "100-continue", or nothing to expect
				continue
			}
		case authorizationField:
			if platformAuthorization(f.value) {
				continue
			}
		case cookieField:
			rest := ""
			if !v.jar.On() {
				rest = stripCookies(f.value)
			} else if all, first := cookiesFrom(r.fields, i); first {
				rest = v.jar.Keep(all)
			}
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

// cookiesFrom joins all Cookie fields when that at i is the first of them: a cookie and its proof may be in different ones.
func cookiesFrom(fields []field, i int) (all string, first bool) {
	for j := range fields[:i] {
		if fields[j].kind == cookieField {
			return "", false
		}
	}
	all = fields[i].value
	for j := i + 1; j < len(fields); j++ {
		if fields[j].kind == cookieField {
			all += "; " + fields[j].value
		}
	}
	return all, true
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// bodyForm is how the end of an answer's body is marked for the visitor.
type bodyForm int

const (
	noBody      bodyForm = iota
	sizedBody            // by Content-Length
	chunkedBody          // by the last chunk
	plainBody            // by the end of the connection: the app sends chunks, which a visitor of HTTP/1.0 does not know
	endlessBody          // by the end of the connection: the app marks the end in the same way
)

// appendResponse appends the response head that is sent to the visitor. host is the one of the request, minor the visitor's
// version of HTTP/1. last says that the connection is closed after this answer.
func appendResponse(b []byte, r *response, form bodyForm, host string, jar circuit.Jar, last bool, minor int) []byte {
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
			c, proof := setCookies(f.value, host, jar)
			if c != "" {
				b = appendField(b, f.name, c)
			}
			if proof != "" {
				b = appendField(b, f.name, proof)
			}
			continue
		case lengthField:
			// Without a body only answers to HEAD and those with status 304 may have a length.
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

// platformAuthorization reports whether the value of an Authorization field has the platform's own scheme.
func platformAuthorization(v string) bool {
	const scheme = "Berth"
	return len(v) >= len(scheme) && strings.EqualFold(v[:len(scheme)], scheme) &&
		(len(v) == len(scheme) || v[len(scheme)] == ' ' || v[len(scheme)] == '\t')
}

// stripCookies removes the platform's cookies from the value of a Cookie field. It is "" when nothing is left.
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

// cleanSetCookie returns the value of a Set-Cookie field as it may reach the visitor. It is "" for a cookie with a name of the
// platform's. A Domain attribute is removed unless it names exactly host: the cookie would be sent to other apps, too.
func cleanSetCookie(v, host string) string {
	pair, rest, more := strings.Cut(v, ";")
	name, _, _ := strings.Cut(pair, "=")
	// A browser sends a cookie without a name back as its value alone, which could then be read as one of the platform's.
	name = strings.Trim(name, " \t")
	nameless := name == "" || name == strings.Trim(pair, " \t")
	if circuit.PlatformCookie(name) || nameless && strings.Contains(pair, "berth-") {
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

// setCookies are the values of Set-Cookie fields that take the place of one of the app's; "" is none.
func setCookies(v, host string, jar circuit.Jar) (cookie, proof string) {
	cookie = cleanSetCookie(v, host)
	if cookie == "" || !jar.On() {
		return cookie, ""
	}
	proof, ok := jar.Proof(cookie)
	if !ok {
		return "", ""
	}
	return cookie, proof
}

func containsFold(s, lower string) bool {
	for i := 0; i+len(lower) <= len(s); i++ {
		if strings.EqualFold(s[i:i+len(lower)], lower) {
			return true
		}
	}
	return false
}

// hostname is an authority (host or host:port) without its port.
func hostname(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		return host[:i]
	}
	return host
}

// cleanRequest applies the rules of appendRequest to a header of net/http.
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
			if v.jar.On() {
				values = []string{v.jar.Keep(strings.Join(values, "; "))}
			}
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

// cleanResponse applies the rules of appendResponse to a header of net/http.
func cleanResponse(h http.Header, host string, jar circuit.Jar) {
	for name, values := range h {
		switch kindOf(name) {
		case setCookieField:
			var keep []string
			for _, c := range values {
				cookie, proof := setCookies(c, host, jar)
				for _, value := range []string{cookie, proof} {
					if value != "" {
						keep = append(keep, value)
					}
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
