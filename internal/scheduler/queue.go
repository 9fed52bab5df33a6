package scheduler

import (
	"cmp"
	"container/heap"
	"slices"
	"sort"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// waiting is one session in a queue, kept small: everything that it shares with others is in
// its lane.
type waiting struct {
	id       cluster.SessionID
	name     string
	enqueued int64
	starts   int64
	// waits names an open dependency.
	waits  string
	kernel cluster.KernelID
	more   []cluster.KernelID // of the second and later kernels
	lane   *lane
	// queued: it is in its lane; otherwise it waits for its start time or a dependency.
	queued bool
}

func (w *waiting) kernelID(i int) cluster.KernelID {
	if i == 0 {
		return w.kernel
	}
	return w.more[i-1]
}

// older orders sessions by the time they came, then by id.
func older(a, b *waiting) int {
	return cmp.Or(cmp.Compare(a.enqueued, b.enqueued), strings.Compare(string(a.id), string(b.id)))
}

// ages is a list of sessions, oldest first, cut into chunks so that all operations are cheap
// for any length.
type ages struct {
	chunks [][]*waiting
	n      int
}

const chunkSize = 512

// find gives the chunk and place of w or where it belongs.
func (l *ages) find(w *waiting) (chunk, at int, found bool) {
	if len(l.chunks) == 0 {
		return 0, 0, false
	}
	chunk = sort.Search(len(l.chunks)-1, func(i int) bool { return older(l.chunks[i+1][0], w) > 0 })
	at, found = slices.BinarySearchFunc(l.chunks[chunk], w, older)
	return chunk, at, found
}

func (l *ages) add(w *waiting) {
	l.n++
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, []*waiting{w})
		return
	}
	chunk, at, _ := l.find(w)
	c := l.chunks[chunk]
	if len(c) < chunkSize {
		l.chunks[chunk] = slices.Insert(c, at, w)
		return
	}
	if at == chunkSize && chunk == len(l.chunks)-1 { // the usual case: the youngest of all
		l.chunks = append(l.chunks, []*waiting{w})
		return
	}
	right := slices.Clone(c[chunkSize/2:])
	clear(c[chunkSize/2:])
	l.chunks[chunk] = c[:chunkSize/2]
	l.chunks = slices.Insert(l.chunks, chunk+1, right)
	if at > chunkSize/2 {
		chunk, at = chunk+1, at-chunkSize/2
	}
	l.chunks[chunk] = slices.Insert(l.chunks[chunk], at, w)
}

func (l *ages) remove(w *waiting) {
	chunk, at, found := l.find(w)
	if !found {
		return
	}
	l.n--
	c := l.chunks[chunk]
	switch {
	case len(c) == 1:
		l.chunks = slices.Delete(l.chunks, chunk, chunk+1)
	case at == 0:
		c[0] = nil
		l.chunks[chunk] = c[1:]
	default:
		l.chunks[chunk] = slices.Delete(c, at, at+1)
	}
}

func (l *ages) oldest() *waiting { return l.chunks[0][0] }

func (l *ages) youngest() *waiting {
	c := l.chunks[len(l.chunks)-1]
	return c[len(c)-1]
}

// before counts the sessions that come before w, which need not be in the list.
func (l *ages) before(w *waiting) int {
	chunk, at, _ := l.find(w)
	for i := range chunk {
		at += len(l.chunks[i])
	}
	return at
}

// until counts the sessions enqueued at an instant or earlier.
func (l *ages) until(instant int64) int {
	n := 0
	for _, c := range l.chunks {
		if c[len(c)-1].enqueued > instant {
			return n + sort.Search(len(c), func(i int) bool { return c[i].enqueued > instant })
		}
		n += len(c)
	}
	return n
}

// party is an owner in a resource group, as order policies see it.
type party struct {
	Party
	account *account
	usage   *usage
	bands   []*band
	lanes   []*lane
}

// band is a party's waiting sessions of one priority.
type band struct {
	party    *party
	group    *group
	priority int
	all      ages // with those that wait for a time or a dependency
}

// laneKey tells lanes apart.
type laneKey struct {
	band *band
	kind *kind
}

// lane is sessions that differ in age and names alone.
type lane struct {
	band  *band
	kind  *kind
	list  ages
	aside place  // inTurn, limited or absent
	scope *scope // whose quota it waits for when limited
	pos   int    // in turn.lanes
	nth   int    // in party.lanes
	refs  int    // sessions, also those that are not queued
}

// place says where a lane or a kind is.
type place uint8

const (
	inTurn   place = iota // a lane in its kind's turn; a kind that may start
	blocked               // no room now
	hopeless              // no agent could ever take it
	behind                // only the room kept for others would do
	limited               // over a quota of lane.scope
	absent                // empty
)

// turn is the lanes of a kind, the next one first. Kinds that were refused leave the heap of those
// that may start, with all their lanes at once.
type turn struct {
	group *group
	kind  *kind
	lanes []*lane
	queue *turns // nil when the kind is in none
	pos   int    // in queue.turns, -1 when it has no lanes

	// refused is why the kind does not start; inTurn when it may.
	refused place
	reason  Reason
	seen    int    // position in group.changes when it was refused
	pass    uint64 // in which it was refused
	nth     int    // in group.refusals, -1 when not there
}

func (t *turn) Len() int           { return len(t.lanes) }
func (t *turn) Less(i, j int) bool { return t.group.ahead(t.lanes[i], t.lanes[j]) }

func (t *turn) Swap(i, j int) {
	t.lanes[i], t.lanes[j] = t.lanes[j], t.lanes[i]
	t.lanes[i].pos, t.lanes[j].pos = i, j
}

func (t *turn) Push(x any) {
	l := x.(*lane)
	l.pos = len(t.lanes)
	t.lanes = append(t.lanes, l)
}

func (t *turn) Pop() any {
	n := len(t.lanes) - 1
	l := t.lanes[n]
	t.lanes[n] = nil
	t.lanes = t.lanes[:n]
	return l
}

// turns is a heap of kinds by their first lanes.
type turns []*turn

func (q turns) Len() int           { return len(q) }
func (q turns) Less(i, j int) bool { return q[i].group.ahead(q[i].lanes[0], q[j].lanes[0]) }
func (q turns) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].pos, q[j].pos = i, j
}

func (q *turns) Push(x any) {
	t := x.(*turn)
	t.pos = len(*q)
	*q = append(*q, t)
}

func (q *turns) Pop() any {
	n := len(*q) - 1
	t := (*q)[n]
	(*q)[n] = nil
	*q = (*q)[:n]
	t.pos = -1
	return t
}

// first is the lane whose head is next, nil when there is none.
func (q turns) first() *lane {
	if len(q) == 0 {
		return nil
	}
	return q[0].lanes[0]
}

// again restores the whole order, after the rule or the time changed.
func (g *group) again() {
	g.moves++
	for _, t := range g.kinds {
		heap.Init(t)
	}
	heap.Init(&g.ready)
	heap.Init(&g.blocked)
}

// settle restores the place of a kind whose first lane may have changed.
func (t *turn) settle() {
	switch {
	case t.queue == nil:
	case len(t.lanes) == 0:
		if t.pos >= 0 {
			heap.Remove(t.queue, t.pos)
		}
	case t.pos < 0:
		heap.Push(t.queue, t)
	default:
		heap.Fix(t.queue, t.pos)
	}
}

// join moves a kind to another heap or out of all.
func (t *turn) join(q *turns) {
	if t.queue != nil && t.pos >= 0 {
		heap.Remove(t.queue, t.pos)
	}
	t.queue = q
	t.settle()
}

func (t *turn) enter(l *lane) {
	l.aside = inTurn
	heap.Push(t, l)
	t.settle()
}

func (t *turn) leave(l *lane) {
	heap.Remove(t, l.pos)
	t.settle()
}

// moved restores the order after a lane's head or its owner's share changed.
func (t *turn) moved(l *lane) {
	heap.Fix(t, l.pos)
	t.settle()
}

// firsts are the first n lanes of a kind, in order.
func (t *turn) firsts(n int) []*lane {
	var out []*lane
	q := t.queue
	t.join(nil)
	for len(out) < n && len(t.lanes) > 0 {
		out = append(out, heap.Pop(t).(*lane))
	}
	for _, l := range out {
		heap.Push(t, l)
	}
	t.join(q)
	return out
}

// head is the session of a lane that is next.
func (l *lane) head(g *group) *waiting {
	if g.youngest {
		return l.list.youngest()
	}
	return l.list.oldest()
}

// at is the n-th session of a lane in its order.
func (l *lane) at(g *group, n int) *waiting {
	if g.youngest {
		n = l.list.n - 1 - n
	}
	for _, c := range l.list.chunks {
		if n < len(c) {
			return c[n]
		}
		n -= len(c)
	}
	return nil
}

// between orders two sessions of one owner.
func (g *group) between(a, b *waiting) int {
	if g.youngest {
		return -older(a, b)
	}
	return older(a, b)
}

// rank is the priority of a session with what waiting adds to it.
func (g *group) rank(w *waiting) int {
	p := w.lane.band.priority
	if g.ageing > 0 && g.aged > w.enqueued {
		p = int(min(maxPriority, int64(p)+(g.aged-max(w.enqueued, g.aged-ageingReach))/int64(g.ageing)))
	}
	return p
}

// ahead reports whether the head of a lane comes before that of another.
func (g *group) ahead(a, b *lane) bool { return g.before(a.head(g), b.head(g)) < 0 }

// before is the order of the queue: priority, then the policy's order of owners, then age.
func (g *group) before(a, b *waiting) int {
	if c := g.rank(b) - g.rank(a); c != 0 {
		return c
	}
	if p, q := a.lane.band.party, b.lane.band.party; p != q {
		if c := g.order.Compare(&p.Party, &q.Party); c != 0 {
			return c
		}
	}
	return g.between(a, b)
}

// enqueue puts a session into its lane.
func (g *group) enqueue(w *waiting) {
	l := w.lane
	w.queued = true
	l.list.add(w)
	if g.kinds[l.kind].refused == blocked {
		g.moves++ // it may find victims
	}
	switch {
	case l.aside == absent:
		g.kinds[l.kind].enter(l)
	case l.aside == inTurn && l.head(g) == w:
		g.kinds[l.kind].moved(l)
	}
}

// dequeue takes a session out of its lane.
func (g *group) dequeue(w *waiting) {
	l := w.lane
	w.queued = false
	last, first := l.list.n == 1, l.head(g) == w
	if last && l.aside == inTurn {
		g.kinds[l.kind].leave(l)
	}
	l.list.remove(w)
	switch {
	case last:
		if l.aside == limited {
			delete(l.scope.lanes, l)
		}
		l.aside, l.scope = absent, nil
	case first && l.aside == inTurn:
		g.kinds[l.kind].moved(l)
	}
}

// limit sets a lane aside until a quota has room.
func (g *group) limit(l *lane, s *scope) {
	g.kinds[l.kind].leave(l)
	l.aside, l.scope = limited, s
	s.lanes[l] = struct{}{}
}

// unlimit gives a lane back to its turn.
func (g *group) unlimit(l *lane) {
	delete(l.scope.lanes, l)
	l.scope = nil
	g.kinds[l.kind].enter(l)
	if g.kinds[l.kind].refused == blocked {
		g.moves++
	}
}

// refuse sets a kind aside with all its lanes.
func (g *group) refuse(k *kind, why place, reason Reason) {
	t := g.kinds[k]
	t.refused, t.reason, t.seen, t.pass = why, reason, g.forgotten+len(g.changes), g.passes
	if t.nth < 0 {
		t.nth = len(g.refusals)
		g.refusals = append(g.refusals, k)
	}
	if why == blocked {
		t.join(&g.blocked)
	} else {
		t.join(nil)
	}
}

// tryAgain lets a refused kind be tried.
func (g *group) tryAgain(k *kind) {
	t := g.kinds[k]
	g.unrefuse(t)
	t.join(&g.ready)
}

func (g *group) unrefuse(t *turn) {
	t.refused = inTurn
	if t.nth < 0 {
		return
	}
	n := len(g.refusals) - 1
	last := g.refusals[n]
	g.refusals[t.nth] = last
	g.kinds[last].nth = t.nth
	g.refusals[n] = nil
	g.refusals = g.refusals[:n]
	t.nth = -1
}
