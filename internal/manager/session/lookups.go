package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/resource/limit"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// lookups remembers what was read for some requests for sessions that are checked together, so that a crowd of equal ones
// reads it once. It lives for one batch: what a request sees is never older than the request.
type lookups struct {
	s        *Service
	owners   memo[string, dbgen.ActorByKeyRow]
	images   memo[string, []dbgen.FindImagesRow]
	lives    memo[[2]string, []dbgen.LiveSessionsNamedRow]
	projects memo[[2]string, dbgen.Project]
	policies memo[string, limits]
	allowed  memo[[3]string, []dbgen.ResourceGroup]
	largest  memo[string, *groupAgents]
	presets  memo[string, []dbgen.ResourcePreset]
	quotas   memo[struct{}, *limit.Tree]
	aliases  memo[struct{}, resource.Aliases]
	// automatic are the mounts of sessions that name no folder, by access key, API token, project and type.
	automatic memo[[4]string, []cluster.FolderMount]
}

// groupAgents are the agents of some resource groups, those that are alike as one, and the kinds of their slots.
type groupAgents struct {
	rows  []dbgen.AgentShapesRow
	kinds map[cluster.SlotName]cluster.SlotKind
}

func (s *Service) lookups() *lookups { return &lookups{s: s} }

// memo keeps answers, failures too.
type memo[K comparable, V any] struct{ m map[K]answer[V] }

type answer[V any] struct {
	value V
	err   error
}

func (m *memo[K, V]) get(key K, find func() (V, error)) (V, error) {
	a, ok := m.m[key]
	if !ok {
		a.value, a.err = find()
		if m.m == nil {
			m.m = map[K]answer[V]{}
		}
		m.m[key] = a
	}
	return a.value, a.err
}

func (q *lookups) owner(ctx context.Context, key string) (dbgen.ActorByKeyRow, error) {
	return q.owners.get(key, func() (dbgen.ActorByKeyRow, error) { return q.s.d.Store.ActorByKey(ctx, key) })
}

// image finds the image that a reference means.
func (q *lookups) image(ctx context.Context, a authz.Actor, ref, architecture string) (dbgen.Image, error) {
	if !image.MayBeReference(ref) {
		return dbgen.Image{}, image.NotFound(ref)
	}
	rows, err := q.images.get(ref, func() ([]dbgen.FindImagesRow, error) { return q.s.d.Store.FindImages(ctx, ref) })
	if err != nil {
		return dbgen.Image{}, fmt.Errorf("find image %q: %w", ref, err)
	}
	return image.Choose(a, rows, ref, architecture)
}

// live finds the live session of a name.
func (q *lookups) live(ctx context.Context, key, name string) (row dbgen.LiveSessionsNamedRow, found bool, err error) {
	rows, err := q.lives.get([2]string{key, name}, func() ([]dbgen.LiveSessionsNamedRow, error) {
		return q.s.d.Store.LiveSessionsNamed(ctx, []string{key}, []string{name})
	})
	if err != nil || len(rows) == 0 {
		return row, false, err
	}
	return rows[0], true, nil
}

// findLive looks for all the names of a batch at once. A failure is left to those who ask for one.
func (q *lookups) findLive(ctx context.Context, batch []*creation) {
	if len(batch) < 2 {
		return
	}
	var keys, names []string
	for _, c := range batch {
		key := c.request.OwnerAccessKey
		if key == "" {
			key = c.actor.AccessKey
		}
		if cluster.CheckSessionName(c.request.Name) != nil {
			continue // it will be refused; PostgreSQL might refuse all for it
		}
		keys, names = append(keys, string(key)), append(names, c.request.Name)
	}
	rows, err := q.s.d.Store.LiveSessionsNamed(ctx, keys, names)
	if err != nil {
		return
	}
	q.lives.m = make(map[[2]string]answer[[]dbgen.LiveSessionsNamedRow], len(keys))
	for i := range keys {
		q.lives.m[[2]string{keys[i], names[i]}] = answer[[]dbgen.LiveSessionsNamedRow]{}
	}
	for _, r := range rows {
		q.lives.m[[2]string{r.AccessKey, r.Name}] = answer[[]dbgen.LiveSessionsNamedRow]{value: []dbgen.LiveSessionsNamedRow{r}}
	}
}

func (q *lookups) project(ctx context.Context, ref, domain string) (dbgen.Project, error) {
	return q.projects.get([2]string{ref, domain}, func() (dbgen.Project, error) { return q.s.d.Tenancy.FindProject(ctx, ref, domain) })
}

func (q *lookups) limits(ctx context.Context, key string) (limits, error) {
	return q.policies.get(key, func() (limits, error) { return q.s.limitsOf(ctx, key) })
}

// tree is the hierarchical quotas.
func (q *lookups) tree(ctx context.Context) (*limit.Tree, error) {
	return q.quotas.get(struct{}{}, func() (*limit.Tree, error) { return limit.ReadTree(ctx, q.s.d.Store.Queries) })
}

func (q *lookups) groups(ctx context.Context, owner dbgen.ActorByKeyRow, project string) ([]dbgen.ResourceGroup, error) {
	return q.allowed.get([3]string{owner.DomainName, project, owner.AccessKey}, func() ([]dbgen.ResourceGroup, error) {
		return q.s.d.Resource.Usable(ctx, tenancy.ActorOf(owner), cluster.ProjectID(project))
	})
}

func (q *lookups) agents(ctx context.Context, groups []string) (*groupAgents, error) {
	return q.largest.get(strings.Join(groups, "\x1f"), func() (*groupAgents, error) {
		rows, err := q.s.d.Store.AgentShapes(ctx, groups)
		return &groupAgents{rows: rows, kinds: slotKinds(rows)}, err
	})
}

// realSlots replaces aliases such as gpu in requested amounts by slots that agents have, and leaves the resource groups where they mean
// the same.
func (q *lookups) realSlots(ctx context.Context, amounts map[string]string, groups []string, agents []dbgen.AgentShapesRow,
	architecture string) (map[string]string, []string, error) {
	kinds := slotKinds(agents)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(amounts)), func(name string) bool { return kinds[cluster.SlotName(name)] == "" }) {
		return amounts, groups, nil
	}
	aliases, err := q.aliases.get(struct{}{}, func() (resource.Aliases, error) { return resource.ReadAliases(ctx, q.s.d.Store) })
	if err != nil {
		return nil, nil, err
	}
	offers := make([]resource.Offer, len(groups))
	for i, g := range groups {
		here := slices.DeleteFunc(slices.Clone(agents), func(a dbgen.AgentShapesRow) bool {
			return a.ResourceGroup != g || architecture != "" && a.Architecture != architecture
		})
		offers[i] = resource.Offer{Group: g, Slots: slotKinds(here)}
	}
	return aliases.RealIn(amounts, offers)
}
