package quota_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/quota"
)

const gpu = cluster.SlotName("gpu")

// world is domain d with the projects p and q; s lies in p and t in s.
func world(rules ...quota.Rule) quota.Facts {
	return quota.Facts{Rules: rules, Users: map[cluster.UserID]string{"u": "ada@x"}, Projects: map[cluster.ProjectID]quota.Place{
		"P": {Name: "p", Domain: "d"}, "Q": {Name: "q", Domain: "d"}, "S": {Name: "s", Domain: "d", Parent: "P"},
		"T": {Name: "t", Domain: "d", Parent: "S"}}}
}

func rule(id quota.ID, guaranteed, limit cluster.Amount) quota.Rule {
	r := quota.Rule{Node: id, Guaranteed: cluster.Slots{}, Limit: cluster.Slots{}}
	if guaranteed >= 0 {
		r.Guaranteed[gpu] = guaranteed
	}
	if limit >= 0 {
		r.Limit[gpu] = limit
	}
	return r
}

func in(r quota.Rule, group string) quota.Rule { r.Group = group; return r }

func ask(n cluster.Amount) []quota.Ask { return []quota.Ask{{Slot: gpu, Amount: n}} }

var domain, p, q, s, member = quota.ID{Domain: "d"}, quota.ID{Project: "P"}, quota.ID{Project: "Q"}, quota.ID{Project: "S"},
	quota.ID{Project: "S", User: "u"}

func chain(t require.TestingT, tree *quota.Tree, project cluster.ProjectID, user cluster.UserID) *quota.Chain {
	c, known := tree.Chain("g", "d", project, user)
	require.True(t, known)
	return &c
}

func TestPaths(t *testing.T) {
	t.Parallel()
	f := world()
	for id, path := range map[quota.ID]string{domain: "d", p: "d/p", s: "d/p/s", {Project: "T"}: "d/p/s/t", member: "d/p/s/user:ada@x",
		{Project: "Q", User: "w"}: "d/q/user:w"} {
		require.Equal(t, path, f.Path(id))
	}
	require.Equal(t, []cluster.ProjectID{"P", "S"}, f.Above("T"))
	require.Empty(t, f.Above("P"))
	// Rows that somebody broke by hand end a walk.
	f.Projects["P"] = quota.Place{Name: "p", Domain: "d", Parent: "T"}
	require.NotEmpty(t, f.Above("T"))
	require.Nil(t, quota.New(quota.Facts{}))
	require.NotNil(t, quota.New(world()), "sub-projects order the fair share without rules")
}

// Limits of every level count what all below it use, in the group and in all together, and the nearest level is named.
func TestLimits(t *testing.T) {
	t.Parallel()
	tree := quota.New(world(rule(domain, -1, 8), rule(p, -1, 6), rule(member, -1, 2), in(rule(s, -1, 3), "g"), in(rule(s, -1, 1), "h")))
	require.ElementsMatch(t, []string{"g", "h"}, tree.Groups())
	mine, other, above := chain(t, tree, "S", "u"), chain(t, tree, "S", "w"), chain(t, tree, "Q", "u")
	require.Nil(t, mine.Over(ask(2)))
	o := mine.Over(ask(3))
	require.NotNil(t, o)
	require.Equal(t, "d/p/s/user:ada@x", o.Node.Path)
	require.Equal(t, [4]cluster.Amount{2, 0, 0, 3}, [4]cluster.Amount{o.Limit, o.Used, o.Kept, o.Asked})
	require.Equal(t, gpu, o.Slot)
	require.Nil(t, mine.Over([]quota.Ask{{Slot: "cpu", Amount: 100}, {Slot: gpu, Amount: 0}}), "only what is asked for counts")

	mine.Use(ask(2), 1)
	require.Nil(t, other.Over(ask(1)))
	o = other.Over(ask(2))
	require.Equal(t, "d/p/s", o.Node.Path)
	require.Equal(t, "g", o.Node.Group)
	require.Equal(t, cluster.Amount(1), o.Left())
	require.Nil(t, above.Over(ask(6)))
	o = above.Over(ask(7))
	require.Equal(t, "d", o.Node.Path)
	require.Empty(t, o.Node.Group)
	mine.Use(ask(2), -1)
	require.Nil(t, above.Over(ask(8)))

	rooms := mine.Rooms(gpu)
	var paths []string
	for _, r := range rooms {
		paths = append(paths, r.Node.Path+"@"+r.Node.Group)
	}
	require.Equal(t, []string{"d/p/s/user:ada@x@", "d/p@", "d@", "d/p/s@g"}, paths)
	require.Equal(t, []cluster.SlotName{gpu}, mine.Slots())
	_, known := tree.Chain("g", "elsewhere", "X", "")
	require.False(t, known)
}

// A guarantee is lent until somebody waits for it; then it is kept from those beyond their own, as far as it is waited for.
func TestLending(t *testing.T) {
	t.Parallel()
	tree := quota.New(world(rule(domain, -1, 8), rule(p, 4, -1), rule(q, 2, -1)))
	lender, borrower := chain(t, tree, "P", ""), chain(t, tree, "Q", "")
	left := func(c *quota.Chain) cluster.Amount {
		rooms := c.Rooms(gpu)
		return rooms[0].Left()
	}
	require.Equal(t, cluster.Amount(8), left(borrower), "all is lent while nobody waits")
	lender.Want(ask(3), 1)
	require.Equal(t, cluster.Amount(5), left(borrower), "what is waited for is kept")
	require.Equal(t, cluster.Amount(8), left(lender), "not from its owner")
	lender.Want(ask(3), 1)
	require.Equal(t, cluster.Amount(4), left(borrower), "no more than the guarantee")
	borrower.Use(ask(5), 1)
	require.Equal(t, cluster.Amount(0), left(borrower))
	o := borrower.Over(ask(1))
	require.Equal(t, [3]cluster.Amount{8, 5, 3}, [3]cluster.Amount{o.Limit, o.Used, o.Kept})
	require.Nil(t, lender.Over(ask(3)))
	require.NotNil(t, lender.Over(ask(4)))
	borrower.Use(ask(5), -1)
	lender.Use(ask(4), 1)
	require.Equal(t, cluster.Amount(4), left(borrower), "what is used of a guarantee is not kept besides")
	lender.Want(ask(6), -1)
	require.Equal(t, cluster.Amount(4), left(borrower))

	// The other one stays within its own guarantee whatever is kept.
	borrower.Want(ask(1), 1)
	require.Equal(t, cluster.Amount(3), left(lender), "beyond its guarantee it leaves what the other waits for")
	require.True(t, borrower.Entitled(ask(2)))
	require.False(t, borrower.Entitled(ask(3)))
	require.False(t, lender.Entitled(ask(1)))
	require.False(t, lender.Entitled([]quota.Ask{{Slot: "cpu", Amount: 1}}), "what is not guaranteed entitles to nothing")
	require.True(t, borrower.Entitled([]quota.Ask{{Slot: "cpu", Amount: 9}, {Slot: gpu, Amount: 2}}))
}

// Within a project, too, the guarantee of one user is kept from the others, although the project itself is within its own.
func TestKeptInside(t *testing.T) {
	t.Parallel()
	tree := quota.New(world(rule(domain, -1, 4), rule(s, 4, -1), rule(member, 1, -1)))
	mine, other, outside := chain(t, tree, "S", "u"), chain(t, tree, "S", "w"), chain(t, tree, "Q", "")
	other.Use(ask(3), 1)
	mine.Want(ask(1), 1)
	require.NotNil(t, other.Over(ask(1)))
	require.NotNil(t, outside.Over(ask(1)))
	require.Nil(t, mine.Over(ask(1)))
	mine.Want(ask(1), -1)
	require.Nil(t, other.Over(ask(1)))
	require.Nil(t, outside.Over(ask(1)))
}

func TestCovers(t *testing.T) {
	t.Parallel()
	tree := quota.New(world(rule(p, 4, -1)))
	n := tree.Nodes()[1]
	require.Equal(t, "d/p", n.Path)
	require.True(t, n.Assures())
	require.False(t, tree.Nodes()[0].Assures())
	require.True(t, n.Covers(ask(2), map[cluster.SlotName]cluster.Amount{gpu: 4}))
	require.False(t, n.Covers(ask(2), map[cluster.SlotName]cluster.Amount{gpu: 5}))
	require.False(t, n.Covers([]quota.Ask{{Slot: "cpu", Amount: 1}}, map[cluster.SlotName]cluster.Amount{gpu: 1}))
	require.False(t, n.Covers(ask(0), map[cluster.SlotName]cluster.Amount{gpu: 1}))
	require.Equal(t, ask(3), quota.Asks(cluster.Slots{gpu: 3, "cpu": 0, "mem": -1}))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	words := func(f quota.Facts) (out []string) {
		for _, p := range quota.Check(f) {
			out = append(out, p.Words(func(s cluster.SlotName, v cluster.Amount) string { return fmt.Sprintf("%d %s", v, s) }))
		}
		return out
	}
	require.Empty(t, words(quota.Facts{}))
	require.Empty(t, words(world(rule(domain, 8, 8), rule(p, 5, 9), rule(q, 3, -1), rule(s, 5, -1), rule(member, 5, 5))))
	require.Equal(t, []string{"the guarantees in d sum up to 9 gpu, and its guarantee is 8 gpu",
		"the guarantees in d sum up to 9 gpu, and its limit is 8 gpu"}, words(world(rule(domain, 8, 8), rule(p, 5, -1), rule(q, 4, -1))))
	require.Equal(t, []string{"the guarantees in d/p sum up to 6 gpu, and its guarantee is 5 gpu"},
		words(world(rule(p, 5, -1), rule(member, 6, -1))))
	require.Equal(t, []string{"the guarantees in d/p in resource group g sum up to 6 gpu, and its limit is 5 gpu"},
		words(world(in(rule(p, 6, 5), "g"), in(rule(p, 1, -1), "h"))))
	f := world(rule(p, 5, -1), in(rule(p, 50, -1), "g"))
	f.Totals = map[string]cluster.Slots{"d": {gpu: 4}}
	require.Equal(t, []string{"the guarantees in d sum up to 5 gpu, and its total is 4 gpu"}, words(f))

	// A change is refused for what it breaks, not for what was broken before.
	broken := world(rule(domain, -1, 4), rule(p, 5, -1), rule(s, 1, -1))
	require.Nil(t, quota.Worse(broken, broken))
	require.Nil(t, quota.Worse(broken, world(rule(domain, -1, 4), rule(p, 5, -1), rule(s, 5, -1))))
	require.NotNil(t, quota.Worse(broken, world(rule(domain, -1, 4), rule(p, 6, -1))))
	require.NotNil(t, quota.Worse(broken, world(rule(domain, -1, 3), rule(p, 5, -1))))
	require.Nil(t, quota.Worse(broken, world(rule(domain, -1, 5), rule(p, 5, -1))))
}

func TestStates(t *testing.T) {
	t.Parallel()
	tree := quota.New(world(rule(domain, -1, 4), rule(p, 3, 9), rule(s, -1, 9), in(rule(q, 1, -1), "g")))
	c := chain(t, tree, "P", "")
	c.Use(ask(1), 1)
	c.Want(ask(1), 1)
	of := func(path string) quota.State {
		for _, n := range tree.Nodes() {
			if n.Path == path {
				require.Len(t, n.States(), 1)
				return n.States()[0]
			}
		}
		require.Fail(t, path)
		return quota.State{}
	}
	require.Equal(t, quota.State{Slot: gpu, Guaranteed: 3, Limit: 9, Assured: true, Limited: true, Effective: 4, EffectiveBy: "d",
		Bounded: true, Used: 1, Waiting: 1, Lent: 1}, of("d/p"))
	require.Equal(t, "d", of("d/p/s").EffectiveBy)
	require.Equal(t, quota.State{Slot: gpu, Guaranteed: 1, Assured: true, Lent: 1}, of("d/q"))
	c.Use(ask(3), 1)
	require.Equal(t, cluster.Amount(1), of("d/p").Borrowed)
	require.Zero(t, of("d/p").Lent)
	require.Equal(t, quota.State{Slot: gpu, Limit: 4, Limited: true, Effective: 4, EffectiveBy: "d", Bounded: true, Used: 4, Waiting: 1},
		of("d"))
	again := tree.Empty()
	require.Len(t, again.Nodes(), len(tree.Nodes()))
	require.Zero(t, again.Nodes()[0].States()[0].Used)
}

// Whatever starts and ends: no level is ever over its limit. Where all promises can be kept and somebody waits within a guarantee, those
// beyond all of theirs start below a limit only if that session still fits there: what it lacks never grows by them. When all others
// have ended it fits.
func TestGuaranteesAreReached(t *testing.T) {
	t.Parallel()
	reached := 0
	property := func(rt *rapid.T) {
		amount := func(name string, most int) cluster.Amount {
			return cluster.Amount(rapid.IntRange(-1, most).Draw(rt, name))
		}
		f := world()
		ids := []quota.ID{domain, p, q, s, {Project: "T"}, member, {Project: "S", User: "w"}}
		for i, id := range ids {
			f.Rules = append(f.Rules, rule(id, amount(fmt.Sprintf("guaranteed %d", i), 4), amount(fmt.Sprintf("limit %d", i), 9)))
		}
		// Freely drawn, those beyond all their guarantees rarely start beside somebody who waits within one. So half of the worlds have
		// room in the domain for both, and a user with a guarantee who waits.
		usual := rapid.Bool().Draw(rt, "usual")
		if usual {
			f.Rules[0] = rule(domain, -1, cluster.Amount(rapid.IntRange(6, 9).Draw(rt, "limit of the domain")))
			f.Rules[5] = rule(member, cluster.Amount(rapid.IntRange(2, 4).Draw(rt, "guarantee of the user")), -1)
		}
		kept := len(quota.Check(f)) == 0
		tree := quota.New(f)
		owners := []*quota.Chain{chain(rt, tree, "P", ""), chain(rt, tree, "Q", ""), chain(rt, tree, "S", "u"), chain(rt, tree, "S", "w"),
			chain(rt, tree, "T", "u")}
		paths := []string{"d/p", "d/q", "d/p/s/user:ada@x", "d/p/s/user:w", "d/p/s/t/user:ada@x"}
		type session struct {
			owner int
			n     cluster.Amount
		}
		draw := func() session {
			return session{rapid.IntRange(0, len(owners)-1).Draw(rt, "owner"), cluster.Amount(rapid.IntRange(1, 3).Draw(rt, "asks"))}
		}
		var running []session
		waits := draw()
		wants := false
		if usual {
			waits, wants = session{2, cluster.Amount(rapid.IntRange(1, 2).Draw(rt, "waits for"))}, true
			owners[waits.owner].Want(ask(waits.n), 1)
		}
		// assured reports whether the session that waits is within a guarantee below a level.
		assured := func(path string) bool {
			return slices.ContainsFunc(tree.Nodes(), func(n *quota.Node) bool {
				return strings.HasPrefix(n.Path, path+"/") && strings.HasPrefix(paths[waits.owner]+"/", n.Path+"/") && n.Within(ask(waits.n))
			})
		}
		entitled := func(x session) bool { return owners[x.owner].Entitled(ask(x.n)) }
		for range rapid.IntRange(0, 24).Draw(rt, "steps") {
			x := draw()
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				if !wants {
					owners[waits.owner].Want(ask(waits.n), 1)
					wants = true
				}
			case 1:
				if len(running) > 0 {
					owners[running[0].owner].Use(ask(running[0].n), -1)
					running = running[1:]
				}
			default:
				if owners[x.owner].Over(ask(x.n)) != nil {
					continue
				}
				borrows, mine := !entitled(x), wants && entitled(waits)
				owners[x.owner].Use(ask(x.n), 1)
				running = append(running, x)
				for _, r := range owners[waits.owner].Rooms(gpu) {
					theirs := owners[x.owner].Rooms(gpu)
					shared := false
					for _, other := range theirs {
						shared = shared || other.Node == r.Node
					}
					if mine && borrows && shared && assured(r.Node.Path) {
						reached++
						require.GreaterOrEqual(rt, r.Left(), waits.n, "%s: %+v started before %+v", r.Node.Path, x, waits)
					}
				}
			}
			for _, n := range tree.Nodes() {
				for _, st := range n.States() {
					require.True(rt, !st.Limited || st.Used <= st.Limit, "%s: %+v", n.Path, st)
				}
			}
		}
		for _, x := range running {
			owners[x.owner].Use(ask(x.n), -1)
		}
		if kept && entitled(waits) {
			for _, r := range owners[waits.owner].Rooms(gpu) {
				require.True(rt, !assured(r.Node.Path) || r.Left() >= waits.n, "%+v", r)
			}
		}
	}
	for range 4 {
		rapid.Check(t, property)
	}
	require.Positive(t, reached)
}
