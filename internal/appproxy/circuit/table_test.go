package circuit_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/proxy"
)

func target(kernel cluster.KernelID, port int) []proxy.Target {
	return []proxy.Target{{Kernel: kernel, Port: port, Weight: 1}}
}

func onPort(id string, revision int64, port int) proxy.Circuit {
	return proxy.Circuit{ID: id, Revision: revision, Epoch: 1, Mode: proxy.ModePort, Port: port, Protocol: "http", Targets: target("k-1", 80)}
}

func onLabel(id string, revision int64, label string) proxy.Circuit {
	return proxy.Circuit{ID: id, Revision: revision, Epoch: 1, Mode: proxy.ModeSubdomain, Label: label, Protocol: "http",
		Targets: target("k-1", 80)}
}

// check says what must be true of every table.
func check(t require.TestingT, table *circuit.Table) {
	ports := 0
	for _, c := range table.All() {
		require.Same(t, c, table.ByID(c.ID))
		switch c.Mode {
		case proxy.ModePort:
			ports++
			require.Same(t, c, table.ByPort(c.Port), "every circuit has its port")
		case proxy.ModeSubdomain:
			require.Same(t, c, table.ByLabel(c.Label), "every circuit has its label")
		}
	}
	require.Len(t, table.All(), table.Len())
	require.Len(t, table.Ports(), ports)
	for _, port := range table.Ports() {
		require.NotNil(t, table.ByPort(port))
	}
}

// world makes a history of one manager: what is true after every step, with revisions as its sequence gives them.
type world struct {
	revision int64
	live     map[string]proxy.Circuit
	dead     []string
	past     []proxy.Circuit // everything that was ever said
}

func (w *world) step(t *rapid.T) circuit.Change {
	w.revision++
	ids := make([]string, 0, len(w.live))
	for id := range w.live {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	if len(ids) == 0 {
		kind = 0
	}
	if kind > 0 {
		id := rapid.SampledFrom(ids).Draw(t, "id")
		c := w.live[id]
		switch kind {
		case 1:
			delete(w.live, id)
			w.dead = append(w.dead, id)
			return circuit.Change{Gone: []string{id}}
		case 2:
			c.Epoch++
		case 3:
			c.Public = !c.Public
		}
		c.Revision = w.revision
		w.live[id] = c
		w.past = append(w.past, c)
		return circuit.Change{Put: []proxy.Circuit{c}}
	}
	c := onPort(fmt.Sprintf("id-%d", w.revision), w.revision, 0)
	if rapid.Bool().Draw(t, "label") {
		c = onLabel(c.ID, c.Revision, "")
	}
	place := rapid.IntRange(1, 6).Draw(t, "place")
	c.Port, c.Label = place, fmt.Sprintf("l%d", place)
	for _, other := range w.live {
		if other.Mode == c.Mode && other.Port == c.Port {
			return circuit.Change{} // the manager's unique index
		}
	}
	w.live[c.ID] = c
	w.past = append(w.past, c)
	return circuit.Change{Put: []proxy.Circuit{c}}
}

func same(t require.TestingT, w *world, table *circuit.Table) {
	require.Equal(t, len(w.live), table.Len())
	for id, want := range w.live {
		got := table.ByID(id)
		require.NotNil(t, got)
		require.Equal(t, want, got.Circuit)
	}
}

// Whatever is said twice or late, the table is what the manager has, and tables that were handed out stay as they were.
func TestTableFollowsTheManager(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{live: map[string]proxy.Circuit{}}
		var table *circuit.Table
		type seen struct {
			table *circuit.Table
			all   []string
		}
		names := func(table *circuit.Table) []string {
			var out []string
			for _, c := range table.All() {
				out = append(out, fmt.Sprint(c.ID, c.Revision))
			}
			slices.Sort(out)
			return out
		}
		var history []seen
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			change := w.step(t)
			before := table
			var closed []circuit.Closed
			switch rapid.IntRange(0, 4).Draw(t, "way") {
			case 0: // a whole snapshot instead
				change = circuit.Change{Reset: true}
				w.past = nil
				for _, c := range w.live {
					change.Put = append(change.Put, c)
					w.past = append(w.past, c)
				}
			case 1: // an old truth comes again, with the news
				if len(w.past) > 0 {
					change.Put = append(change.Put, rapid.SampledFrom(w.past).Draw(t, "old"))
				}
			}
			table, closed = table.With(change)
			check(t, table)
			same(t, w, table)
			for _, c := range closed {
				require.NotNil(t, before.ByID(c.ID), "only what was there is closed")
			}
			if before != nil {
				for _, old := range before.All() {
					now := table.ByID(old.ID)
					if now == nil || now.Epoch != old.Epoch {
						require.True(t, slices.ContainsFunc(closed, func(c circuit.Closed) bool { return c.ID == old.ID }))
					}
				}
			}
			if len(w.past) > 0 { // a late look-up
				table, _ = table.With(circuit.Change{Put: []proxy.Circuit{rapid.SampledFrom(w.past).Draw(t, "late")}})
				check(t, table)
				same(t, w, table)
			}
			history = append(history, seen{table, names(table)})
		}
		for _, h := range history {
			require.Equal(t, h.all, names(h.table), "a table is never changed")
		}
	})
}

func TestOneWhoIsGoneStaysGone(t *testing.T) {
	t.Parallel()
	a := onPort("a", 1, 100)
	table, _ := (*circuit.Table)(nil).With(circuit.Change{Reset: true, Put: []proxy.Circuit{a}})
	table, closed := table.With(circuit.Change{Gone: []string{"a"}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "gone"}}, closed)
	table, _ = table.With(circuit.Change{Put: []proxy.Circuit{a}})
	require.Nil(t, table.ByID("a"), "a reply that was on its way must not bring it back")
	a.Revision = 9
	table, _ = table.With(circuit.Change{Put: []proxy.Circuit{a}, Gone: []string{"a"}})
	require.Zero(t, table.Len())
	var many []string
	for i := range 4000 {
		many = append(many, fmt.Sprint(i))
	}
	table, _ = table.With(circuit.Change{Gone: many})
	table, _ = table.With(circuit.Change{Put: []proxy.Circuit{a}})
	require.Nil(t, table.ByID("a"))
	table, _ = table.With(circuit.Change{Reset: true, Put: []proxy.Circuit{a}})
	require.NotNil(t, table.ByID("a"), "a snapshot is the truth")
	require.Nil(t, table.ByPort(101))
}

// The next session's circuit never shares a port with the last one's, in whatever order the two events come.
func TestAPortHasOneCircuit(t *testing.T) {
	t.Parallel()
	a, b := onPort("a", 1, 100), onPort("b", 5, 100)
	table, _ := (*circuit.Table)(nil).With(circuit.Change{Put: []proxy.Circuit{a}})
	table, closed := table.With(circuit.Change{Put: []proxy.Circuit{b}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "gone"}}, closed)
	require.Equal(t, "b", table.ByPort(100).ID)
	table, _ = table.With(circuit.Change{Put: []proxy.Circuit{a}})
	require.Equal(t, "b", table.ByPort(100).ID, "old news")
	table, closed = table.With(circuit.Change{Gone: []string{"a"}})
	require.Empty(t, closed)
	require.Equal(t, "b", table.ByPort(100).ID)
	// a moves away, and b takes its place; the second comes first.
	a2, b2 := onPort("a", 7, 101), onPort("b", 8, 100)
	table, _ = (*circuit.Table)(nil).With(circuit.Change{Put: []proxy.Circuit{a}})
	table, _ = table.With(circuit.Change{Put: []proxy.Circuit{b2}})
	table, _ = table.With(circuit.Change{Put: []proxy.Circuit{a2}})
	require.Equal(t, "a", table.ByPort(101).ID)
	require.Equal(t, "b", table.ByPort(100).ID)
	check(t, table)
}

func TestWhoseConnectionsEnd(t *testing.T) {
	t.Parallel()
	home, office := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, test := range map[string]struct {
		change func(*proxy.Circuit)
		want   string
	}{
		"nothing":                 {func(*proxy.Circuit) {}, ""},
		"epoch":                   {func(c *proxy.Circuit) { c.Epoch++ }, "revoked"},
		"made private":            {func(c *proxy.Circuit) { c.Public = false }, "revoked"},
		"another allow list":      {func(c *proxy.Circuit) { c.Allowed = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, "revoked"},
		"one more visitor":        {func(c *proxy.Circuit) { c.Admitted = append(slices.Clone(c.Admitted), office) }, ""},
		"one visitor less":        {func(c *proxy.Circuit) { c.Admitted = nil }, ""},
		"other port of the app":   {func(c *proxy.Circuit) { c.Targets = target("k-1", 81) }, "moved"},
		"other kernel":            {func(c *proxy.Circuit) { c.Targets = target("other", 80) }, "moved"},
		"other port of the proxy": {func(c *proxy.Circuit) { c.Port++ }, "moved"},
		"the agent's address":     {func(c *proxy.Circuit) { c.Targets = target("k-1", 80); c.Targets[0].Agent.Address = "h:1" }, ""},
		"drained":                 {func(c *proxy.Circuit) { c.Targets = target("k-1", 80); c.Targets[0].Weight = 0 }, ""},
		"one more target":         {func(c *proxy.Circuit) { c.Targets = slices.Concat(c.Targets, target("k-2", 80)) }, ""},
		"its limits":              {func(c *proxy.Circuit) { c.Limits.Connections = 3 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := onPort("a", 1, 100)
			c.Public, c.Admitted = true, []netip.Addr{home}
			table, _ := (*circuit.Table)(nil).With(circuit.Change{Put: []proxy.Circuit{c}})
			c.Revision++
			test.change(&c)
			table, closed := table.With(circuit.Change{Put: []proxy.Circuit{c}})
			check(t, table)
			if test.want == "" {
				require.Empty(t, closed)
				return
			}
			require.Equal(t, []circuit.Closed{{ID: "a", Reason: test.want}}, closed)
		})
	}
}

// An address that is let in no more takes nobody along.
func TestAddressesThatLeave(t *testing.T) {
	t.Parallel()
	home, office, train := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::3")
	c := onPort("a", 1, 100)
	c.Protocol, c.Admitted = "tcp", []netip.Addr{home, office, train}
	before, _ := (*circuit.Table)(nil).With(circuit.Change{Put: []proxy.Circuit{c}})
	c.Revision, c.Admitted = 2, []netip.Addr{office}
	after, closed := before.With(circuit.Change{Put: []proxy.Circuit{c}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "revoked", From: []netip.Addr{home, train}}}, closed)
	require.False(t, before.ByID("a").Stands(after.ByID("a")), "who is being let in now is asked again")
	require.False(t, before.ByID("a").Stands(nil))
	require.True(t, after.ByID("a").Stands(after.ByID("a")))
	c.Revision, c.Public = 3, true
	open, closed := after.With(circuit.Change{Put: []proxy.Circuit{c}})
	require.Empty(t, closed)
	require.True(t, after.ByID("a").Stands(open.ByID("a")))
	c.Revision, c.Epoch, c.Admitted = 4, 2, nil
	_, closed = open.With(circuit.Change{Put: []proxy.Circuit{c}})
	require.Equal(t, []circuit.Closed{{ID: "a", Reason: "revoked"}}, closed, "everybody")
}

func BenchmarkTableChange(b *testing.B) {
	var put []proxy.Circuit
	for i := range 10_000 {
		put = append(put, onLabel(fmt.Sprintf("%08d-aaaa-bbbb-cccc-000000000000", i), int64(i+1), fmt.Sprintf("app-%d", i)))
	}
	table, _ := (*circuit.Table)(nil).With(circuit.Change{Reset: true, Put: put})
	b.ReportAllocs()
	revision := int64(20_000)
	for i := 0; b.Loop(); i++ {
		revision++
		c := put[i%len(put)]
		c.Revision = revision
		table, _ = table.With(circuit.Change{Put: []proxy.Circuit{c}})
	}
}
