package circuit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"berth.dev/berth/internal/wire/proxy"
)

// Jar keeps the cookies of tenants apart where browsers do not: a browser sends a cookie to every port of the host that set it, so
// in port mode one app's cookies would reach all others. Beside each cookie that an app sets the proxy sets a proof of whose it
// is; a cookie without a proof of the app's own tenant does not reach the app. Apps of one owner share their cookies.
//
// Cookies that scripts of a page set have no proof: they stay in the browser.
//
// The zero Jar changes nothing: in subdomain mode the browser keeps cookies apart itself.
type Jar struct {
	tenant string
	keys   [][]byte // the first signs, all check
}

// Jar is the jar of the circuit's cookies; keys are those of tickets.
func (c *Circuit) Jar(keys [][]byte) Jar {
	if c.Mode != proxy.ModePort {
		return Jar{}
	}
	return Jar{tenant: c.Owner, keys: keys}
}

// On reports whether the jar keeps anything apart.
func (j Jar) On() bool { return j.tenant != "" }

const (
	proofPrefix = cookiePrefix + "own-"
	// cookieMark stands before what is signed, so that the keys sign nothing else by accident.
	cookieMark = "berth cookie 1 "
	// maxCookies bounds the cookies of one request that are looked at; browsers keep fewer for a host.
	maxCookies = 400
)

// proofName is the cookie that proves whose a cookie is. It tells neither the tenant nor the name.
func (j Jar) proofName(name string) string {
	sum := sha256.Sum256([]byte(j.tenant + "\x00" + name))
	return proofPrefix + base64.RawURLEncoding.EncodeToString(sum[:12])
}

func (j Jar) proof(key []byte, name, value string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(cookieMark + j.tenant + "\x00" + name + "\x00" + value))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:18])
}

func cutCookie(pair string) (name, value string, ok bool) {
	name, value, ok = strings.Cut(pair, "=")
	name, value = strings.Trim(name, " \t"), strings.Trim(value, " \t")
	return name, value, ok && name != ""
}

// Keep returns those cookies of a request that are the tenant's own, in the form of a Cookie field; "" when there are none. The
// platform's are not among them.
func (j Jar) Keep(cookies string) string {
	if !strings.Contains(cookies, proofPrefix) {
		return ""
	}
	proofs := map[string][]string{}
	type cookie struct{ pair, name, value string }
	var others []cookie
	n := 0
	for pair := range strings.SplitSeq(cookies, ";") {
		if n++; n > maxCookies {
			break
		}
		pair = strings.Trim(pair, " \t")
		name, value, ok := cutCookie(pair)
		switch {
		case !ok:
		case strings.HasPrefix(name, proofPrefix):
			proofs[name] = append(proofs[name], value)
		case !PlatformCookie(strings.Trim(name, `"`)):
			others = append(others, cookie{pair, name, value})
		}
	}
	var kept []string
	for _, c := range others {
		if given := proofs[j.proofName(c.name)]; len(given) > 0 && j.proved(c.name, c.value, given) {
			kept = append(kept, c.pair)
		}
	}
	return strings.Join(kept, "; ")
}

func (j Jar) proved(name, value string, given []string) bool {
	good := false
	for _, key := range j.keys {
		if len(key) < proxy.MinTicketKey {
			continue
		}
		want := []byte(j.proof(key, name, value))
		for _, g := range given {
			if hmac.Equal([]byte(g), want) {
				good = true
			}
		}
	}
	return good
}

// Proof is the value of the Set-Cookie field to be sent along with one that an app sent. ok is false when that cookie must not be
// sent either, because nothing could prove it.
func (j Jar) Proof(setCookie string) (field string, ok bool) {
	pair, attributes, more := strings.Cut(setCookie, ";")
	name, value, ok := cutCookie(pair)
	if !ok || len(j.keys) == 0 || len(j.keys[0]) < proxy.MinTicketKey {
		return "", false
	}
	field = j.proofName(name) + "=" + j.proof(j.keys[0], name, value)
	if more {
		field += ";" + attributes // it lives as long and goes to the same paths
	}
	return field + "; HttpOnly", true
}
