package authz_test

import (
	"net/netip"
	"testing"

	"berth.dev/berth/internal/manager/authz"
)

// FuzzNetworks says that a list of which an entry cannot be read never admits more than its other entries do.
func FuzzNetworks(f *testing.F) {
	for _, seed := range []string{"10.0.0.0/8", "10.*", "10.1.*.*", "::ffff:10.0.0.1", "fe80::1%eth0", ".*", "*", "", "10.0.0.1/33", ".*.*.*.*.*"} {
		f.Add(seed, "192.0.2.1")
	}
	f.Fuzz(func(t *testing.T, entry, address string) {
		addr, err := netip.ParseAddr(address)
		if err != nil {
			return
		}
		alone := authz.ParseNetworks([]string{entry}).Admit(addr)
		beside := authz.ParseNetworks([]string{entry, "not an address"}).Admit(addr)
		if alone != beside {
			t.Fatalf("%q admits %s alone: %v, beside an unreadable entry: %v", entry, addr, alone, beside)
		}
		if authz.ParseNetworks([]string{"not an address"}).Admit(addr) {
			t.Fatalf("an unreadable list admits %s", addr)
		}
		if authz.ParseNetworks([]string{addr.Unmap().WithZone("").String()}).Admit(addr) != true {
			t.Fatalf("%s is not admitted by its own entry", addr)
		}
	})
}
