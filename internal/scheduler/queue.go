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
	typ    cluster.SessionType
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

func (l *ages) each(do func(*waiting)) {
	for _, c := range l.chunks {
		for _, w := range c {
			do(w)
		}
	}
}

// party is an owner in a resource group, as order policies see it.
type party struct {
	Party
	account *account
	usage   *usage
	bands   []*band
}

// band is a party's waiting sessions of one priority.
type band struct {
	party    *party
	priority int
	all      ages // with those that wait for a time or a dependency
	ready    turn
	blocked  turn
}

// laneKey tells lanes apart.
type laneKey struct {
	band *band
	kind *kind
}

// lane is sessions that differ in age and names alone.
type lane struct {
	band *band
	kind *kind
	list ages
	// where it is set aside, nil while ready or empty.
	aside place
	turn  *turn // the turn that it takes part in
	pos   int   // in turn.lanes
	nth   int   // in fate.lanes
	scope *scope
	refs  int // sessions, also those that are not queued
}

// place says why a lane is not ready.
type place uint8

const (
	atHand   place = iota // in its band's ready turn
	blocked               // no room now; in its band's blocked turn
	hopeless              // no agent could ever take it
	behind                // only the room kept for others would do
	limited               // over a quota of lane.scope
	absent                // empty
)

// turn is the lanes of a band that compete, the next one first.
type turn struct {
	lanes []*lane
	queue *turns
	pos   int // in queue.turns, -1 when it has no lanes
	band  *band
}

func (t *turn) Len() int { return len(t.lanes) }
func (t *turn) Less(i, j int) bool {
	return t.queue.group.between(t.lanes[i].head(t.queue.group), t.lanes[j].head(t.queue.group)) < 0
}

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

// turns is a heap of turns: of each two sessions, one in each of two turns, it knows the first.
type turns struct {
	group *group
	turns []*turn
}

func (q *turns) Len() int { return len(q.turns) }
func (q *turns) Less(i, j int) bool {
	return q.group.order2(q.turns[i].lanes[0], q.turns[j].lanes[0]) < 0
}
func (q *turns) Swap(i, j int) {
	q.turns[i], q.turns[j] = q.turns[j], q.turns[i]
	q.turns[i].pos, q.turns[j].pos = i, j
}

func (q *turns) Push(x any) {
	t := x.(*turn)
	t.pos = len(q.turns)
	q.turns = append(q.turns, t)
}

func (q *turns) Pop() any {
	n := len(q.turns) - 1
	t := q.turns[n]
	q.turns[n] = nil
	q.turns = q.turns[:n]
	t.pos = -1
	return t
}

// first is the lane whose head is next, nil when there is none.
func (q *turns) first() *lane {
	if len(q.turns) == 0 {
		return nil
	}
	return q.turns[0].lanes[0]
}

func (q *turns) enter(t *turn, l *lane) {
	l.turn = t
	heap.Push(t, l)
	q.settle(t)
}

func (q *turns) leave(l *lane) {
	t := l.turn
	heap.Remove(t, l.pos)
	l.turn = nil
	q.settle(t)
}

// moved restores the order after a lane's head changed.
func (q *turns) moved(l *lane) {
	heap.Fix(l.turn, l.pos)
	q.settle(l.turn)
}

// settle restores the place of a turn whose first lane may have changed.
func (q *turns) settle(t *turn) {
	switch {
	case len(t.lanes) == 0:
		if t.pos >= 0 {
			heap.Remove(q, t.pos)
		}
	case t.pos < 0:
		heap.Push(q, t)
	default:
		heap.Fix(q, t.pos)
	}
}

// again restores the whole order, after the rule or the time changed.
func (q *turns) again() {
	for _, t := range q.turns {
		heap.Init(t)
	}
	heap.Init(q)
}

// head is the session of a lane that is next.
func (l *lane) head(g *group) *waiting {
	if g.youngest {
		return l.list.youngest()
	}
	return l.list.oldest()
}

// between orders two sessions of one band.
func (g *group) between(a, b *waiting) int {
	if g.youngest {
		return -older(a, b)
	}
	return older(a, b)
}

// rank is the priority of a session with what waiting adds to it.
func (g *group) rank(w *waiting) int {
	p := w.lane.band.priority
	if g.ageing > 0 && g.at > w.enqueued {
		p = int(min(maxPriority, int64(p)+(g.at-max(w.enqueued, g.at-ageingReach))/int64(g.ageing)))
	}
	return p
}

// order2 orders the heads of two lanes.
func (g *group) order2(a, b *lane) int { return g.before(a.head(g), b.head(g)) }

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
	switch {
	case l.aside == absent:
		l.aside = atHand
		g.ready.enter(&l.band.ready, l)
	case l.turn != nil && l.head(g) == w:
		l.turn.queue.moved(l)
	}
}

// dequeue takes a session out of its lane.
func (g *group) dequeue(w *waiting) {
	l := w.lane
	w.queued = false
	if l.turn == nil {
		l.list.remove(w)
		if l.list.n == 0 {
			g.retire(l)
		}
		return
	}
	if l.list.n == 1 {
		l.turn.queue.leave(l)
		l.list.remove(w)
		g.retire(l)
		return
	}
	first := l.head(g) == w
	l.list.remove(w)
	if first {
		l.turn.queue.moved(l)
	}
}

// retire takes an empty lane out of everything.
func (g *group) retire(l *lane) {
	g.unlist(l)
	l.aside = absent
}

// setAside moves a lane from where it is.
func (g *group) setAside(l *lane, to place, scope *scope) {
	if l.turn != nil {
		l.turn.queue.leave(l)
	}
	g.unlist(l)
	l.aside = to
	switch to {
	case atHand:
		g.ready.enter(&l.band.ready, l)
	case blocked:
		g.blocked.enter(&l.band.blocked, l)
		g.kinds[l.kind].list(l)
	case hopeless, behind:
		g.kinds[l.kind].list(l)
	case limited:
		l.scope = scope
		scope.lanes[l] = struct{}{}
	}
}

// unlist takes a lane off the list that it is set aside in.
func (g *group) unlist(l *lane) {
	switch l.aside {
	case blocked, hopeless, behind:
		if f := g.kinds[l.kind]; f != nil {
			f.unlist(l)
		}
	case limited:
		delete(l.scope.lanes, l)
		l.scope = nil
	}
}

// fate is what a group knows of a kind of session that it could not start.
type fate struct {
	lanes []*lane // set aside as blocked, hopeless or behind
	// refused is why; atHand when the kind has not been tried since something changed.
	refused place
	reason  Reason
	seen    int // position in group.changes when it was refused
	// pos is the place in group.refusals, -1 when not there.
	pos int
}

func (f *fate) list(l *lane) {
	l.nth = len(f.lanes)
	f.lanes = append(f.lanes, l)
}

func (f *fate) unlist(l *lane) {
	n := len(f.lanes) - 1
	f.lanes[l.nth] = f.lanes[n]
	f.lanes[l.nth].nth = l.nth
	f.lanes[n] = nil
	f.lanes = f.lanes[:n]
}
