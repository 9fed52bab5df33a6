package circuit

import (
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"berth.dev/berth/internal/wire/proxy"
)

// Has reports whether the circuit has a target, whatever it weighs.
func (c *Circuit) Has(id proxy.TargetID) bool {
	return slices.ContainsFunc(c.Targets, func(t proxy.Target) bool { return t.ID() == id })
}

// Pick chooses the target for a key; false when no target takes new visitors. A random key chooses by weight: a target gets the
// share of all keys that its weight has of all weights. The same key chooses the same target as long as the targets are the
// same, at every proxy, so that the key of a visitor (KeyOf) keeps the visitor at one target without anything being stored.
//
// It is weighted rendezvous hashing: each target draws a number from the key and its own identity, and the smallest wins. What
// changes of one target therefore moves only visitors that go to it or come from it.
func (c *Circuit) Pick(key uint64) (proxy.Target, bool) {
	if len(c.Targets) == 1 { // nothing to choose
		return c.Targets[0], c.Targets[0].Weight > 0
	}
	best, at := 0.0, -1
	for i := range c.Targets {
		if c.Targets[i].Weight <= 0 {
			continue
		}
		// An exponential variable with the weight as its rate: the chance to be the smallest is the weight's share.
		score := -math.Log(unit(mix(key^c.seeds[i]))) / float64(c.Targets[i].Weight)
		if at < 0 || score < best {
			best, at = score, i
		}
	}
	if at < 0 {
		return proxy.Target{}, false
	}
	return c.Targets[at], true
}

// Several reports whether there is a choice, which is when a key is worth making.
func (c *Circuit) Several() bool { return len(c.Targets) > 1 }

// KeyOf is the key of a visitor known by a name, KeyOfAddress that of one of whom only the address is known.
func KeyOf(visitor string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(visitor)) // to memory
	return mix(h.Sum64())
}

// KeyOfAddress is the key of all visitors that count as one address.
func KeyOfAddress(a netip.Addr) uint64 { return KeyOf("address " + Network(a).String()) }

func seedOf(id proxy.TargetID) uint64 {
	return KeyOf("target " + string(id.Kernel) + " " + strconv.Itoa(id.Port))
}

// mix spreads every bit over all others (the finisher of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// unit maps to the numbers between 0 and 1, both left out.
func unit(x uint64) float64 { return (float64(x>>11) + 0.5) / (1 << 53) }
