package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/tenancy"
)

var errNoExplainer = fault.Unavailablef("this manager does not know the scheduler's mind").
	WithNext("look at the session's status_info instead")

// Explain says why a session waits (who may see it). One that does not wait has a Text and no Reason.
func (s *Service) Explain(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (Brief, Explanation, error) {
	r, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return Brief{}, Explanation{}, err
	}
	brief := Brief{ID: cluster.SessionID(r.ID), Name: r.Name, Status: r.Status}
	e, err := s.explain(ctx, brief.ID)
	if err != nil {
		return brief, e, err
	}
	if e.Status != "" {
		brief.Status = e.Status // it may have moved between the two looks
	}
	if brief.Status == cluster.Pending && len(e.Elsewhere) == 0 {
		return brief, e, nil
	}
	whole, err := s.loadSession(ctx, brief.ID)
	if err != nil {
		return brief, e, err
	}
	if brief.Status == cluster.Pending {
		err := s.adviseElsewhere(ctx, &e, PlanRequest{Type: whole.Type, AccessKey: whole.AccessKey, User: whole.UserID, Project: whole.ProjectID,
			Domain: whole.Domain})
		return brief, e, err
	}
	brief.Status, e.Status, e.Text = whole.Status, whole.Status, "it is "+string(whole.Status)
	if whole.StatusInfo != "" {
		e.Text += " (" + whole.StatusInfo + ")"
	}
	if err := s.explainDelivery(ctx, &e, whole); err != nil {
		return brief, e, err
	}
	return brief, e, nil
}

// explainDelivery adds that agents of a session's kernels have not been told what they should do.
func (s *Service) explainDelivery(ctx context.Context, e *Explanation, whole *Session) error {
	var agents []string
	for _, k := range whole.Kernels {
		if k.Agent != "" && (k.Status == cluster.Scheduled || k.Status == cluster.Terminating) {
			agents = append(agents, string(k.Agent))
		}
	}
	if len(agents) == 0 {
		return nil
	}
	late, err := s.d.Store.Undelivered(ctx, agents, deliveryPatience)
	if err != nil {
		return fmt.Errorf("see what agents have not been told: %w", err)
	}
	for _, u := range late {
		e.Text += fmt.Sprintf("; orders to agent %s have not been delivered since %s", u.AgentID, u.Since.UTC().Format(time.RFC3339))
	}
	return nil
}

// deliveryPatience is that of node.Agent: how long orders may be on their way.
const deliveryPatience = 20 * time.Second

func (s *Service) explain(ctx context.Context, id cluster.SessionID) (Explanation, error) {
	if s.d.Explainer == nil {
		return Explanation{}, errNoExplainer
	}
	e, err := s.d.Explainer.Explain(ctx, id)
	if err != nil {
		return Explanation{}, fmt.Errorf("explain session %s: %w", id, err)
	}
	return e, nil
}

// DryRun checks a request exactly as Create does and creates nothing: it says where the session would start
// now, or why it would wait. A live session that would be used again is named by Session and Status.
func (s *Service) DryRun(ctx context.Context, a authz.Actor, r request.Session) (Explanation, error) {
	draft, reused, err := s.draft(ctx, s.lookups(), a, r)
	if err != nil {
		return Explanation{}, err
	}
	if reused != nil {
		return Explanation{Session: reused.ID, Status: reused.Status, AsOf: s.d.Clock(),
			Text: fmt.Sprintf("session %s lives already and would be used again", reused.Name)}, nil
	}
	if s.d.Explainer == nil {
		return Explanation{}, errNoExplainer
	}
	e, err := s.d.Explainer.DryRun(ctx, draft.request())
	if err != nil {
		return Explanation{}, fmt.Errorf("plan session %s: %w", draft.session.Name, err)
	}
	e.Mounts = draft.session.Mounts
	err = s.adviseElsewhere(ctx, &e, draft.request())
	return e, err
}

// adviseElsewhere turns the groups that have room and that the owner of r may use into remedies, and forgets the others.
func (s *Service) adviseElsewhere(ctx context.Context, e *Explanation, r PlanRequest) error {
	room := e.Elsewhere
	e.Elsewhere = nil
	if len(room) == 0 {
		return nil
	}
	owner, err := s.d.Store.ActorByKey(ctx, string(r.AccessKey))
	if err != nil {
		return fmt.Errorf("find the owner of a session: %w", err)
	}
	groups, err := s.d.Resource.Usable(ctx, tenancy.ActorOf(owner), r.Project)
	if err != nil {
		return fmt.Errorf("read resource groups: %w", err)
	}
	for _, g := range groups {
		if g.IsPublic && resource.Takes(g, r.Type) && slices.Contains(room, g.Name) {
			e.Remedies = append(e.Remedies, "use resource group "+g.Name+", which has room")
		}
	}
	return nil
}

// request is the planned session as the scheduler sees it.
func (p *sessionPlan) request() PlanRequest {
	i := p.session
	r := PlanRequest{
		Group: i.ResourceGroup, Type: i.Type, AccessKey: cluster.AccessKey(i.AccessKey), User: cluster.UserID(i.UserID),
		Project: cluster.ProjectID(i.ProjectID), Domain: i.DomainName, Priority: int(i.Priority), SingleNode: i.ClusterMode == "single-node",
		Preemptible: i.Preemptible,
	}
	if i.StartsAt != nil {
		r.StartsAt = *i.StartsAt
	}
	if i.BatchTimeoutMs != nil {
		r.Lifetime = time.Duration(*i.BatchTimeoutMs) * time.Millisecond
	}
	for _, id := range i.DesignatedAgents {
		r.Designated = append(r.Designated, cluster.AgentID(id))
	}
	for _, id := range i.DependsOn {
		r.DependsOn = append(r.DependsOn, cluster.SessionID(id))
	}
	for _, m := range i.Mounts {
		r.Volumes = append(r.Volumes, m.Host)
	}
	slices.Sort(r.Volumes)
	r.Volumes = slices.Compact(r.Volumes)
	for _, k := range i.Kernels {
		r.Kernels = append(r.Kernels, PlanKernel{Role: k.Role, Slots: k.RequestedSlots, Architecture: k.Architecture,
			Image: cmp.Or(k.Image, i.Image), Isolation: cluster.Isolation(i.ResourceOpts["isolation"])})
	}
	return r
}

// SchedulerStatus describes the queue of every resource group (superadmins and monitors).
func (s *Service) SchedulerStatus(ctx context.Context, a authz.Actor) ([]GroupReport, error) {
	if err := authz.Cluster.Need(a, authz.See, authz.Object{}, "look at the scheduler"); err != nil {
		return nil, err
	}
	if s.d.Explainer == nil {
		return nil, errNoExplainer
	}
	queues, err := s.d.Explainer.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the scheduler: %w", err)
	}
	byName := map[string]GroupStatus{}
	for _, q := range queues {
		byName[q.Name] = q
	}
	groups, err := s.d.Resource.ListGroups(ctx, a, nil)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(groups))
	for i, g := range groups {
		names[i] = g.Name
	}
	agents, err := s.d.Store.LargestAgents(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read agents: %w", err)
	}
	ids := make([]string, len(agents))
	for i, g := range agents {
		ids[i] = g.ID
	}
	held, err := s.d.Store.OccupiedByAgent(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("sum up what agents hold: %w", err)
	}
	out := make([]GroupReport, len(groups))
	at := map[string]*GroupReport{}
	for i, g := range groups {
		out[i] = GroupReport{GroupStatus: byName[g.Name], Options: g.SchedulerOpts, Capacity: cluster.Slots{}, Occupied: cluster.Slots{}}
		if out[i].Name == "" { // made since the scheduler last looked
			out[i].GroupStatus = GroupStatus{Name: g.Name, Active: g.IsActive, Scheduler: g.Scheduler}
		}
		at[g.Name] = &out[i]
	}
	home := map[string]*GroupReport{}
	for _, g := range agents {
		r := at[g.ResourceGroup]
		if r == nil {
			continue
		}
		home[g.ID] = r
		switch {
		case g.Status != cluster.AgentAlive:
			r.Lost++
			continue
		case !g.Schedulable:
			r.Cordoned++
		default:
			r.Alive++
		}
		r.Capacity = r.Capacity.Add(g.Capacity)
	}
	for _, h := range held {
		if r := home[h.AgentID]; r != nil {
			r.Occupied[cluster.SlotName(h.Slot)] += cluster.Amount(h.Amount)
		}
	}
	return out, nil
}

// GroupReport is the scheduler's view of a group with what its agents have.
type GroupReport struct {
	GroupStatus
	// Options are the stored scheduler_opts.
	Options map[string]any
	// Alive agents take sessions, Cordoned ones only keep theirs, Lost ones are silent.
	Alive, Cordoned, Lost int
	// Capacity is that of alive and cordoned agents; Occupied counts lost agents' sessions too.
	Capacity, Occupied cluster.Slots
}
