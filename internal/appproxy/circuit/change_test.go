package circuit_test

import (
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
)

// tableOf is a table with these circuits.
func tableOf(put ...proxy.Circuit) *circuit.Table {
	table, _ := (*circuit.Table)(nil).With(circuit.Change{Reset: true, Put: put})
	return table
}

func TestAnEmptyTable(t *testing.T) {
	t.Parallel()
	table, closed := (*circuit.Table)(nil).With(circuit.Change{Gone: []string{"x"}})
	require.Empty(t, closed)
	require.Zero(t, table.Len())
	require.Empty(t, table.All())
	require.Empty(t, table.Ports())
	require.Nil(t, table.ByID("x"))
	require.Nil(t, table.ByLabel("x"))
	require.Nil(t, table.ByPort(0))
	require.Empty(t, table.Keys())
}

func TestKeysStayUntilNewOnesCome(t *testing.T) {
	t.Parallel()
	table, _ := (*circuit.Table)(nil).With(circuit.Change{Keys: keys})
	table, _ = table.With(circuit.Change{Put: []proxy.Circuit{onPort("a", 1, 100)}})
	require.Equal(t, keys, table.Keys())
	newer, _ := table.With(circuit.Change{Keys: keys[:1]})
	require.Equal(t, keys[:1], newer.Keys())
	require.Equal(t, keys, table.Keys())
}

// Host names are the same in any case of letters.
func TestLabelsAreFoundInLowerCase(t *testing.T) {
	t.Parallel()
	table := tableOf(onLabel("a", 1, "My-App"))
	require.Equal(t, "a", table.ByLabel("my-app").ID)
	table, closed := table.With(circuit.Change{Put: []proxy.Circuit{onLabel("b", 2, "MY-APP")}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "gone"}}, closed)
	require.Equal(t, "b", table.ByLabel("my-app").ID)
	check(t, tableOf(onLabel("c", 1, "x"), onLabel("d", 2, "y")))
	table, _ = table.With(circuit.Change{Gone: []string{"b"}})
	require.Nil(t, table.ByLabel("my-app"), "the place of one that is gone is free")
	table, _ = table.With(circuit.Change{Put: []proxy.Circuit{onLabel("e", 3, "my-app")}})
	require.Equal(t, "e", table.ByLabel("my-app").ID)
}

// News about the same revision changes nothing.
func TestTheSameRevisionComesTwice(t *testing.T) {
	t.Parallel()
	a := onPort("a", 5, 100)
	table := tableOf(a)
	changed := a
	changed.Targets = target("k-1", 99)
	for revision, want := range map[int64]int{4: 80, 5: 80, 6: 99} {
		changed.Revision = revision
		next, closed := table.With(circuit.Change{Put: []proxy.Circuit{changed}})
		require.Equal(t, want, next.ByID("a").Targets[0].Port, revision)
		require.Equal(t, want == 99, len(closed) > 0, revision)
	}
}

// Grants are renewed without a new revision; nobody loses a connection by it, and what comes late takes nothing back.
func TestGrantsAreRenewed(t *testing.T) {
	t.Parallel()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	with := func(hours int) proxy.Circuit {
		c := onPort("a", 5, 100)
		c.Targets = target("00000000-0000-4000-8000-000000000001", 80)
		text, err := proxy.SignGrant(proxy.Grant{Circuit: "00000000-0000-4000-8000-0000000000c1", Kernel: c.Targets[0].Kernel, Port: 80,
			Proxy: "web", Expires: time.Unix(int64(hours)*3600, 0)}, key)
		require.NoError(t, err)
		c.Targets[0].Grant = text
		return c
	}
	table := tableOf(with(24))
	for _, step := range []struct{ comes, stays int }{{36, 36}, {24, 36}, {36, 36}, {48, 48}} {
		next, closed := table.With(circuit.Change{Put: []proxy.Circuit{with(step.comes)}})
		require.Empty(t, closed)
		require.Equal(t, with(step.stays).Targets, next.ByPort(100).Targets, "%+v", step)
		require.True(t, table.ByID("a").Stands(next.ByID("a")))
		check(t, next)
		table = next
	}
	for name, change := range map[string]func(*proxy.Circuit){
		"no grant":      func(c *proxy.Circuit) { c.Targets[0].Grant = "" },
		"nonsense":      func(c *proxy.Circuit) { c.Targets[0].Grant = "x" },
		"other targets": func(c *proxy.Circuit) { c.Targets[0].Port = 81 },
		"more targets":  func(c *proxy.Circuit) { c.Targets = append(c.Targets, c.Targets[0]) },
	} {
		c := with(96)
		change(&c)
		next, _ := table.With(circuit.Change{Put: []proxy.Circuit{c}})
		require.Same(t, table.ByID("a"), next.ByID("a"), name)
	}
	// From a manager of the version before there was none.
	table, _ = tableOf(onPort("b", 1, 200)).With(circuit.Change{Put: []proxy.Circuit{func() proxy.Circuit {
		c := onPort("b", 1, 200)
		c.Targets[0].Grant = with(1).Targets[0].Grant
		return c
	}()}})
	require.NotEmpty(t, table.ByID("b").Targets[0].Grant)
}

// Two circuits claim one place with the same revision: the later claim has it.
func TestARivalOfTheSameRevisionGivesWay(t *testing.T) {
	t.Parallel()
	table, closed := tableOf(onPort("a", 5, 100)).With(circuit.Change{Put: []proxy.Circuit{onPort("b", 5, 100)}})
	require.Equal(t, "b", table.ByPort(100).ID)
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "gone"}}, closed)
	require.Equal(t, 1, table.Len())
}

// A circuit moves to a place that a newer one has: the place it leaves is free, and it is gone.
func TestAMoveToAPlaceThatIsGivenAway(t *testing.T) {
	t.Parallel()
	table := tableOf(onPort("a", 1, 100), onPort("b", 9, 101))
	table, closed := table.With(circuit.Change{Put: []proxy.Circuit{onPort("a", 5, 101)}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "gone"}}, closed)
	require.Nil(t, table.ByPort(100))
	require.Equal(t, "b", table.ByPort(101).ID)
	check(t, table)
}

// A circuit that keeps its place but changes its kind of place, its label or its protocol is elsewhere for its visitors.
func TestWhatMovesACircuit(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*proxy.Circuit){
		"label":    func(c *proxy.Circuit) { c.Label = "other" },
		"mode":     func(c *proxy.Circuit) { c.Mode = proxy.ModePort },
		"protocol": func(c *proxy.Circuit) { c.Protocol = "tcp" },
		"kernel":   func(c *proxy.Circuit) { c.Targets = target("k-2", 80) },
		"target":   func(c *proxy.Circuit) { c.Targets = target("k-1", 81) },
		"port":     func(c *proxy.Circuit) { c.Port = 7 },
	} {
		c := onLabel("a", 1, "app")
		before := tableOf(c)
		c.Revision = 2
		change(&c)
		after, closed := before.With(circuit.Change{Put: []proxy.Circuit{c}})
		require.Equal(t, []circuit.Closed{{ID: "a", Reason: "moved"}}, closed, name)
		require.False(t, before.ByID("a").Stands(after.ByID("a")), name)
		check(t, after)
		if name == "label" || name == "mode" {
			require.Nil(t, after.ByLabel("app"), name)
		}
	}
	c := onLabel("a", 1, "app")
	before := tableOf(c)
	c.Revision, c.Public = 2, true
	after, closed := before.With(circuit.Change{Put: []proxy.Circuit{c}})
	require.Empty(t, closed, "opening an app ends nothing")
	require.True(t, before.ByID("a").Stands(after.ByID("a")))
	require.False(t, after.ByID("a").Stands(before.ByID("a")), "closing it does")
}

// A snapshot ends what it does not name, once and in order, and leaves the rest alone.
func TestASnapshotEndsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	a, b, c := onPort("a", 1, 100), onPort("b", 2, 101), onLabel("c", 3, "c")
	before := tableOf(a, b, c)
	after, closed := before.With(circuit.Change{Reset: true, Put: []proxy.Circuit{b}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "gone"}, {ID: "c", Reason: "gone"}}, closed)
	require.Same(t, before.ByID("b"), after.ByID("b"))
	require.Equal(t, []int{101}, after.Ports())
	require.Nil(t, after.ByLabel("c"))
	// What the snapshot left out may be newer than it.
	after, _ = after.With(circuit.Change{Put: []proxy.Circuit{a}})
	require.NotNil(t, after.ByID("a"))
}

func TestPortsAreInOrder(t *testing.T) {
	t.Parallel()
	var put []proxy.Circuit
	var want []int
	for i := range 2000 {
		put = append(put, onPort(fmt.Sprint("id-", i), int64(i+1), 40_000-i))
		want = append(want, 38_001+i)
	}
	table := tableOf(put...)
	require.Equal(t, want, table.Ports())
	check(t, table)
	ids := map[string]bool{}
	for _, c := range table.All() {
		ids[c.ID] = true
	}
	require.Len(t, ids, 2000)
}

// A change of a large table touches what it names and nothing else.
func TestAChangeKeepsTheOthers(t *testing.T) {
	t.Parallel()
	want := map[string]int64{}
	var put []proxy.Circuit
	for i := range 3000 {
		c := onLabel(fmt.Sprint("id-", i), int64(i+1), fmt.Sprint("label-", i))
		put = append(put, c)
		want[c.ID] = c.Revision
	}
	table := tableOf(put...)
	for i := range 300 {
		c := put[i*10]
		if i%2 == 0 {
			c.Revision += 10_000
			want[c.ID] = c.Revision
			table, _ = table.With(circuit.Change{Put: []proxy.Circuit{c}})
		} else {
			delete(want, c.ID)
			table, _ = table.With(circuit.Change{Gone: []string{c.ID}})
		}
	}
	got := map[string]int64{}
	for _, c := range table.All() {
		got[c.ID] = c.Revision
	}
	require.Equal(t, want, got)
	check(t, table)
}

// Of several admitted addresses those that leave are named; others that were never admitted are not.
func TestOnlyAddressesThatWereAdmittedLeave(t *testing.T) {
	t.Parallel()
	home, office := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	c := onPort("a", 1, 100)
	c.Protocol, c.Admitted = "tcp", []netip.Addr{home}
	before := tableOf(c)
	c.Revision, c.Admitted = 2, []netip.Addr{netip.AddrFrom16(home.As16()), office}
	after, closed := before.With(circuit.Change{Put: []proxy.Circuit{c}})
	require.Empty(t, closed, "the same address, written otherwise")
	require.True(t, before.ByID("a").Stands(after.ByID("a")))
	require.False(t, after.ByID("a").Stands(before.ByID("a")))
	c.Revision, c.Admitted = 3, []netip.Addr{home}
	_, closed = after.With(circuit.Change{Put: []proxy.Circuit{c}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "revoked", From: []netip.Addr{office}}}, closed)
}

// A table that begins with two claims of one place has the newer one, and nobody's connections end.
func TestTheFirstTableHasRivals(t *testing.T) {
	t.Parallel()
	for _, put := range [][]proxy.Circuit{{onPort("a", 1, 100), onPort("b", 2, 100)}, {onPort("b", 2, 100), onPort("a", 1, 100)}} {
		table, closed := (*circuit.Table)(nil).With(circuit.Change{Put: put})
		require.Empty(t, closed)
		require.Equal(t, 1, table.Len())
		require.Equal(t, "b", table.ByPort(100).ID)
		check(t, table)
	}
}

// Ids that are gone are remembered for a time that is long but not for ever: the memory of a proxy is bounded.
func TestWhoIsGoneIsRememberedForATime(t *testing.T) {
	t.Parallel()
	const atLeast, atMost = 4096, 3 * 4096
	var table *circuit.Table
	name := func(i int) string { return fmt.Sprint("id-", i) }
	returns := func(i int) bool {
		next, _ := table.With(circuit.Change{Put: []proxy.Circuit{onPort(name(i), 1, 100)}})
		return next.ByID(name(i)) != nil
	}
	const all = atMost + 100
	for i := 0; i < all; i += 50 {
		var batch []string
		for j := i; j < min(all, i+50); j++ {
			batch = append(batch, name(j))
		}
		table, _ = table.With(circuit.Change{Gone: append(batch, batch...)}) // said twice, counted once
		if i == atLeast/2 {
			require.False(t, returns(0))
		}
	}
	for i := all - atLeast; i < all; i += 13 {
		require.False(t, returns(i), "%d of %d", i, all)
	}
	require.True(t, returns(0), "the oldest are forgotten")
	require.True(t, returns(all))

	// A snapshot is the truth for whom it names, whenever that one was gone, and for nobody else.
	for _, i := range []int{all - 1, all - 200, all - atLeast} {
		next, _ := table.With(circuit.Change{Reset: true, Put: []proxy.Circuit{onPort(name(i), 2, 100)}})
		require.NotNil(t, next.ByID(name(i)))
		next, _ = next.With(circuit.Change{Put: []proxy.Circuit{onPort(name(i-1), 2, 101), onPort(name(i), 3, 102)}})
		require.Nil(t, next.ByID(name(i-1)))
		require.NotNil(t, next.ByPort(102))
		require.False(t, returns(i), "the older table is as it was")
	}
}

// A table that was handed out stays as it was, whatever is made of it.
func TestTwoTablesOfOne(t *testing.T) {
	t.Parallel()
	base, _ := tableOf(onPort("a", 1, 100)).With(circuit.Change{Gone: []string{"x"}})
	left, _ := base.With(circuit.Change{Gone: []string{"a", "y"}})
	right, _ := base.With(circuit.Change{Gone: []string{"z"}, Put: []proxy.Circuit{onPort("a", 2, 101)}})
	require.Nil(t, left.ByID("a"))
	require.Equal(t, []int{101}, right.Ports())
	require.Equal(t, []int{100}, base.Ports())
	gone := func(table *circuit.Table) (out []string) {
		for _, id := range []string{"x", "y", "z"} {
			if next, _ := table.With(circuit.Change{Put: []proxy.Circuit{onLabel(id, 1, id)}}); next.ByID(id) == nil {
				out = append(out, id)
			}
		}
		return out
	}
	require.Equal(t, []string{"x"}, gone(base))
	require.Equal(t, []string{"x", "y"}, gone(left))
	require.True(t, slices.Equal([]string{"x", "z"}, gone(right)))
}
