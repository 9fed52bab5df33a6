package scheduler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/quota"
)

// treeOf is a tree of quotas of cores in a domain d with the project p.
func treeOf(rules ...quota.Rule) quota.Facts {
	return quota.Facts{Rules: rules, Projects: map[cluster.ProjectID]quota.Place{"p": {Name: "train", Domain: "d"}}}
}

func cpus(n int64) cluster.Slots { return cluster.Slots{cluster.SlotCPU: cluster.Whole(n)} }

// TestLevelsAreExplained: what a level leaves, keeps and lacks is told with numbers, and only what would help is advised.
func TestLevelsAreExplained(t *testing.T) {
	t.Parallel()
	project, ada := quota.ID{Project: "p"}, quota.ID{Project: "p", User: "ada"}
	for name, c := range map[string]struct {
		tree     quota.Facts
		running  int64 // cores of bob
		asks     int64
		text     string
		short    int64
		remedies []string
	}{
		"some left": {treeOf(quota.Rule{Node: project, Limit: cpus(4)}), 2, 3, "d/train limit 4 cpu, 2 cpu in use, and it asks for 3 cpu", 1,
			[]string{"ask for 2 cpu at most", "wait until sessions in d/train end", "ask for a higher limit of d/train"}},
		"nothing left": {treeOf(quota.Rule{Node: project, Limit: cpus(2)}), 2, 2, "d/train limit 2 cpu, 2 cpu in use, and it asks for 2 cpu", 2,
			[]string{"wait until sessions in d/train end", "ask for a higher limit of d/train"}},
		"more than all": {treeOf(quota.Rule{Node: project, Limit: cpus(2)}), 1, 3,
			"d/train limit 2 cpu, 1 cpu in use, and it asks for 3 cpu, more than the whole limit", 2,
			[]string{"ask for 1 cpu at most", "ask for a higher limit of d/train"}},
		"in one group": {treeOf(quota.Rule{Node: project, Group: "g", Limit: cpus(3)}), 2, 2,
			"d/train in resource group g limit 3 cpu, 2 cpu in use, and it asks for 2 cpu", 1, []string{"ask for 1 cpu at most",
				"wait until sessions in d/train in resource group g end", "ask for a higher limit of d/train in resource group g"}},
		"some kept for another": {treeOf(quota.Rule{Node: project, Limit: cpus(4)}, quota.Rule{Node: ada, Guaranteed: cpus(2)}), 1, 2,
			"d/train limit 4 cpu, 1 cpu in use, 2 cpu kept for those who wait for what they are guaranteed, and it asks for 2 cpu", 1,
			[]string{"ask for 1 cpu at most", "wait until sessions in d/train end", "ask for a higher limit of d/train"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := filled(t, scheduler.Group{}, "a")
			x.SetTree(c.tree)
			r := holding("a", cores(int(c.running)))
			r.Owner = job(0, 0, 0).Owner
			x.Run("g", r)
			late := owned(5, "ada", ask(2, 100)) // ada waits for room, not for a quota
			x.Enqueue("g", late)
			x.Enqueue("g", job(1, 10, 0, ask(c.asks, 1)))
			require.Empty(t, pass(t, x, now.Add(time.Hour)))
			e, _ := x.Explain("s01")
			require.Equal(t, scheduler.WaitsForQuota, e.Reason)
			require.Equal(t, c.text, e.Text)
			require.Equal(t, cpus(c.short), e.Shortfall)
			require.Equal(t, c.remedies, e.Remedies)
		})
	}
}

// TestGuaranteesThatEndLetOthersPass: a session that was held back, because it would have delayed one within a guarantee, starts as soon as
// the guarantee is gone and it comes first.
func TestGuaranteesThatEndLetOthersPass(t *testing.T) {
	t.Parallel()
	assured := treeOf(quota.Rule{Node: quota.ID{Project: "p", User: "ada"}, Guaranteed: cpus(4)})
	c := filled(t, scheduler.Group{}, "a")
	c.SetTree(assured)
	r := holding("a", cores(2))
	r.Owner, r.Lifetime = owned(0, "cyd", nil).Owner, time.Hour
	c.Run("g", r)
	c.Enqueue("g", owned(1, "bob", ask(2, 1))) // it came first, but ada's place is guaranteed
	c.Enqueue("g", owned(2, "ada", ask(4, 1)))
	at := now.Add(10 * time.Minute)
	require.Empty(t, pass(t, c, at))
	e, _ := c.Explain("s01")
	require.Equal(t, scheduler.WaitsBehind, e.Reason)
	require.Empty(t, pass(t, c, at))
	c.SetTree(treeOf())
	require.Equal(t, []string{"s01"}, started(pass(t, c, at)))
}

// TestLimitsThatAreRaisedLetWaitingSessionsStart: of a quota of one owner and of a level; lowering it holds those that wait.
func TestLimitsThatAreRaisedLetWaitingSessionsStart(t *testing.T) {
	t.Parallel()
	user := scheduler.Scope{Kind: scheduler.ScopeUser, ID: "bob"}
	for name, set := range map[string]func(c *scheduler.Cluster, cores int64){
		"quota": func(c *scheduler.Cluster, cores int64) {
			c.SetQuota(user, &scheduler.Quota{Sessions: -1, Private: -1, Slots: cpus(cores)})
		},
		"sessions": func(c *scheduler.Cluster, cores int64) {
			c.SetQuota(user, &scheduler.Quota{Sessions: int(cores), Private: -1})
		},
		"level": func(c *scheduler.Cluster, cores int64) {
			c.SetTree(treeOf(quota.Rule{Node: quota.ID{Project: "p", User: "bob"}, Limit: cpus(cores)}))
		},
	} {
		c := filled(t, scheduler.Group{}, "a")
		set(c, 1)
		for n := range 4 {
			c.Enqueue("g", job(n, 10, 0, ask(1, 1)))
		}
		require.Equal(t, []string{"s00"}, started(pass(t, c, now)), name)
		for range 2 { // every time that room comes
			set(c, 1)
			require.Empty(t, pass(t, c, now), name)
		}
		set(c, 2)
		require.Equal(t, []string{"s01"}, started(pass(t, c, now)), name)
		c.Remove("s00")
		require.Equal(t, []string{"s02"}, started(pass(t, c, now)), name)
		c.Remove("s01")
		require.Equal(t, []string{"s03"}, started(pass(t, c, now)), name)
	}
}

// TestLifoAgesNobody: not even a little.
func TestLifoAgesNobody(t *testing.T) {
	t.Parallel()
	set := func(order string, seconds float64) error {
		return scheduler.NewCluster().SetGroup(scheduler.Group{Name: "g", Order: order, OrderOptions: map[string]any{"ageing_seconds": seconds}})
	}
	require.NoError(t, set("lifo", 0))
	require.True(t, fault.Is(set("lifo", 1e-9), fault.Invalid))
	for _, order := range []string{"fifo", "drf", "fair-share"} {
		require.NoError(t, set(order, 1e-9), order)
	}
}

// TestAnEndMakesRoomWithinAGuarantee: a session that was held back comes first as soon as another one of its owner ends, wherever that ran,
// because it is then within the guarantee.
func TestAnEndMakesRoomWithinAGuarantee(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	require.NoError(t, c.SetGroup(scheduler.Group{Name: "h"}))
	c.SetAgent("h", agent("elsewhere", 4, 8))
	c.SetTree(treeOf(quota.Rule{Node: quota.ID{Project: "p", User: "ada"}, Guaranteed: cpus(2)}))
	busy := holding("a", cores(2))
	busy.Owner, busy.Lifetime = owned(0, "cyd", nil).Owner, time.Hour
	c.Run("g", busy)
	held := holding("elsewhere", cores(1))
	held.Owner = owned(0, "ada", nil).Owner
	c.Run("h", held)
	c.Enqueue("g", owned(1, "bob", ask(4, 1)))
	c.Enqueue("g", owned(2, "ada", ask(2, 1)))
	require.Empty(t, pass(t, c, now))
	e, _ := c.Explain("s02")
	require.Equal(t, scheduler.WaitsBehind, e.Reason)
	require.Equal(t, 2, e.Position)
	c.Remove("on-elsewhere")
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)))
}

// TestGuaranteesOfAGroupProtectWhatRunsThere: whoever is within a guarantee, in all groups or in this one, is no victim of others who are.
func TestGuaranteesOfAGroupProtectWhatRunsThere(t *testing.T) {
	t.Parallel()
	user := func(name cluster.UserID) quota.ID { return quota.ID{Project: "p", User: name} }
	for _, group := range []string{"", "g"} {
		c := filled(t, scheduler.Group{Preemption: scheduler.Preemption{Enabled: true, Order: "newest", VictimScope: "project"}}, "a")
		c.SetTree(treeOf(quota.Rule{Node: user("bob"), Guaranteed: cpus(2)}, quota.Rule{Node: user("ada"), Group: group, Guaranteed: cpus(2)}))
		for i, name := range []string{"cyd", "ada"} {
			r := preemptible(cluster.SessionID("of-"+name), "a", 10, 2*i, 2)
			r.Owner, r.StartedAt = owned(0, name, nil).Owner, now.Add(time.Duration(i)*time.Minute) // ada's is the newest
			c.Run("g", r)
		}
		c.Enqueue("g", owned(1, "bob", ask(2, 1)))
		got := pass(t, c, now.Add(time.Hour))
		require.Len(t, got, 1)
		require.Equal(t, []cluster.SessionID{"of-cyd"}, got[0].Preempt, "guaranteed in %q", group)
	}
}

// TestPrivateSessionsCountForEveryOwner: for the keypair and for the user, as others do.
func TestPrivateSessionsCountForEveryOwner(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	c.SetQuota(scheduler.Scope{Kind: scheduler.ScopeKeypair, ID: "bob"}, &scheduler.Quota{Sessions: -1, Private: 5})
	c.SetQuota(scheduler.Scope{Kind: scheduler.ScopeDomain, ID: "d"}, &scheduler.Quota{Sessions: -1, Private: 0})
	s := job(1, 10, 0, ask(1, 1))
	s.Private = true
	require.Equal(t, "domain d has 0 live private sessions, the limit is 0", c.Probe("g", now, s).Hold.Text)
}

// TestEveryOwnerOverALimitIsNamed: sessions that ask for the same share an explanation only where it is the same.
func TestEveryOwnerOverALimitIsNamed(t *testing.T) {
	t.Parallel()
	s := scheduler.Snapshot{Now: now, Group: scheduler.Group{Name: "g"}, Agents: []scheduler.Agent{agent("a", 4, 8)},
		Quotas: map[scheduler.Scope]scheduler.Quota{}}
	for i, name := range []string{"ada", "bob", "cyd", "dan"} {
		s.Quotas[scheduler.Scope{Kind: scheduler.ScopeUser, ID: name}] = scheduler.Quota{Sessions: 0, Private: -1}
		s.Pending = append(s.Pending, owned(i, name, ask(1, 1)))
	}
	list, err := scheduler.Plan(s)
	require.NoError(t, err)
	require.Len(t, list, 4)
	for i, name := range []string{"ada", "bob", "cyd", "dan"} {
		require.Equal(t, "user "+name+" has 0 live sessions, the limit is 0", list[i].Hold.Text)
	}
}

// TestAClosedOwnerWantsNothing: what an owner is guaranteed is lent to others while that owner may start nothing.
func TestAClosedOwnerWantsNothing(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{}, "a")
	c.SetTree(treeOf(quota.Rule{Node: quota.ID{Project: "p"}, Limit: cpus(4)},
		quota.Rule{Node: quota.ID{Project: "p", User: "ada"}, Guaranteed: cpus(4)}))
	c.Enqueue("g", owned(1, "ada", ask(2, 100))) // she waits for memory
	c.Enqueue("g", owned(2, "bob", ask(3, 1)))
	require.Empty(t, pass(t, c, now))
	e, _ := c.Explain("s02")
	require.Equal(t, scheduler.WaitsForQuota, e.Reason)
	c.SetQuota(scheduler.Scope{Kind: scheduler.ScopeUser, ID: "ada"}, &scheduler.Quota{Sessions: -1, Private: -1, Closed: true})
	require.Equal(t, []string{"s02"}, started(pass(t, c, now)))
}
