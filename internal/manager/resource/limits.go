package resource

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/resource/limit"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/scheduler"
)

// Kinds of lines of Limits: what may run together, what may wait together, and what one session may be.
const (
	LimitOfRunning = "running"
	LimitOfWaiting = "waiting"
	LimitOfSession = "session"
)

// levelGroup is the level of the agents: what they have is all that there is.
const levelGroup = "resource group"

// Limits is what somebody may start now with a keypair in a project.
type Limits struct {
	User, AccessKey, Project, Domain string
	// ResourceGroups are those that were looked at: all that the owner may use, or one.
	ResourceGroups []string
	Lines          []LimitLine
}

// LimitLine is one thing with its limits. Binds is the index of the level that leaves least, -1 where nothing limits it.
type LimitLine struct {
	Kind   string
	What   string // a slot, or the name of a count
	Slot   bool
	Levels []LimitLevel
	Binds  int
}

// LimitLevel is what one level says. Where Limited is false it has no limit; Hidden are numbers that administrators keep to themselves.
type LimitLevel struct {
	Level, Name, Policy string
	Limited, Hidden     bool
	Limit, Used, Left   cluster.Amount
}

// Limits tells what a user ("" is the actor) may start now, in a project and a resource group ("" is every one that they may use),
// and which level and policy says so. Users ask about themselves, those who see a user about that user. The answer comes from the
// functions that decide when sessions start.
func (s *Service) Limits(ctx context.Context, a authz.Actor, user, project, resourceGroup string) (*Limits, error) {
	who, err := s.d.Tenancy.MainActor(ctx, a, user)
	if err != nil {
		return nil, err
	}
	if project == "" {
		project = tenancy.Default
	}
	p, err := s.d.Tenancy.VisibleProject(ctx, who, project, who.Domain)
	if err != nil {
		return nil, err
	}
	usable, err := s.Usable(ctx, who, cluster.ProjectID(p.ID))
	if err != nil {
		return nil, err
	}
	out := &Limits{User: who.Email, AccessKey: string(who.AccessKey), Project: p.Name, Domain: p.DomainName, ResourceGroups: []string{}}
	for _, g := range usable {
		if resourceGroup == "" || g.Name == resourceGroup {
			out.ResourceGroups = append(out.ResourceGroups, g.Name)
		}
	}
	if resourceGroup != "" && len(out.ResourceGroups) == 0 {
		return nil, authz.NotFound(groupNoun, resourceGroup)
	}
	hidden, err := s.hidesProjects(ctx, a, p, project)
	if err != nil {
		return nil, err
	}
	policies, err := s.d.Store.PoliciesOfOwner(ctx, out.AccessKey)
	if err != nil {
		return nil, fmt.Errorf("read resource policies of keypair %s: %w", out.AccessKey, err)
	}
	if err := s.runningLimits(ctx, who, p, policies, hidden, out); err != nil {
		return nil, err
	}
	if err := s.waitingLimits(ctx, who, policies, out); err != nil {
		return nil, err
	}
	sessionLimits(policies, out)
	return out, nil
}

// hidesProjects reports whether the totals of projects are hidden from the actor.
func (s *Service) hidesProjects(ctx context.Context, a authz.Actor, p dbgen.Project, name string) (hidden bool, err error) {
	if authz.Projects.May(a, authz.Change, tenancy.ProjectObject(p, name)) || authz.Cluster.May(a, authz.See, authz.Object{}) {
		return false, nil
	}
	return s.projectsHidden(ctx)
}

func (s *Service) projectsHidden(ctx context.Context) (hidden bool, err error) {
	raw, err := s.d.Store.GetSetting(ctx, settingHideProjects)
	if err == nil {
		err = json.Unmarshal(raw, &hidden)
	}
	if err != nil && !store.Missing(err) {
		return false, fmt.Errorf("read setting %s: %w", settingHideProjects, err)
	}
	return hidden, nil
}

// ProjectResourcesHidden tells what SetProjectResourcesHidden decided (superadmins, monitors).
func (s *Service) ProjectResourcesHidden(ctx context.Context, a authz.Actor) (bool, error) {
	if err := authz.Cluster.Need(a, authz.See, authz.Object{}, "look at settings of the cluster"); err != nil {
		return false, err
	}
	return s.projectsHidden(ctx)
}

// runningLimits adds what live sessions may hold together, up to what the agents have.
func (s *Service) runningLimits(
	ctx context.Context, who authz.Actor, p dbgen.Project, policies []dbgen.PoliciesOfOwnerRow, hidden bool, out *Limits,
) error {
	kinds, err := s.slotKinds(ctx)
	if err != nil {
		return err
	}
	names := make(map[cluster.SlotName]bool, len(kinds))
	of := []scheduler.Limited{scheduler.LiveSessions, scheduler.PrivateSessions}
	for n := range kinds {
		names[n] = true
	}
	for n := range names {
		of = append(of, scheduler.Limited(n))
	}
	slices.Sort(of[2:])
	only := ""
	if len(out.ResourceGroups) == 1 {
		only = out.ResourceGroups[0]
	}
	levels, err := limit.Levels(ctx, s.d.Store.Queries, scheduler.Owner{AccessKey: who.AccessKey, User: who.UserID,
		Project: cluster.ProjectID(p.ID), Domain: p.DomainName}, only, names)
	if err != nil {
		return err
	}
	rows, err := s.d.Store.RoomOfAgents(ctx, out.ResourceGroups)
	if err != nil {
		return fmt.Errorf("read agents: %w", err)
	}
	agents := scheduler.Level{Scope: scheduler.Scope{Kind: levelGroup}, Used: scheduler.Usage{Slots: cluster.Slots{}},
		Quota: &scheduler.Quota{Slots: cluster.Slots{}, Sessions: -1, Private: -1}}
	for n := range names {
		agents.Quota.Slots[n] = 0
	}
	for _, r := range rows {
		if !r.Usable {
			continue
		}
		var occupied cluster.Slots
		if err := json.Unmarshal(r.Occupied, &occupied); err != nil {
			return fmt.Errorf("read what agent %s holds: %w", r.ID, err)
		}
		agents.Quota.Slots = agents.Quota.Slots.Add(r.Capacity)
		agents.Used.Slots = agents.Used.Slots.Add(occupied)
	}
	for _, b := range scheduler.Bounds(append(levels, agents), of) {
		line := LimitLine{Kind: LimitOfRunning, What: string(b.What), Binds: b.Binds, Levels: []LimitLevel{},
			Slot: b.What != scheduler.LiveSessions && b.What != scheduler.PrivateSessions}
		for _, l := range b.Levels {
			v := LimitLevel{Level: string(l.Scope.Kind), Limited: l.Limited, Limit: l.Limit, Used: l.Used, Left: l.Left}
			switch l.Scope.Kind {
			case scheduler.ScopeUser:
				v.Name, v.Policy = who.Email, policyNamed(policies, true)
			case scheduler.ScopeKeypair:
				v.Name, v.Policy = string(who.AccessKey), policyNamed(policies, false)
			case scheduler.ScopeProject:
				v.Name, v.Hidden = p.Name, hidden
			case scheduler.ScopeDomain:
				v.Name, v.Hidden = p.DomainName, hidden
			case scheduler.ScopeLevel:
				v.Name, v.Hidden = l.Scope.ID, hidden
			case levelGroup:
				v.Name = only
			}
			if v.Hidden {
				v.Limit, v.Used, v.Left = 0, 0, 0
			}
			line.Levels = append(line.Levels, v)
		}
		out.Lines = append(out.Lines, line)
	}
	return nil
}

// policyNamed is the policy of the main keypair, which holds for the user, or that of the keypair itself.
func policyNamed(policies []dbgen.PoliciesOfOwnerRow, ofUser bool) string {
	for _, r := range policies {
		if r.OfUser == ofUser {
			return r.KeypairResourcePolicy.Name
		}
	}
	return ""
}

// waitingLimits adds what may wait together.
func (s *Service) waitingLimits(ctx context.Context, who authz.Actor, policies []dbgen.PoliciesOfOwnerRow, out *Limits) error {
	var levels []scheduler.Level
	var names []string
	of := []scheduler.Limited{scheduler.LiveSessions}
	for _, r := range policies {
		key, kind := new(string(who.AccessKey)), scheduler.ScopeKeypair
		if r.OfUser {
			key, kind = nil, scheduler.ScopeUser
		}
		n, err := s.d.Store.WaitingOf(ctx, string(who.UserID), key)
		if err != nil {
			return fmt.Errorf("count waiting sessions: %w", err)
		}
		rows, err := s.d.Store.WaitingSlotsOf(ctx, string(who.UserID), key)
		if err != nil {
			return fmt.Errorf("sum up waiting sessions: %w", err)
		}
		l := scheduler.Level{Scope: scheduler.Scope{Kind: kind}, Quota: WaitingQuota(r.KeypairResourcePolicy),
			Used: scheduler.Usage{Sessions: int(n), Slots: cluster.Slots{}}}
		for _, r := range rows {
			l.Used.Slots[cluster.SlotName(r.Slot)] = cluster.Amount(r.Amount)
		}
		for _, slot := range l.Quota.Slots.Names() {
			if !slices.Contains(of, scheduler.Limited(slot)) {
				of = append(of, scheduler.Limited(slot))
			}
		}
		levels, names = append(levels, l), append(names, r.KeypairResourcePolicy.Name)
	}
	for _, b := range scheduler.Bounds(levels, of) {
		line := LimitLine{Kind: LimitOfWaiting, What: string(b.What), Binds: b.Binds, Levels: []LimitLevel{}, Slot: true}
		if b.What == scheduler.LiveSessions {
			line.What, line.Slot = "waiting sessions", false
		}
		for i, l := range b.Levels {
			v := LimitLevel{Level: string(l.Scope.Kind), Name: who.Email, Policy: names[i], Limited: l.Limited, Limit: l.Limit, Used: l.Used,
				Left: l.Left}
			if l.Scope.Kind == scheduler.ScopeKeypair {
				v.Name = string(who.AccessKey)
			}
			line.Levels = append(line.Levels, v)
		}
		out.Lines = append(out.Lines, line)
	}
	return nil
}

// WaitingQuota is what a policy allows to wait together.
func WaitingQuota(p dbgen.KeypairResourcePolicy) *scheduler.Quota {
	q := &scheduler.Quota{Name: p.Name, Sessions: -1, Private: -1, Slots: p.MaxPendingSessionResourceSlots}
	if p.MaxPendingSessionCount != nil {
		q.Sessions = int(*p.MaxPendingSessionCount)
	}
	return q
}

// sessionLimits adds what one session may be.
func sessionLimits(policies []dbgen.PoliciesOfOwnerRow, out *Limits) {
	for _, c := range []struct {
		what string
		of   func(dbgen.KeypairResourcePolicy) (int64, bool)
	}{
		{"containers", func(p dbgen.KeypairResourcePolicy) (int64, bool) {
			return int64(p.MaxContainersPerSession), p.MaxContainersPerSession > 0
		}},
		{"priority", func(p dbgen.KeypairResourcePolicy) (int64, bool) {
			if p.MaxPriority == nil {
				return 0, false
			}
			return int64(*p.MaxPriority), true
		}},
		{"seconds of life", func(p dbgen.KeypairResourcePolicy) (int64, bool) {
			return int64(p.MaxSessionLifetime), p.MaxSessionLifetime > 0
		}},
		{"idle seconds", func(p dbgen.KeypairResourcePolicy) (int64, bool) { return p.IdleTimeout, p.IdleTimeout > 0 }},
	} {
		line := LimitLine{Kind: LimitOfSession, What: c.what, Binds: -1, Levels: []LimitLevel{}}
		for i, r := range policies {
			v := LimitLevel{Level: string(scheduler.ScopeKeypair), Name: out.AccessKey, Policy: r.KeypairResourcePolicy.Name}
			if r.OfUser {
				v.Level, v.Name = string(scheduler.ScopeUser), out.User
			}
			var n int64
			if n, v.Limited = c.of(r.KeypairResourcePolicy); v.Limited {
				v.Limit = cluster.Whole(n)
				v.Left = v.Limit
				if line.Binds < 0 || v.Limit < line.Levels[line.Binds].Limit {
					line.Binds = i
				}
			}
			line.Levels = append(line.Levels, v)
		}
		out.Lines = append(out.Lines, line)
	}
}
