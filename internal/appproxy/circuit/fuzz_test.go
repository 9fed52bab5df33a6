package circuit_test

import (
	"strings"
	"testing"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
)

// FuzzJar: of a visitor's cookies an app gets none that an app of its tenant did not set, and each that one did.
func FuzzJar(f *testing.F) {
	f.Add("a=b; berth-own-x=y", "sid=1; Path=/; HttpOnly")
	f.Add("berth-own-=; =; ;;", "x=\"y\"")
	f.Add("\"berth-own-a\"=b", "=")
	keys := [][]byte{[]byte("0123456789abcdef0123456789abcdef")}
	jar := circuit.New(proxy.Circuit{Mode: proxy.ModePort, Port: 1, Owner: "ada"}).Jar(keys)
	f.Fuzz(func(t *testing.T, cookies, set string) {
		if got := jar.Keep(cookies); got != "" {
			t.Fatalf("%q passed as %q without a proof", cookies, got)
		}
		proof, ok := jar.Proof(set)
		if !ok {
			return
		}
		cookie, _, _ := strings.Cut(set, ";")
		name, _, _ := strings.Cut(cookie, "=")
		if circuit.PlatformCookie(strings.Trim(name, " \t\"")) {
			return // such a cookie of an app is refused before
		}
		pair, _, _ := strings.Cut(proof, ";")
		if got := jar.Keep(cookie + "; " + pair); got != strings.Trim(cookie, " \t") {
			t.Fatalf("%q with its proof passed as %q", cookie, got)
		}
	})
}
