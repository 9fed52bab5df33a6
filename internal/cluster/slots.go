package cluster

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
)

// SlotName names a resource type: "cpu", "mem", "cuda.device", "cuda.shares".
type SlotName string

// The intrinsic slots.
const (
	SlotCPU SlotName = "cpu"
	SlotMem SlotName = "mem"
)

// Text renders an amount for people: "2 cpu", "512 MiB mem".
func (n SlotName) Text(v Amount) string {
	if n != SlotMem {
		return v.String() + " " + string(n)
	}
	bytes := v.Units()
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if bytes >= u.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/float64(u.size)), ".0") + " " + u.name + " " + string(n)
		}
	}
	return fmt.Sprintf("%d bytes %s", bytes, n)
}

// SlotKind says how amounts of a slot are counted.
type SlotKind string

// The kinds of slots on the wire.
const (
	SlotCount  SlotKind = "count"
	SlotBytes  SlotKind = "bytes"
	SlotUnique SlotKind = "unique"
)

// Amount is a quantity of a slot in thousandths of its unit: 1 core, 1 byte or 1
// share is 1000. Thousandths keep fractions exact; bytes reach 8 PiB, cores 9e15.
type Amount int64

// Milli is the number of Amount units in one whole unit.
const Milli = 1000

// Whole returns n whole units.
func Whole(n int64) Amount { return Amount(n * Milli) }

// Units returns the whole part.
func (a Amount) Units() int64 { return int64(a) / Milli }

// String is the wire's decimal text without exponent or trailing zeros: "2", "0.5".
func (a Amount) String() string {
	neg := ""
	if a < 0 {
		neg, a = "-", -a
	}
	whole, frac := int64(a)/Milli, int64(a)%Milli
	if frac == 0 {
		return fmt.Sprintf("%s%d", neg, whole)
	}
	return strings.TrimRight(fmt.Sprintf("%s%d.%03d", neg, whole, frac), "0")
}

// Slots maps slot names to amounts. A missing slot is zero.
type Slots map[SlotName]Amount

// Clone returns an independent copy.
func (s Slots) Clone() Slots { return maps.Clone(s) }

// Names returns the slot names in order.
func (s Slots) Names() []SlotName { return slices.Sorted(maps.Keys(s)) }

// Add returns s + t.
func (s Slots) Add(t Slots) Slots {
	out := Slots{}
	maps.Copy(out, s)
	for k, v := range t {
		out[k] += v
	}
	return out
}

// Sub returns s - t; amounts may become negative.
func (s Slots) Sub(t Slots) Slots {
	out := Slots{}
	maps.Copy(out, s)
	for k, v := range t {
		out[k] -= v
	}
	return out
}

// Shortfall returns, for every slot of want that s does not cover, how much is missing.
func (s Slots) Shortfall(want Slots) Slots {
	out := Slots{}
	for k, v := range want {
		if v > s[k] {
			out[k] = v - s[k]
		}
	}
	return out
}

// Covers reports whether s has at least want of every slot of want.
func (s Slots) Covers(want Slots) bool {
	for k, v := range want {
		if v > s[k] {
			return false
		}
	}
	return true
}

// Wire renders the slots as the wire's map of decimal strings.
func (s Slots) Wire() map[string]string {
	out := make(map[string]string, len(s))
	for k, v := range s {
		out[string(k)] = v.String()
	}
	return out
}

var byteSuffix = map[byte]int{'k': 1, 'm': 2, 'g': 3, 't': 4, 'p': 5, 'e': 6}

// ParseBytes reads "1073741824", "1g", "1.5GiB", "512_000": digits with optional
// underscores, an optional fraction, a suffix of powers of 1024 optionally followed
// by b, byte(s), ib or ibyte(s), any case. Fractional bytes are refused.
func ParseBytes(text string) (int64, error) {
	bad := func() (int64, error) {
		return 0, fault.Invalidf("%.64q is not an amount of memory", text).
			WithNext("write a number of bytes or a number with k, m, g or t, for example 512m or 1.5g")
	}
	t := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(text), "_", ""))
	i := 0
	for i < len(t) && (t[i] >= '0' && t[i] <= '9' || t[i] == '.') {
		i++
	}
	num, unit := t[:i], strings.TrimSpace(t[i:])
	if num == "" || len(num) > 24 {
		return bad()
	}
	power := 0
	if unit != "" {
		if p, ok := byteSuffix[unit[0]]; ok {
			power, unit = p, unit[1:]
		}
		switch unit {
		case "", "b", "byte", "bytes", "ib", "ibyte", "ibytes":
		default:
			return bad()
		}
		if strings.HasPrefix(unit, "i") && power == 0 {
			return bad()
		}
	}
	r, ok := new(big.Rat).SetString(num)
	if !ok {
		return bad()
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(10*power))))
	if !r.IsInt() || !r.Num().IsInt64() || r.Num().Int64() > math.MaxInt64/Milli {
		return bad()
	}
	return r.Num().Int64(), nil
}

// ParseAmount reads the text of one slot: bytes for SlotMem and other byte slots, else a
// non-negative decimal with at most three fraction digits.
func ParseAmount(kind SlotKind, text string) (Amount, error) {
	if kind == SlotBytes {
		n, err := ParseBytes(text)
		return Whole(n), err
	}
	t := strings.ReplaceAll(strings.TrimSpace(text), "_", "")
	bad := fault.Invalidf("%.64q is not a valid amount", text).
		WithNext("write a plain number such as 2 or 0.5")
	if t == "" || len(t) > 20 || strings.Trim(t, "0123456789.") != "" { // SetString also reads other bases and exponents
		return 0, bad
	}
	r, ok := new(big.Rat).SetString(t)
	if !ok {
		return 0, bad
	}
	r.Mul(r, big.NewRat(Milli, 1))
	if !r.IsInt() || !r.Num().IsInt64() {
		return 0, bad
	}
	return Amount(r.Num().Int64()), nil
}

// FormatAmount writes an amount for people: bytes with a binary suffix where it is exact enough.
func FormatAmount(slot SlotName, v Amount) string {
	if slot != SlotMem {
		return v.String()
	}
	n := v.Units()
	for _, u := range []struct {
		size   int64
		suffix string
	}{{1 << 40, "t"}, {1 << 30, "g"}, {1 << 20, "m"}, {1 << 10, "k"}} {
		if n >= u.size {
			if n%u.size == 0 {
				return fmt.Sprintf("%d%s", n/u.size, u.suffix)
			}
			return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", float64(n)/float64(u.size)), "0"), ".") + u.suffix
		}
	}
	return fmt.Sprint(n)
}

// intrinsic are the kinds of the slots that every agent has. No report of an agent changes them.
var intrinsic = map[SlotName]SlotKind{SlotCPU: SlotCount, SlotMem: SlotBytes}

// KindOf says how a slot is counted; kinds is what agents report.
func KindOf(name SlotName, kinds map[SlotName]SlotKind) SlotKind {
	if k, ok := intrinsic[name]; ok {
		return k
	}
	if k, ok := kinds[name]; ok {
		return k
	}
	return SlotCount
}

// AgreedKinds is how the slots of several agents are counted, the intrinsic ones included: as most of the agents say that have the
// slot. So one agent alone cannot change how requests for the others are read.
func AgreedKinds[M ~map[string]string](reports []M) map[SlotName]SlotKind {
	votes := map[SlotName]map[SlotKind]int{}
	for _, r := range reports {
		for name, kind := range r {
			of := votes[SlotName(name)]
			if of == nil {
				of = map[SlotKind]int{}
				votes[SlotName(name)] = of
			}
			of[SlotKind(kind)]++
		}
	}
	out := maps.Clone(intrinsic)
	for name, of := range votes {
		if _, fixed := intrinsic[name]; fixed {
			continue
		}
		kinds := slices.Sorted(maps.Keys(of)) // the same answer every time, also when as many say this as that
		out[name] = slices.MaxFunc(kinds, func(a, b SlotKind) int { return of[a] - of[b] })
	}
	return out
}

// DefaultShmem is the shared memory of a kernel when nobody says anything, in bytes.
const DefaultShmem = 64 << 20
