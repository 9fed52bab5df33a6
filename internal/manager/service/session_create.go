package service

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/service/node"
	"berth.dev/berth/internal/manager/service/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// CreateSession is a request for a session; see package request.
type CreateSession = request.Session

// CreatedSession answers CreateSession; Created is false when a live session was reused.
type CreatedSession struct {
	ID           cluster.SessionID
	Name         string
	Status       cluster.Status
	ServicePorts []ServicePort
	Created      bool
}

// CreateSession validates the request, stores the session as PENDING and returns at once. A live session of the same
// name and image is returned instead unless NoReuse; WaitSession waits for what becomes of it. Requests that
// come at the same time share what they look up and their commit; each is answered after that.
func (s *Service) CreateSession(ctx context.Context, a Actor, r CreateSession) (CreatedSession, error) {
	c := &creation{actor: a, request: r}
	if err := s.together().Do(ctx, c); err != nil {
		return CreatedSession{}, fmt.Errorf("create session %s: %w", r.Name, err)
	}
	return c.created, c.err
}

// draft authorises and validates a request and writes nothing. Without an error it returns either what to write or the
// live session that answers the request.
func (s *Service) draft(ctx context.Context, q *lookups, a Actor, r CreateSession) (*sessionPlan, *CreatedSession, error) {
	owner, err := s.ownerOf(a, r.OwnerAccessKey, func(key string) (dbgen.ActorByKeyRow, error) { return q.owner(ctx, key) })
	if err != nil {
		return nil, nil, err
	}
	if err := r.Check(); err != nil {
		return nil, nil, err
	}
	image, err := q.image(ctx, a, r.Image, r.Architecture)
	if err != nil {
		return nil, nil, err
	}
	if err := runnable(actorOf(owner), image); err != nil {
		return nil, nil, err
	}
	if found, err := s.reuse(ctx, q, owner, r, image); err != nil || found != nil {
		return nil, found, err
	}
	p, err := s.planSession(ctx, q, a, owner, r, image)
	return p, nil, err
}

// sessionOwner authorises the request and returns the actor whose quota and membership count.
func (s *Service) sessionOwner(ctx context.Context, a Actor, key cluster.AccessKey) (dbgen.ActorByKeyRow, error) {
	return s.ownerOf(a, key, func(key string) (dbgen.ActorByKeyRow, error) { return s.d.Store.ActorByKey(ctx, key) })
}

func (s *Service) ownerOf(a Actor, key cluster.AccessKey, find func(key string) (dbgen.ActorByKeyRow, error)) (dbgen.ActorByKeyRow, error) {
	var none dbgen.ActorByKeyRow
	if err := authz.Authenticated(a); err != nil {
		return none, err
	}
	if a.Monitor() {
		return none, fault.Deniedf("%s is a monitor and may not create sessions", a.Email).WithReason("generic-forbidden")
	}
	if key == "" {
		key = a.AccessKey
	}
	row, err := find(string(key))
	if err != nil && !store.Missing(err) {
		return none, fmt.Errorf("find owner: %w", err)
	}
	o := authz.Owned{Noun: "keypair", Name: string(key), AccessKey: key, UserID: cluster.UserID(row.UserID), Domain: row.DomainName, OwnerRole: authz.Role(row.Role)}
	if err := authz.ActFor(a, o); err != nil {
		return none, err // also for keys that do not exist: strangers learn nothing
	}
	if row.AccessKey == "" || !row.IsActive || row.UserStatus != "active" {
		return none, invalid("access key %s does not exist or is not active", key)
	}
	return row, nil
}

// reuse returns the live session of that name when the request may have it.
func (s *Service) reuse(ctx context.Context, q *lookups, owner dbgen.ActorByKeyRow, r CreateSession, image dbgen.Image) (*CreatedSession, error) {
	live, found, err := q.live(ctx, owner.AccessKey, r.Name)
	if err != nil {
		return nil, fmt.Errorf("look for a session called %s: %w", r.Name, err)
	}
	if !found {
		return nil, nil
	}
	why := ""
	switch {
	case r.NoReuse:
		why = "the request asks for a new one"
	case live.Image != image.Reference:
		why = "it runs another image, " + live.Image
	}
	if why != "" {
		return nil, fault.Conflictf("a session called %s exists already and %s", r.Name, why).WithReason("session-already-exists").
			WithData(map[string]any{"existingSessionId": live.ID}).WithNext("choose another name or destroy session %s first", r.Name)
	}
	st, err := s.sessionState(ctx, cluster.SessionID(live.ID))
	if err != nil {
		return nil, err
	}
	return &CreatedSession{ID: st.ID, Name: st.Name, Status: st.Status, ServicePorts: st.ServicePorts}, nil
}

// sessionPlan is everything that the transaction writes.
type sessionPlan struct {
	session  newSession
	owner    dbgen.ActorByKeyRow
	image    dbgen.Image
	slots    cluster.Slots // of each kernel
	limits   limits
	services []ServicePort
}

// planSession validates the request against the cluster.
func (s *Service) planSession(ctx context.Context, q *lookups, a Actor, owner dbgen.ActorByKeyRow, r CreateSession, image dbgen.Image) (*sessionPlan, error) {
	project, err := s.projectFor(ctx, q, a, owner, r)
	if err != nil {
		return nil, err
	}
	limits, err := q.limits(ctx, owner.AccessKey)
	if err != nil {
		return nil, err
	}
	if err := limits.containers(r.ClusterSize); err != nil {
		return nil, err
	}
	priority, err := limits.priority(r.Priority)
	if err != nil {
		return nil, err
	}
	groups, agents, err := s.groupsFor(ctx, q, owner, project, r)
	if err != nil {
		return nil, err
	}
	kinds := agents.kinds
	slots, opts, err := r.Slots(image, kinds)
	if err != nil {
		return nil, err
	}
	total := cluster.Slots{}
	for slot, v := range slots {
		total[slot] = v * cluster.Amount(r.ClusterSize)
	}
	group, err := chooseGroup(groups, agents.rows, slots, total, r, image)
	if err != nil {
		return nil, err
	}
	if err := limits.waiting(ctx, s.d.Store.Queries, owner.UserID, owner.AccessKey, total); err != nil {
		return nil, err // insertLimited decides; a dry run and what is refused anyway end here
	}
	designated, err := s.designated(a, r, agents.rows)
	if err != nil {
		return nil, err
	}
	services := parseServicePorts(image.Labels[node.LabelServicePorts])
	preopen, err := r.Preopen(appPorts(services))
	if err != nil {
		return nil, err
	}
	var starts *time.Time
	if r.StartsAt != "" {
		now, err := s.d.Store.SessionNow(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the clock: %w", err)
		}
		if starts, err = request.StartsAt(r.StartsAt, now); err != nil {
			return nil, err
		}
	}
	depends, err := s.dependencies(ctx, owner, r.Dependencies)
	if err != nil {
		return nil, err
	}
	mounts, err := q.mounts(ctx, owner, project, r)
	if err != nil {
		return nil, err
	}
	script := r.BootstrapScript
	if script == nil {
		script = optional(owner.BootstrapScript)
	}
	for _, p := range preopen {
		services = append(services, ServicePort{Name: fmt.Sprint(p), Protocol: "preopen", Ports: []int{int(p)}})
	}
	ports, err := json.Marshal(services)
	if err != nil {
		return nil, fmt.Errorf("encode service ports: %w", err)
	}
	each, err := json.Marshal(slots)
	if err != nil {
		return nil, fmt.Errorf("encode slots: %w", err)
	}
	p := &sessionPlan{services: services, owner: owner, image: image, slots: slots, limits: limits}
	p.session = newSession{
		ID: s.d.IDs(), Name: r.Name, Type: r.Type, Priority: int32(priority), ClusterMode: r.ClusterMode, ClusterSize: int32(r.ClusterSize),
		DomainName: owner.DomainName, ProjectID: project.ID, UserID: owner.UserID, AccessKey: owner.AccessKey, ResourceGroup: group,
		DesignatedAgents: designated, ImageID: image.ID, Image: image.Reference, Tag: r.Tag, RequestedSlots: total, ResourceOpts: opts,
		Environ: r.Environ, StartupCommand: optional(r.StartupCommand), BootstrapScript: script, CallbackUrl: optional(r.CallbackURL), StartsAt: starts,
		Architecture: image.Architecture, Registry: image.Registry, KernelSlots: each, ServicePorts: ports, PreopenPorts: preopen,
		KernelIDs: make([]string, r.ClusterSize), DependsOn: depends, Preemptible: r.Preemptible == nil || *r.Preemptible, Mounts: mounts,
	}
	if p.session.Environ == nil {
		p.session.Environ = map[string]string{}
	}
	if r.BatchTimeout > 0 {
		ms := r.BatchTimeout.Milliseconds()
		p.session.BatchTimeoutMs = &ms
	}
	for i := range p.session.KernelIDs {
		p.session.KernelIDs[i] = s.d.IDs()
	}
	return p, nil
}

// projectFor finds the request's project: one of the owner's, or any of the domain for superadmins.
func (s *Service) projectFor(ctx context.Context, q *lookups, a Actor, owner dbgen.ActorByKeyRow, r CreateSession) (dbgen.Project, error) {
	if r.Domain != "" && r.Domain != owner.DomainName {
		return dbgen.Project{}, authz.NotFound("domain", r.Domain)
	}
	ref := r.Project
	if ref == "" {
		ref = first
	}
	p, err := q.project(ctx, ref, owner.DomainName)
	if err != nil {
		return p, err
	}
	if !p.IsActive || p.DomainName != owner.DomainName || !slices.Contains(owner.Projects, p.ID) && !a.Superadmin() {
		return p, authz.NotFound("user group (or project)", ref)
	}
	return p, nil
}

// groupsFor returns the resource groups that the request may use and their agents.
func (s *Service) groupsFor(ctx context.Context, q *lookups, owner dbgen.ActorByKeyRow, project dbgen.Project, r CreateSession) ([]string, *groupAgents, error) {
	rows, err := q.groups(ctx, owner.DomainName, project.ID, owner.AccessKey)
	if err != nil {
		return nil, nil, fmt.Errorf("read resource groups: %w", err)
	}
	var names []string
	var other *dbgen.ResourceGroup // one that does not run sessions of this type
	for i, g := range rows {
		switch {
		case !g.IsPublic || r.ResourceGroup != "" && r.ResourceGroup != g.Name:
		case !takes(g, r.Type):
			other = &rows[i]
		default:
			names = append(names, g.Name)
		}
	}
	if len(names) == 0 && other != nil {
		return nil, nil, invalid("resource group %s runs %s sessions, not %s", other.Name, typeNames(groupTypes(*other)), r.Type).
			WithNext("choose another resource group or session type")
	}
	if len(names) == 0 {
		if r.ResourceGroup != "" {
			return nil, nil, authz.NotFound("scaling group", r.ResourceGroup)
		}
		return nil, nil, fault.NotFoundf("no resource group may be used with project %s", project.Name).WithReason("object-not-found").
			WithData(map[string]string{"object": "scaling group"}).WithNext("ask an administrator to associate one with your domain or project")
	}
	agents, err := q.agents(ctx, names)
	if err != nil {
		return nil, nil, fmt.Errorf("read agents: %w", err)
	}
	return names, agents, nil
}

func slotKinds(agents []dbgen.LargestAgentsRow) map[cluster.SlotName]cluster.SlotKind {
	kinds := map[cluster.SlotName]cluster.SlotKind{}
	for _, a := range agents {
		for k, v := range a.SlotKinds {
			kinds[cluster.SlotName(k)] = cluster.SlotKind(v)
		}
	}
	return kinds
}

// chooseGroup picks the first group where the session could run one day. Groups without known agents of the architecture
// come after those that certainly could; when all are too small the refusal names the slot and the amount.
func chooseGroup(groups []string, agents []dbgen.LargestAgentsRow, slots, total cluster.Slots, r CreateSession, image dbgen.Image) (string, error) {
	unit := slots
	if r.ClusterMode == "single-node" {
		unit = total
	}
	maybe, refusal := "", error(nil)
	for _, g := range groups {
		var here []dbgen.LargestAgentsRow
		for _, a := range agents {
			if a.ResourceGroup == g && a.Architecture == image.Architecture && len(a.Capacity) > 0 {
				here = append(here, a)
			}
		}
		err := request.TooBig(unit, image.Architecture, here)
		switch {
		case err == nil && len(here) > 0:
			return g, nil
		case err == nil && maybe == "":
			maybe = g
		case err != nil && refusal == nil:
			refusal = err
		}
	}
	if maybe != "" && refusal == nil {
		return maybe, nil
	}
	return "", refusal
}

// designated checks the agents that the session is to run on.
func (s *Service) designated(a Actor, r CreateSession, agents []dbgen.LargestAgentsRow) ([]string, error) {
	out := []string{}
	if len(r.Agents) == 0 {
		return out, nil
	}
	if err := authz.NeedSuperadmin(a, "choose agents"); err != nil {
		return nil, err
	}
	for _, id := range r.Agents {
		if !slices.ContainsFunc(agents, func(x dbgen.LargestAgentsRow) bool { return x.ID == id }) {
			return nil, authz.NotFound("agent instance", id)
		}
		out = append(out, id)
	}
	return out, nil
}

// dependencies finds the owner's sessions that must succeed first.
func (s *Service) dependencies(ctx context.Context, owner dbgen.ActorByKeyRow, refs []string) ([]string, error) {
	if len(refs) == 0 {
		return []string{}, nil
	}
	asked := make([]string, len(refs))
	for i, ref := range refs {
		if asked[i] = ref; ref == "" {
			return nil, invalid("a dependency is empty")
		}
		if id, ok := cluster.CanonicalUUID(ref); ok {
			asked[i] = id
		}
	}
	rows, err := s.d.Store.DependencyCandidates(ctx, asked, owner.UserID)
	if err != nil {
		return nil, fmt.Errorf("find dependencies: %w", err)
	}
	found := map[string]string{}
	for _, r := range rows {
		found[r.Ref] = r.ID
	}
	var out, missing []string
	for _, ref := range asked {
		id, ok := found[ref]
		if !ok {
			missing = append(missing, ref)
		} else if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	if len(missing) > 0 {
		return nil, authz.NotFound(sessionNoun, strings.Join(missing, ", "))
	}
	return out, nil
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// appPorts are the ports of an image's apps by app.
func appPorts(services []ServicePort) map[int]string {
	out := map[int]string{}
	for _, s := range services {
		for _, p := range s.Ports {
			out[p] = s.Name
		}
	}
	return out
}

func invalid(format string, args ...any) *fault.Error {
	return fault.Invalidf(format, args...).WithReason("invalid-api-params")
}
