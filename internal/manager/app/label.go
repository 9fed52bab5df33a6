package app

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
)

// labelAlphabet has no letters that are read wrongly.
const labelAlphabet = "abcdefghjkmnpqrstuvwxyz23456789"

const (
	labelSuffix = 8 // random letters: guessing one names nobody's app
	maxSlug     = 24
)

// slug makes a part of a host name of any text; it may be empty.
func slug(text string, limit int) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() >= limit {
			break
		}
	}
	return strings.Trim(b.String(), "-")
}

// labelOf makes a host name's first part that people can read: app, session and random letters.
func labelOf(app, session string, random []byte) string {
	parts := make([]string, 0, 3)
	for _, p := range []string{slug(app, maxSlug), slug(session, maxSlug)} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	suffix := make([]byte, 0, len(random))
	for _, r := range random {
		suffix = append(suffix, labelAlphabet[int(r)%len(labelAlphabet)])
	}
	return strings.TrimPrefix(strings.Join(append(parts, string(suffix)), "-"), "xn--")
}

var labelShape = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// checkLabel allows what somebody may wish for. Numbers alone would look like ports.
func checkLabel(label string) error {
	if !labelShape.MatchString(label) || strings.HasPrefix(label, "xn--") || strings.Trim(label, "0123456789") == "" {
		return fault.Invalidf("%.80q cannot be a circuit's host name", label).WithReason("invalid-api-params").
			WithNext("use 1 to 63 of a-z, 0-9 and -, not only digits, beginning and ending with a letter or digit")
	}
	return nil
}

// maxAllowed bounds the list of addresses of one circuit.
const maxAllowed = 64

// parseAllowed reads addresses and prefixes; a plain address is a prefix of its own. The result is sorted and without doubles.
func parseAllowed(list []string) ([]string, error) {
	out := []string{}
	for _, text := range list {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, aerr := netip.ParseAddr(text)
			if aerr != nil || a.Zone() != "" {
				return nil, fault.Invalidf("%.80q is neither an address nor a prefix", text).WithReason("invalid-api-params").
					WithNext("write addresses such as 203.0.113.7 or 203.0.113.0/24")
			}
			p = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
		}
		if p.Addr().Is4In6() {
			if p.Bits() < 96 {
				return nil, fault.Invalidf("the prefix %s mixes address families", p).WithReason("invalid-api-params").WithNext("write it as IPv4")
			}
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		out = append(out, p.Masked().String())
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > maxAllowed {
		return nil, fault.Invalidf("%d allowed addresses are too many", len(out)).WithReason("invalid-api-params").
			WithNext("name at most %d, or use prefixes", maxAllowed)
	}
	return out, nil
}

func prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		if p, err := netip.ParsePrefix(t); err == nil { // parseAllowed wrote it
			out = append(out, p)
		}
	}
	return out
}

// allowedFrom reports whether a circuit is open to an address.
func allowedFrom(allowed []netip.Prefix, addr netip.Addr) bool {
	addr = addr.Unmap()
	return len(allowed) == 0 || slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// pathOf makes of an app's url_template the path where visitors begin. Templates are written by images: whatever is not
// plainly a path below the app's own root counts as none.
func pathOf(template string, port int) string {
	t := template
	for _, prefix := range []string{"{url}", "{protocol}://{host}:{port}", "{protocol}://{host}", "http://{host}:{port}", "http://{host}",
		"https://{host}:{port}"} {
		if rest, ok := strings.CutPrefix(t, prefix); ok {
			t = rest
			break
		}
	}
	t = strings.NewReplacer("{port}", fmt.Sprint(port), "{ports[0]}", fmt.Sprint(port)).Replace(t)
	if strings.HasPrefix(t, "?") {
		t = "/" + t
	}
	bad := !strings.HasPrefix(t, "/") || strings.HasPrefix(t, "//") || len(t) > 512 ||
		strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' || r == '{' || r == '}' })
	if bad {
		return "/"
	}
	return t
}
