package scheduler

import (
	"cmp"
	"container/heap"
	"slices"
	"sort"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/quota"
)

// queue is the waiting sessions of a group in their order.
//
// Sessions that differ in owner, priority, age and name only are one kind, and what is found out about one of them holds for all.
// So a pass costs what changed, not the length of the queue. Of one kind, the sessions of one owner and priority are a lane, oldest
// first; every kind has a heap of its lanes by their first sessions, and the queue has two heaps of kinds: ready, which may start,
// and blocked, which wait for room. Kinds that wait for something else are in none.
//
// Invariants, between calls:
//   - a lane with sessions is in the heap of its kind, or in the set of the limit that it waits for;
//   - a kind is in ready when it was not refused, in blocked when it was refused for room, and in refusals when it was refused at all;
//     a blocked kind leaves its heap during a pass while it has a reservation;
//   - a session that waits for its start time is in future, one that waits for a dependency is in no heap.
type queue struct {
	order    ordering
	youngest bool          // the youngest session goes first
	byShare  bool          // the order looks at dominant shares
	aging    time.Duration // of waiting that adds one to the priority; 0: none
	now      int64         // the instant of the pass
	agedTo   int64         // the same in steps of aging
	pass     uint64        // number of the pass

	bands     [maxPriority + 1][]*band
	lanes     map[laneKey]*lane
	kinds     map[*kind]*kindQueue
	ready     kindHeap
	blocked   kindHeap
	refusals  []*kind // that were refused
	future    []*waiting
	pending   int // sessions, also those that wait for a time or a dependency
	dependent int // of them, those with an open dependency

	// events counts what may let a blocked session find victims that it did not find before.
	events uint64
}

// waiting is one session in a queue. It is kept small, since there may be a million: what it shares with others is in its lane.
type waiting struct {
	id         cluster.SessionID
	name       string
	enqueued   int64
	starts     int64
	dependency string // an open one, in words; empty: none
	kernel     cluster.KernelID
	others     []cluster.KernelID // of the second and later kernels
	lane       *lane
	// queued: it is in its lane. Otherwise it waits for its start time or a dependency.
	queued bool
}

func (w *waiting) kernelID(i int) cluster.KernelID {
	if i == 0 {
		return w.kernel
	}
	return w.others[i-1]
}

// older orders sessions by the time they came, then by id.
func older(a, b *waiting) int {
	return cmp.Or(cmp.Compare(a.enqueued, b.enqueued), strings.Compare(string(a.id), string(b.id)))
}

// ages is a list of sessions, oldest first. It is cut into chunks, so that all operations are cheap at any length.
type ages struct {
	chunks [][]*waiting
	n      int
}

const chunkSize = 512

// find gives the chunk and place of w or where it belongs, in a list that is not empty.
func (l *ages) find(w *waiting) (chunk, at int, found bool) {
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

// groupOwner is an owner in a resource group.
type groupOwner struct {
	ownerShares
	group   *group
	account *account
	usage   *usage
	bands   []*band
	lanes   []*lane

	levels   *quota.Chain // of the tree of quotas; nil: none
	entitled int          // lanes that are
}

// band is an owner's waiting sessions of one priority.
type band struct {
	owner    *groupOwner
	group    *group
	priority int
	all      ages // with those that wait for a time or a dependency
}

// laneKey tells lanes apart.
type laneKey struct {
	band *band
	kind *kind
}

// lane is the waiting sessions of one kind, owner and priority.
type lane struct {
	band     *band
	kind     *kind
	list     ages
	standing standing // mayStart, limited or absent
	scope    *scope   // whose quota it waits for when limited
	pos      int      // in turn.lanes
	nth      int      // in party.lanes
	refs     int      // sessions, also those that are not queued
	entitled bool     // one more session of it stays within a guarantee
}

// standing says why a lane or a kind does not start, or that it may.
type standing uint8

const (
	mayStart   standing = iota // of a lane: it is in the heap of its kind
	blocked                    // no room now
	impossible                 // no agent could ever take it
	heldBack                   // it would start if nothing were kept for others
	limited                    // of a lane: over a limit of lane.scope
	absent                     // of a lane: it has no sessions
)

// kindQueue is the waiting sessions of one kind: a heap of lanes by their first sessions.
type kindQueue struct {
	of    *queue
	kind  *kind
	lanes []*lane
	heap  *kindHeap // nil when the kind is in none
	pos   int       // in heap, -1 when it has no lanes

	// refused is why the kind does not start; mayStart when it may.
	refused standing
	reason  Reason
	seen    int    // search.position when it was refused
	pass    uint64 // in which it was refused
	nth     int    // in queue.refusals, -1 when not there
}

func (t *kindQueue) Len() int           { return len(t.lanes) }
func (t *kindQueue) Less(i, j int) bool { return t.of.ahead(t.lanes[i], t.lanes[j]) }

func (t *kindQueue) Swap(i, j int) {
	t.lanes[i], t.lanes[j] = t.lanes[j], t.lanes[i]
	t.lanes[i].pos, t.lanes[j].pos = i, j
}

func (t *kindQueue) Push(x any) {
	l := x.(*lane)
	l.pos = len(t.lanes)
	t.lanes = append(t.lanes, l)
}

func (t *kindQueue) Pop() any {
	n := len(t.lanes) - 1
	l := t.lanes[n]
	t.lanes[n] = nil
	t.lanes = t.lanes[:n]
	return l
}

// kindHeap is a heap of kinds by their first lanes.
type kindHeap []*kindQueue

func (q kindHeap) Len() int           { return len(q) }
func (q kindHeap) Less(i, j int) bool { return q[i].of.ahead(q[i].lanes[0], q[j].lanes[0]) }
func (q kindHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].pos, q[j].pos = i, j
}

func (q *kindHeap) Push(x any) {
	t := x.(*kindQueue)
	t.pos = len(*q)
	*q = append(*q, t)
}

func (q *kindHeap) Pop() any {
	n := len(*q) - 1
	t := (*q)[n]
	(*q)[n] = nil
	*q = (*q)[:n]
	t.pos = -1
	return t
}

// first is the lane whose head is next, nil when there is none.
func (q kindHeap) first() *lane {
	if len(q) == 0 {
		return nil
	}
	return q[0].lanes[0]
}

// reorder restores all heaps after the order changed.
func (q *queue) reorder() {
	q.events++
	for _, t := range q.kinds {
		heap.Init(t)
	}
	heap.Init(&q.ready)
	heap.Init(&q.blocked)
}

// settle restores the place of a kind in its heap after its first lane may have changed.
func (t *kindQueue) settle() {
	switch {
	case t.heap == nil:
	case len(t.lanes) == 0:
		if t.pos >= 0 {
			heap.Remove(t.heap, t.pos)
		}
	case t.pos < 0:
		heap.Push(t.heap, t)
	default:
		heap.Fix(t.heap, t.pos)
	}
}

// join moves a kind to another heap; nil takes it out of all.
func (t *kindQueue) join(q *kindHeap) {
	if t.heap != nil && t.pos >= 0 {
		heap.Remove(t.heap, t.pos)
	}
	t.heap = q
	t.settle()
}

// enter adds a lane.
func (t *kindQueue) enter(l *lane) {
	l.standing = mayStart
	heap.Push(t, l)
	t.settle()
}

// leave takes a lane away.
func (t *kindQueue) leave(l *lane) {
	heap.Remove(t, l.pos)
	t.settle()
}

// moved restores the order after a lane's head or its owner's share changed.
func (t *kindQueue) moved(l *lane) {
	heap.Fix(t, l.pos)
	t.settle()
}

// firstLanes are the first n lanes of a kind, in order.
func (t *kindQueue) firstLanes(n int) []*lane {
	var out []*lane
	h := t.heap
	t.join(nil)
	for len(out) < n && len(t.lanes) > 0 {
		out = append(out, heap.Pop(t).(*lane))
	}
	for _, l := range out {
		heap.Push(t, l)
	}
	t.join(h)
	return out
}

// head is the session of a lane that is next.
func (l *lane) head(q *queue) *waiting {
	if q.youngest {
		return l.list.youngest()
	}
	return l.list.oldest()
}

// at is the n-th session of a lane in its order.
func (l *lane) at(q *queue, n int) *waiting {
	if q.youngest {
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
func (q *queue) between(a, b *waiting) int {
	if q.youngest {
		return -older(a, b)
	}
	return older(a, b)
}

// rank is the priority of a session with what aging adds to it.
func (q *queue) rank(w *waiting) int {
	p := w.lane.band.priority
	if q.aging > 0 && q.agedTo > w.enqueued {
		p = int(min(maxPriority, int64(p)+(q.agedTo-max(w.enqueued, q.agedTo-agingReach))/int64(q.aging)))
	}
	return p
}

// ahead reports whether the head of a lane comes before that of another.
func (q *queue) ahead(a, b *lane) bool { return q.before(a.head(q), b.head(q)) < 0 }

// before is the order of the queue: who stays within a guarantee, priority, then the policy's order of owners, then age.
func (q *queue) before(a, b *waiting) int {
	if a.lane.entitled != b.lane.entitled {
		if a.lane.entitled {
			return -1
		}
		return 1
	}
	if c := q.rank(b) - q.rank(a); c != 0 {
		return c
	}
	if x, y := a.lane.band.owner, b.lane.band.owner; x != y {
		if c := q.order.Compare(&x.ownerShares, &y.ownerShares); c != 0 {
			return c
		}
	}
	return q.between(a, b)
}

// enqueue puts a session into its lane.
func (q *queue) enqueue(w *waiting) {
	l := w.lane
	w.queued = true
	l.list.add(w)
	l.want(1)
	if q.kinds[l.kind].refused == blocked {
		q.events++ // it may find victims
	}
	switch {
	case l.standing == absent:
		q.kinds[l.kind].enter(l)
	case l.standing == mayStart && l.head(q) == w:
		q.kinds[l.kind].moved(l)
	}
}

// dequeue takes a session out of its lane.
func (q *queue) dequeue(w *waiting) {
	l := w.lane
	w.queued = false
	l.want(-1)
	last, first := l.list.n == 1, l.head(q) == w
	if last && l.standing == mayStart {
		q.kinds[l.kind].leave(l)
	}
	l.list.remove(w)
	switch {
	case last:
		if l.standing == limited {
			delete(l.scope.lanes, l)
		}
		l.standing, l.scope = absent, nil
	case first && l.standing == mayStart:
		q.kinds[l.kind].moved(l)
	}
}

// limit sets a lane aside until a limit has room.
func (q *queue) limit(l *lane, s *scope) {
	q.kinds[l.kind].leave(l)
	l.standing, l.scope = limited, s
	s.lanes[l] = struct{}{}
}

// unlimit puts a lane back into the heap of its kind.
func (q *queue) unlimit(l *lane) {
	delete(l.scope.lanes, l)
	l.scope = nil
	q.kinds[l.kind].enter(l)
	if q.kinds[l.kind].refused == blocked {
		q.events++
	}
}

// refuse sets a kind aside with all its lanes. seen is search.position.
func (q *queue) refuse(k *kind, why standing, reason Reason, seen int) {
	t := q.kinds[k]
	t.refused, t.reason, t.seen, t.pass = why, reason, seen, q.pass
	if t.nth < 0 {
		t.nth = len(q.refusals)
		q.refusals = append(q.refusals, k)
	}
	if why == blocked {
		t.join(&q.blocked)
	} else {
		t.join(nil)
	}
}

// tryAgain makes a refused kind ready.
func (q *queue) tryAgain(k *kind) {
	t := q.kinds[k]
	q.unrefuse(t)
	t.join(&q.ready)
}

// unrefuse forgets that a kind was refused.
func (q *queue) unrefuse(t *kindQueue) {
	t.refused = mayStart
	if t.nth < 0 {
		return
	}
	n := len(q.refusals) - 1
	last := q.refusals[n]
	q.refusals[t.nth] = last
	q.kinds[last].nth = t.nth
	q.refusals[n] = nil
	q.refusals = q.refusals[:n]
	t.nth = -1
}

// agingStep rounds an instant down to eighths of the time that adds one to the priority: that often the order changes.
func (q *queue) agingStep(at int64) int64 {
	if step := int64(q.aging) / 8; step > 0 {
		return at - at%step
	}
	return at
}

// bandOf finds or makes an owner's sessions of a priority.
func (q *queue) bandOf(g *group, p *groupOwner, priority int) *band {
	for _, b := range p.bands {
		if b.priority == priority {
			return b
		}
	}
	b := &band{owner: p, group: g, priority: priority}
	p.bands = append(p.bands, b)
	q.bands[priority] = append(q.bands[priority], b)
	return b
}

// laneOf finds or makes a lane.
func (q *queue) laneOf(b *band, k *kind) *lane {
	key := laneKey{b, k}
	l := q.lanes[key]
	if l == nil {
		l = &lane{band: b, kind: k, standing: absent, nth: len(b.owner.lanes)}
		q.lanes[key] = l
		b.owner.lanes = append(b.owner.lanes, l)
		l.register()
		if q.kinds[k] == nil {
			q.kinds[k] = &kindQueue{of: q, kind: k, heap: &q.ready, pos: -1, nth: -1}
		}
	}
	return l
}

// position counts the sessions before w in the queue, and w.
func (q *queue) position(w *waiting) int {
	n := 1
	rank, mine := q.rank(w), &w.lane.band.owner.ownerShares
	for priority, bands := range q.bands {
		for _, b := range bands {
			if w.lane.entitled || b.owner.entitled > 0 {
				n += q.aheadIn(b, w)
				continue
			}
			before, equal := 0, b.all.n
			switch {
			case q.aging > 0:
				before = b.all.n
				if priority <= rank {
					before = 0
					if rank < maxPriority {
						before = b.all.until(q.agedTo - int64(rank+1-priority)*int64(q.aging))
					}
					equal = b.all.n - before
					if priority < rank {
						equal = b.all.until(q.agedTo-int64(rank-priority)*int64(q.aging)) - before
					}
				}
			case priority > rank:
				before = b.all.n
			}
			n += before
			if priority > rank || q.aging == 0 && priority < rank {
				continue
			}
			switch c := q.order.Compare(&b.owner.ownerShares, mine); {
			case b.owner != w.lane.band.owner && c < 0:
				n += equal
			case b.owner != w.lane.band.owner && c > 0:
			case q.youngest:
				n += b.all.n - b.all.before(w)
				if _, _, in := b.all.find(w); in {
					n--
				}
			default:
				n += min(max(b.all.before(w)-before, 0), equal)
			}
		}
	}
	return n
}

// wakeHeldBack makes kinds ready that were held back in an earlier pass.
func (q *queue) wakeHeldBack() {
	q.wakeKinds(func(_ *kind, f *kindQueue) bool { return f.refused == heldBack && f.pass != q.pass })
}

// wakeKinds makes some of the refused kinds ready.
func (q *queue) wakeKinds(which func(*kind, *kindQueue) bool) {
	for i := 0; i < len(q.refusals); {
		if k := q.refusals[i]; which(k, q.kinds[k]) {
			q.tryAgain(k) // moves another kind to i
			continue
		}
		i++
	}
}

func (h byStart) Len() int { return len(h) }

func (h byStart) Less(i, j int) bool {
	return h[i].starts < h[j].starts || h[i].starts == h[j].starts && h[i].id < h[j].id
}

func (h byStart) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *byStart) Push(x any) { *h = append(*h, x.(*waiting)) }

func (h *byStart) Pop() any {
	n := len(*h) - 1
	w := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return w
}

func (q *queue) pushFuture(w *waiting) { heap.Push((*byStart)(&q.future), w) }

func (q *queue) dropFuture(w *waiting) {
	if i := slices.Index(q.future, w); i >= 0 {
		heap.Remove((*byStart)(&q.future), i)
	}
}
