package clientaddr_test

import (
	"net/netip"
	"testing"

	"berth.dev/berth/internal/clientaddr"
)

// FuzzNetworks says that a list of which an entry cannot be read never admits more than its other entries do.
func FuzzNetworks(f *testing.F) {
	for _, seed := range []string{"10.0.0.0/8", "10.*", "10.1.*.*", "::ffff:10.0.0.1", "fe80::1%eth0", ".*", "*", "", "10.0.0.1/33",
		".*.*.*.*.*"} {
		f.Add(seed, "192.0.2.1")
	}
	f.Fuzz(func(t *testing.T, entry, address string) {
		addr, err := netip.ParseAddr(address)
		if err != nil {
			return
		}
		alone := clientaddr.ParseNetworks([]string{entry}).Admit(addr)
		beside := clientaddr.ParseNetworks([]string{entry, "not an address"}).Admit(addr)
		if alone != beside {
			t.Fatalf("%q admits %s alone: %v, beside an unreadable entry: %v", entry, addr, alone, beside)
		}
		if clientaddr.ParseNetworks([]string{"not an address"}).Admit(addr) {
			t.Fatalf("an unreadable list admits %s", addr)
		}
		if clientaddr.ParseNetworks([]string{addr.Unmap().WithZone("").String()}).Admit(addr) != true {
			t.Fatalf("%s is not admitted by its own entry", addr)
		}
	})
}

// FuzzClient says that nothing a stranger writes changes which address counts, neither without a trusted proxy nor behind one.
func FuzzClient(f *testing.F) {
	for _, seed := range []string{"", "10.0.0.1", "1.2.3.4, 10.0.0.1", "nonsense", "[::1]:80,,", "::ffff:10.0.0.1",
		"fe80::1%eth0, 10.0.0.2:80"} {
		f.Add(seed, "192.0.2.1")
	}
	proxies, err := clientaddr.ParseTrusted("trusted_proxies", []string{"10.0.0.0/8"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, header, address string) {
		client := clientaddr.Parse(address)
		if !client.IsValid() || proxies.Has(client) {
			return
		}
		if got := proxies.Client(client, []string{header}); got != client {
			t.Fatalf("a stranger at %s is %s by %q", client, got, header)
		}
		proxy := netip.MustParseAddr("10.0.0.1")
		if got := proxies.Client(proxy, []string{header + ", " + client.String()}); got != client {
			t.Fatalf("behind a proxy %s is %s by %q", client, got, header)
		}
		if got := proxies.Client(proxy, []string{header, client.String()}); got != client {
			t.Fatalf("behind a proxy %s is %s by %q in a field of its own", client, got, header)
		}
	})
}
