package cluster_test

import (
	"testing"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// FuzzParseBytes reads what users write as an amount of memory.
func FuzzParseBytes(f *testing.F) {
	for _, seed := range []string{"1g", "1.5GiB", "512_000", "0", "-1", "9e99", "1..2", "8EiB", "0.0000001k"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := cluster.ParseBytes(text)
		switch {
		case err == nil && n < 0:
			t.Fatalf("%q is %d bytes", text, n)
		case err != nil && !fault.Is(err, fault.Invalid):
			t.Fatalf("%q: %v", text, err)
		}
	})
}

// FuzzParseServicePorts reads a label that any image may carry.
func FuzzParseServicePorts(f *testing.F) {
	for _, seed := range []string{"jupyter:http:8080", "a:tcp:[1,2],b:http:3", "a:tcp:[", ":::", "a:http:99999", "a:http:1,a:http:2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, label string) {
		seen := map[int]bool{}
		for _, p := range cluster.ParseServicePorts(label) {
			if p.Name == "" || len(p.Name) > 64 || len(p.Ports) == 0 {
				t.Fatalf("%q gives %+v", label, p)
			}
			for _, n := range p.Ports {
				if n < 1 || n > 65535 || seen[n] {
					t.Fatalf("%q gives port %d (again: %v)", label, n, seen[n])
				}
				seen[n] = true
			}
		}
		if len(seen) > 128 {
			t.Fatalf("%d ports", len(seen))
		}
	})
}
