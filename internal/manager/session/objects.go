package session

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
)

// ObjectChange says that an object other than a session changed, and nothing of its content.
type ObjectChange struct {
	Noun string
	ID   string
	Kind string // made, changed, deleted; or ObjectsResync, without a noun: look at everything again
}

// The kinds of changes; the trigger of migration 0068 writes the first three.
const (
	ObjectMade    = "made"
	ObjectChanged = "changed"
	ObjectDeleted = "deleted"
	ObjectsResync = "resync"
)

// maxObjectQueue bounds the changed objects that wait for one reader; one that has more looks at everything again.
const maxObjectQueue = 512

// objectSources says where the objects of each noun are, by the words of migration 0068.
var objectSources = map[string]facts.Source{
	"folder": facts.Folders, "agent": facts.Agents, "user": facts.Users, "keypair": facts.Keypairs, "project": facts.Projects,
	"domain": facts.Domains, "keypair-policy": facts.KeypairPolicies, "user-policy": facts.UserPolicies,
	"project-policy": facts.ProjectPolicies, "resource-group": facts.ResourceGroups, "preset": facts.Presets, "image": facts.Images,
	"task": facts.Tasks, "announcement": facts.Settings, "invitation": facts.Invitations, "circuit": facts.Circuits,
	// The queue of a resource group is its sessions that wait, with why they do.
	"queue": facts.ResourceGroups,
}

type objectKey struct{ noun, id string }

// waiting is what is known of the changes of one object that a reader has not been told of.
type waiting struct {
	kind string // of the object as long as it is there; "" if nothing but its end is to be told
	gone []authz.Object
}

// objectQueue gathers changes for one reader: many changes of one object are one. A nil queue takes nothing.
type objectQueue struct {
	c chan struct{} // capacity 1: there is something to take

	mu      sync.Mutex
	waiting map[objectKey]waiting
	all     bool // too many: the reader looks at everything
}

func newObjectQueue() *objectQueue {
	return &objectQueue{c: make(chan struct{}, 1), waiting: map[objectKey]waiting{}}
}

func (q *objectQueue) ready() <-chan struct{} {
	if q == nil {
		return nil
	}
	return q.c
}

func (q *objectQueue) resync() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.overflow()
}

// overflow forgets all; mu is held.
func (q *objectQueue) overflow() {
	q.all = true
	clear(q.waiting)
	q.signal()
}

func (q *objectQueue) signal() {
	select {
	case q.c <- struct{}{}:
	default:
	}
}

func (q *objectQueue) add(rows []dbgen.ObjectChangesBySeqRow) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range rows {
		if q.all {
			return
		}
		k := objectKey{r.Noun, r.ID}
		w := q.waiting[k]
		switch {
		case r.Kind == ObjectDeleted:
			w.gone = append(w.gone, formerly(r))
		case w.kind == "":
			w.kind = r.Kind
		}
		q.waiting[k] = w
		if len(q.waiting) > maxObjectQueue || len(w.gone) > maxObjectQueue {
			q.overflow()
		}
	}
	q.signal()
}

// take empties the queue.
func (q *objectQueue) take() (changes map[objectKey]waiting, all bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	changes, all = q.waiting, q.all
	q.waiting, q.all = map[objectKey]waiting{}, false
	return changes, all
}

// formerly is what an object was when it was deleted, as far as it is known.
func formerly(r dbgen.ObjectChangesBySeqRow) authz.Object {
	o := authz.Object{OwnerRole: authz.Role(r.OwnerRole), Domain: r.DomainName}
	if r.Owner != nil {
		o.Owner = cluster.UserID(*r.Owner)
	}
	if r.ProjectID != nil {
		o.Project = cluster.ProjectID(*r.ProjectID)
	}
	if r.Noun == "keypair" {
		o.Keys = []cluster.AccessKey{cluster.AccessKey(r.ID)}
	}
	return o
}

// readObjects reads changes by their numbers and spreads them.
func (h *hub) readObjects(ctx context.Context, seqs []int64) error {
	slices.Sort(seqs)
	for page := range slices.Chunk(seqs, eventPage) {
		rows, err := h.store.ObjectChangesBySeq(ctx, page)
		if err != nil {
			return fmt.Errorf("read changes of objects: %w", err)
		}
		h.mu.Lock()
		for s := range h.subs {
			s.objects.add(rows)
		}
		h.mu.Unlock()
	}
	return nil
}

// visible are the changes that the actor may know of: those of objects that they may see now, and the end of those that they might see.
func (s *Service) visible(ctx context.Context, a authz.Actor, changes map[objectKey]waiting, all bool) ([]ObjectChange, error) {
	if all {
		return []ObjectChange{{Kind: ObjectsResync}}, nil
	}
	byNoun := map[string][]string{}
	for k := range changes {
		byNoun[k.noun] = append(byNoun[k.noun], k.id)
	}
	var out []ObjectChange
	for _, noun := range slices.Sorted(maps.Keys(byNoun)) {
		source, known := objectSources[noun]
		if !known {
			continue
		}
		ids := byNoun[noun]
		slices.Sort(ids)
		seen, err := s.seen(ctx, a, source, ids)
		if err != nil {
			return nil, fmt.Errorf("find which changed objects of kind %s are visible: %w", noun, err)
		}
		for _, id := range ids {
			w := changes[objectKey{noun, id}]
			ended := slices.ContainsFunc(w.gone, func(o authz.Object) bool { return source.Kind.May(a, authz.See, o) })
			switch {
			case slices.Contains(seen, id):
				out = append(out, ObjectChange{noun, id, cmp.Or(w.kind, ObjectChanged)})
			case ended:
				out = append(out, ObjectChange{noun, id, ObjectDeleted})
			}
		}
	}
	return out, nil
}

// seen are those of the objects that are there and that the actor may see.
func (s *Service) seen(ctx context.Context, a authz.Actor, source facts.Source, ids []string) ([]string, error) {
	var args []any
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	column, list := source.Key, "::text[]"
	if id, isUUID := strings.CutSuffix(source.Key, "::text"); isUUID { // as the index of the table has it
		column, list = id, "::uuid[]"
	}
	sql := "SELECT " + source.Key + " FROM " + source.From + " WHERE " + column + " = ANY(" + arg(ids) + list + ") AND " +
		source.Where(a, authz.See, arg)
	rows, err := s.d.Store.DB().Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
