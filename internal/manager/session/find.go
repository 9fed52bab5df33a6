package session

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// ownerByID authorises reading a session and returns whose it is.
func (s *Service) ownerByID(ctx context.Context, a authz.Actor, id cluster.SessionID) (dbgen.SessionOwnerRow, error) {
	r, err := s.d.Store.SessionOwner(ctx, string(id))
	if store.Missing(err) {
		return r, authz.NotFound(noun, string(id))
	}
	if err != nil {
		return r, fmt.Errorf("find session %s: %w", id, err)
	}
	return r, authz.Sessions.Check(a, authz.See, objectOf(r))
}

func objectOf(r dbgen.SessionOwnerRow) authz.Object {
	return authz.Object{Name: r.Name, Owner: cluster.UserID(r.UserID), OwnerRole: authz.Role(r.OwnerRole), Domain: r.DomainName,
		Project: cluster.ProjectID(r.ProjectID)}
}

// findOwner finds a session by id (any state) or by name (live ones of owner; "" is the actor) and
// authorises reading it.
func (s *Service) findOwner(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (dbgen.SessionOwnerRow, error) {
	if err := authz.Authenticated(a); err != nil {
		return dbgen.SessionOwnerRow{}, err
	}
	if id, ok := cluster.CanonicalUUID(ref); ok {
		r, err := s.ownerByID(ctx, a, cluster.SessionID(id))
		if err == nil || !fault.Is(err, fault.NotFound) {
			return r, err
		}
		// A name may look like an id.
	}
	if owner == "" {
		owner = a.AccessKey
	}
	rows, err := s.d.Store.SessionsNamed(ctx, string(owner), ref)
	switch {
	case err != nil:
		return dbgen.SessionOwnerRow{}, fmt.Errorf("find session %q: %w", ref, err)
	case len(rows) == 0:
		return dbgen.SessionOwnerRow{}, authz.NotFound(noun, ref)
	case len(rows) > 1:
		return dbgen.SessionOwnerRow{}, tooManySessions(ref, rows)
	}
	r, err := s.ownerByID(ctx, a, cluster.SessionID(rows[0].ID))
	if err != nil && fault.Is(err, fault.NotFound) {
		return r, authz.NotFound(noun, ref)
	}
	return r, err
}

// Changeable finds a session that the actor may change, by id or by name, for the nouns above.
func (s *Service) Changeable(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (dbgen.SessionOwnerRow, error) {
	r, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return r, err
	}
	return r, authz.Sessions.Check(a, authz.Change, objectOf(r))
}

func tooManySessions(ref string, rows []dbgen.SessionsNamedRow) error {
	matches := make([]map[string]any, len(rows))
	for i, r := range rows {
		matches[i] = map[string]any{"id": r.ID, "name": r.Name, "status": string(r.Status), "created_at": r.CreatedAt.UTC().
			Format(time.RFC3339Nano)}
	}
	return fault.NotFoundf("several sessions are called %q", ref).WithReason("too-many-sessions-matched").
		WithData(map[string]any{"matches": matches}).WithNext("name the session by its id")
}

// Find finds a session by id (any state) or by name (live ones of the owner; owner "" is the actor).
func (s *Service) Find(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (*Session, error) {
	r, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	return s.loadSession(ctx, cluster.SessionID(r.ID))
}

// Match lists live sessions of the actor whose id or name begins with the prefix.
func (s *Service) Match(ctx context.Context, a authz.Actor, prefix string) ([]Brief, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	rows, err := s.d.Store.MatchSessions(ctx, string(a.AccessKey), prefix)
	if err != nil {
		return nil, fmt.Errorf("match sessions: %w", err)
	}
	out := make([]Brief, len(rows))
	for i, r := range rows {
		out[i] = Brief{ID: cluster.SessionID(r.ID), Name: r.Name, Status: r.Status, CreatedAt: r.CreatedAt.UTC()}
	}
	return out, nil
}

// ByID reads several sessions for a data loader; those that the actor may not see are absent.
func (s *Service) ByID(ctx context.Context, a authz.Actor, ids []cluster.SessionID) (map[cluster.SessionID]*Session, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	out, owners, err := s.loadSessions(ctx, ids)
	if err != nil {
		return nil, err
	}
	for id, o := range owners {
		if !authz.Sessions.May(a, authz.See, o) {
			delete(out, id)
		}
	}
	return out, nil
}

func (s *Service) loadSession(ctx context.Context, id cluster.SessionID) (*Session, error) {
	all, _, err := s.loadSessions(ctx, []cluster.SessionID{id})
	if err != nil {
		return nil, err
	}
	if all[id] == nil {
		return nil, authz.NotFound(noun, string(id))
	}
	return all[id], nil
}

// loadSessions reads whole sessions in three queries, however many there are.
func (s *Service) loadSessions(ctx context.Context, ids []cluster.SessionID) (map[cluster.SessionID]*Session,
	map[cluster.SessionID]authz.Object, error) {
	texts := store.Texts(ids)
	rows, err := s.d.Store.SessionViews(ctx, texts)
	if err != nil {
		return nil, nil, fmt.Errorf("read sessions: %w", err)
	}
	kernels, err := s.d.Store.KernelViews(ctx, texts, []string{})
	if err != nil {
		return nil, nil, fmt.Errorf("read kernels: %w", err)
	}
	deps, err := s.d.Store.DependenciesOf(ctx, texts)
	if err != nil {
		return nil, nil, fmt.Errorf("read dependencies: %w", err)
	}
	out := make(map[cluster.SessionID]*Session, len(rows))
	owners := make(map[cluster.SessionID]authz.Object, len(rows))
	for _, r := range rows {
		v := sessionView(r)
		out[v.ID] = v
		owners[v.ID] = authz.Object{Name: v.Name, Owner: v.UserID, OwnerRole: authz.Role(r.OwnerRole), Domain: v.Domain,
			Project: v.ProjectID}
	}
	views := make([]Kernel, len(kernels))
	for i, k := range kernels {
		views[i] = kernelView(k)
	}
	s.addLive(ctx, views)
	for i, k := range views {
		v := out[k.SessionID]
		if v == nil {
			continue
		}
		k.ResourceOpts = optionsOf(kernels[i], v.ResourceOpts)
		v.Kernels = append(v.Kernels, k)
		if k.LocalRank == 0 {
			v.Architecture, v.Registry = k.Architecture, k.Registry
		}
		if k.Agent != "" {
			v.AgentIDs = append(v.AgentIDs, k.Agent)
		}
		v.OccupyingSlots = v.OccupyingSlots.Add(k.OccupiedSlots)
	}
	for _, d := range deps {
		if v := out[cluster.SessionID(d.SessionID)]; v != nil {
			v.DependsOn = append(v.DependsOn, Brief{ID: cluster.SessionID(d.ID), Name: d.Name, Status: d.Status, CreatedAt: d.CreatedAt.UTC()})
		}
	}
	return out, owners, nil
}

// addLive puts what agents measured into the views of running kernels.
func (s *Service) addLive(ctx context.Context, kernels []Kernel) {
	if s.d.Live == nil {
		return
	}
	var running []cluster.KernelID
	for _, k := range kernels {
		if k.Status == cluster.Running {
			running = append(running, k.ID)
		}
	}
	if len(running) == 0 {
		return
	}
	live := s.d.Live.Kernels(ctx, running)
	for i := range kernels {
		kernels[i].LiveStat = live[kernels[i].ID]
	}
}

func servicePorts(raw json.RawMessage) []ServicePort {
	out := []ServicePort{}
	if err := json.Unmarshal(raw, &out); err != nil {
		return []ServicePort{}
	}
	return out
}
