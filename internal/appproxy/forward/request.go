package forward

import (
	"net/netip"
	"strings"
)

// request is the parsed head of an HTTP/1 request.
type request struct {
	method, target string // target in origin form or "*"
	host           string
	minor          int // of HTTP/1
	fields         []field
	framing
	protocol string // to upgrade to, in lower case
	expect   bool   // 100-continue
}

// body reports whether a body follows.
func (r *request) body() bool { return r.chunked || r.length > 0 }

// replayable reports whether doing the request twice is the same as doing it once.
func (r *request) replayable() bool {
	switch r.method {
	case "GET", "HEAD", "OPTIONS", "PUT", "DELETE":
		return r.protocol == "" && !r.expect
	}
	return false
}

const maxMethod = 32

// parseRequest reads a complete head into r, whose memory it uses again.
func parseRequest(r *request, head string, most int) *problem {
	*r = request{fields: r.fields[:0]}
	end := strings.IndexByte(head, '\r')
	if end < 0 || end+1 >= len(head) || head[end+1] != '\n' {
		return malformed("the first line holds a lone CR")
	}
	line := head[:end]
	method, rest, ok := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 || !isToken(method) || len(method) > maxMethod {
		return malformed("the first line is no request line")
	}
	switch {
	case version == "HTTP/1.1":
		r.minor = 1
	case version == "HTTP/1.0":
	case len(version) == 8 && strings.HasPrefix(version, "HTTP/") && isDigit(version[5]) && version[6] == '.' && isDigit(version[7]):
		return trouble(505, "http-version", "This version of HTTP is not understood.")
	default:
		return malformed("the first line is no request line")
	}
	r.method = method
	var bad *problem
	if r.fields, bad = parseFields(r.fields, head[end+2:], most); bad != nil {
		return bad
	}
	if r.framing, bad = readFraming(r.fields); bad != nil {
		return bad
	}
	if r.chunked && r.minor == 0 {
		return malformed("HTTP/1.0 knows no Transfer-Encoding")
	}
	hosts, upgrades := 0, 0
	for i := range r.fields {
		switch f := &r.fields[i]; f.kind {
		case hostField:
			hosts++
			r.host = f.value
		case upgradeField:
			upgrades++
			r.protocol = f.value
		case expectField:
			if !strings.EqualFold(f.value, "100-continue") {
				return trouble(417, "expectation", "The only expectation that is understood is 100-continue.")
			}
			r.expect = r.minor == 1
		}
	}
	if hosts > 1 || hosts == 0 && r.minor == 1 {
		return malformed("there must be one Host")
	}
	if hosts == 1 && !validHost(r.host) {
		return malformed("Host is no host name")
	}
	if bad := r.readTarget(target, hosts == 1); bad != nil {
		return bad
	}
	if r.length < 0 {
		r.length = 0
	}
	// Switching to HTTP/2 or TLS would take the connection out of the engine's sight.
	if r.protocol = strings.ToLower(r.protocol); !r.upgrade || r.minor == 0 || upgrades != 1 || !validUpgrade(r.protocol) {
		r.protocol = ""
	}
	if r.protocol != "" && r.body() {
		return malformed("a request to upgrade has a body")
	}
	return nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// readTarget checks the request target and brings the absolute form into origin form.
func (r *request) readTarget(target string, hosted bool) *problem {
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f || c == '#' {
			return malformed("the target holds characters that it must not")
		}
	}
	switch r.method {
	case "CONNECT", "TRACE":
		return trouble(405, "method", "This method does not pass.")
	}
	switch {
	case target != "" && target[0] == '/':
		r.target = target
		return nil
	case target == "*" && r.method == "OPTIONS":
		r.target = target
		return nil
	}
	scheme, rest, ok := strings.Cut(target, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return malformed("the target is no path")
	}
	authority, path := rest, "/"
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, path = rest[:i], rest[i:]
		if path[0] == '?' {
			path = "/" + path
		}
	}
	if !validHost(authority) || authority == "" || hosted && !strings.EqualFold(authority, r.host) {
		return malformed("Host is not the target's")
	}
	r.host, r.target = authority, path
	return nil
}

// validHost accepts NAME, IPV4 or [IPV6], with a port or without; no user, no percent-encoding.
func validHost(h string) bool {
	if len(h) > 255+6 {
		return false
	}
	name, port := h, ""
	if i := strings.LastIndexByte(h, ':'); i >= 0 && strings.IndexByte(h[i:], ']') < 0 {
		name, port = h[:i], h[i+1:]
		if len(port) > 5 || port == "" {
			return false
		}
		for j := range len(port) {
			if !isDigit(port[j]) {
				return false
			}
		}
	}
	if strings.HasPrefix(name, "[") {
		if !strings.HasSuffix(name, "]") {
			return false
		}
		a, err := netip.ParseAddr(name[1 : len(name)-1])
		return err == nil && a.Is6() && a.Zone() == ""
	}
	if name == "" {
		return port == ""
	}
	for i := range len(name) {
		c := name[i]
		if c|0x20 < 'a' || c|0x20 > 'z' {
			if !isDigit(c) && c != '-' && c != '.' && c != '_' {
				return false
			}
		}
	}
	return true
}

func validUpgrade(p string) bool {
	for i := range len(p) {
		if !tokenByte[p[i]] && p[i] != '/' {
			return false
		}
	}
	return p != "" && p != "h2c" && p != "h2" && !strings.HasPrefix(p, "tls") && !strings.HasPrefix(p, "http/")
}
