package session

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/scheduler"
)

// Created answers request.Session; Created is false when a live session was reused.
type Created struct {
	ID           cluster.SessionID
	Name         string
	Status       cluster.Status
	ServicePorts []ServicePort
	Created      bool
}

// Create validates the request, stores the session as PENDING and returns at once. A live session of the same
// name and image is returned instead unless NoReuse; Wait waits for what becomes of it. Requests that
// come at the same time share what they look up and their commit; each is answered after that.
func (s *Service) Create(ctx context.Context, a authz.Actor, r request.Session) (_ Created, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "session.create", r.Name)
	defer end(&err)
	audit.ActingFor(ctx, string(r.OwnerAccessKey))
	if err := authz.Changing(a, authz.AreaSessions); err != nil {
		return Created{}, err
	}
	c := &creation{actor: a, request: r}
	if err := s.creations.Do(ctx, c); err != nil {
		return Created{}, fmt.Errorf("create session %s: %w", r.Name, err)
	}
	return c.created, c.err
}

// draft authorises and validates a request and writes nothing. Without an error it returns either what to write or the
// live session that answers the request.
func (s *Service) draft(ctx context.Context, q *lookups, a authz.Actor, r request.Session) (*sessionPlan, *Created, error) {
	owner, err := tenancy.OwnerOf(a, r.OwnerAccessKey, func(key string) (dbgen.ActorByKeyRow, error) { return q.owner(ctx, key) })
	if err != nil {
		return nil, nil, err
	}
	if err := r.Check(); err != nil {
		return nil, nil, err
	}
	img, err := q.image(ctx, a, r.Image, r.Architecture)
	if err != nil {
		return nil, nil, err
	}
	if err := image.Runnable(tenancy.ActorOf(owner), img); err != nil {
		return nil, nil, err
	}
	if found, err := s.reuse(ctx, q, owner, r, img); err != nil || found != nil {
		return nil, found, err
	}
	p, err := s.planSession(ctx, q, a, owner, r, img)
	return p, nil, err
}

// reuse returns the live session of that name when the request may have it.
func (s *Service) reuse(ctx context.Context, q *lookups, owner dbgen.ActorByKeyRow, r request.Session, img dbgen.Image) (*Created, error) {
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
	case live.Image != img.Reference:
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
	return &Created{ID: st.ID, Name: st.Name, Status: st.Status, ServicePorts: st.ServicePorts}, nil
}

// sessionPlan is everything that the transaction writes.
type sessionPlan struct {
	session  newSession
	owner    dbgen.ActorByKeyRow
	image    dbgen.Image
	limits   limits
	services []ServicePort
}

// planSession validates the request against the cluster.
func (s *Service) planSession(ctx context.Context, q *lookups, a authz.Actor, owner dbgen.ActorByKeyRow, r request.Session,
	img dbgen.Image) (*sessionPlan, error) {
	project, err := s.projectFor(ctx, q, a, owner, r)
	if err != nil {
		return nil, err
	}
	limits, err := q.limits(ctx, owner.AccessKey)
	if err != nil {
		return nil, err
	}
	if err := limits.containers(r.Containers()); err != nil {
		return nil, err
	}
	priority, err := limits.priority(a, r.Priority)
	if err != nil {
		return nil, err
	}
	groups, agents, err := s.groupsFor(ctx, q, owner, project, r)
	if err != nil {
		return nil, err
	}
	parts, opts, groups, err := s.partsOf(ctx, q, partsRequest{actor: a, owner: owner, request: r, image: img, groups: groups, agents: agents,
		limits: limits, project: project})
	if err != nil {
		return nil, err
	}
	total := cluster.Slots{}
	for _, p := range parts {
		for slot, v := range p.slots {
			total[slot] += v * cluster.Amount(p.count)
		}
	}
	group, err := chooseGroup(groups, agents.rows, parts, total, r)
	if err != nil {
		return nil, err
	}
	if r.Type != cluster.System {
		tree, err := q.tree(ctx)
		if err != nil {
			return nil, err
		}
		if err := fits(tree, scheduler.Owner{AccessKey: cluster.AccessKey(owner.AccessKey), User: cluster.UserID(owner.UserID),
			Project: cluster.ProjectID(project.ID), Domain: owner.DomainName}, group, total); err != nil {
			return nil, err
		}
	}
	if err := limits.waiting(ctx, s.d.Store.Queries, owner.UserID, owner.AccessKey, total); err != nil {
		return nil, err // insertLimited decides; a dry run and what is refused anyway end here
	}
	designated, err := s.designated(ctx, a, r, groups)
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
	mounts, err := q.mounts(ctx, a, owner, project, r)
	if err != nil {
		return nil, err
	}
	script := r.BootstrapScript
	if script == nil {
		script = store.Optional(owner.BootstrapScript)
	}
	p := &sessionPlan{services: parts[0].services, owner: owner, image: img, limits: limits}
	p.session = newSession{
		ID: s.d.IDs(), Name: r.Name, Type: r.Type, Priority: int32(priority), ClusterMode: r.ClusterMode, ClusterSize: int32(r.Containers()),
		DomainName: owner.DomainName, ProjectID: project.ID, UserID: owner.UserID, AccessKey: owner.AccessKey, ResourceGroup: group,
		DesignatedAgents: designated, ImageID: img.ID, ImageDigest: img.Digest, Image: img.Reference, Tag: r.Tag, RequestedSlots: total,
		ResourceOpts: opts, Environ: r.Environ, StartupCommand: store.Optional(r.StartupCommand), BootstrapScript: script,
		CallbackURL: store.Optional(r.CallbackURL), StartsAt: starts,
		Kernels: make([]newKernel, 0, r.Containers()), DependsOn: depends, Preemptible: r.Preemptible == nil || *r.Preemptible, Mounts: mounts,
		RerunOnAgentLoss: r.RerunOnAgentLoss, Retries: int16(r.Retries),
	}
	if p.session.Environ == nil {
		p.session.Environ = map[string]string{}
	}
	if r.BatchTimeout > 0 {
		ms := r.BatchTimeout.Milliseconds()
		p.session.BatchTimeoutMs = &ms
	}
	if r.Lease > 0 {
		p.session.LeaseSeconds = new(int32(r.Lease / time.Second))
	}
	for _, part := range parts {
		for i := range part.count {
			p.session.Kernels = append(p.session.Kernels, part.kernel(s.d.IDs(), i, img))
		}
	}
	p.session.Roles = newRoles(r)
	return p, nil
}

// newRoles is what is stored of a request's roles beside their kernels.
func newRoles(r request.Session) []newRole {
	var out []newRole
	for _, role := range r.Roles {
		n := newRole{Role: role.Name, BootstrapScript: role.BootstrapScript}
		if role.HasEnviron() {
			n.Environ = new(r.As(role).Environ)
		}
		if n.Environ != nil || n.BootstrapScript != nil {
			out = append(out, n)
		}
	}
	return out
}

// projectFor finds the request's project: one of the owner's, or any of the domain for superadmins.
func (s *Service) projectFor(ctx context.Context, q *lookups, a authz.Actor, owner dbgen.ActorByKeyRow,
	r request.Session) (dbgen.Project, error) {
	if r.Domain != "" && r.Domain != owner.DomainName {
		return dbgen.Project{}, authz.NotFound("domain", r.Domain)
	}
	ref := r.Project
	if ref == "" {
		ref = tenancy.Default
	}
	p, err := q.project(ctx, ref, owner.DomainName)
	if err != nil {
		return p, err
	}
	o := authz.Object{Name: ref, Project: cluster.ProjectID(p.ID), Domain: p.DomainName}
	usable := authz.Projects.May(tenancy.ActorOf(owner).Within(a.Scope), authz.Use, o) || authz.Projects.May(a, authz.Administer, o)
	if !p.IsActive || p.DomainName != owner.DomainName || !usable {
		return p, authz.NotFound(projectNoun, ref)
	}
	return p, nil
}

// groupsFor returns the resource groups that the request may use and their agents.
func (s *Service) groupsFor(ctx context.Context, q *lookups, owner dbgen.ActorByKeyRow, project dbgen.Project,
	r request.Session) ([]string, *groupAgents, error) {
	rows, err := q.groups(ctx, owner, project.ID)
	if err != nil {
		return nil, nil, fmt.Errorf("read resource groups: %w", err)
	}
	if rows, err = withHostNetwork(rows, r); err != nil {
		return nil, nil, err
	}
	var names []string
	var other *dbgen.ResourceGroup // one that does not run sessions of this type
	for i, g := range rows {
		switch {
		case !g.IsPublic || r.ResourceGroup != "" && r.ResourceGroup != g.Name:
		case !resource.Takes(g, r.Type):
			other = &rows[i]
		default:
			names = append(names, g.Name)
		}
	}
	if len(names) == 0 && other != nil {
		return nil, nil, fault.Invalidf("resource group %s runs %s sessions, not %s", other.Name, typeNames(resource.SessionTypes(*other)),
			r.Type).
			WithNext("choose another resource group or session type")
	}
	if len(names) == 0 {
		if r.ResourceGroup != "" {
			return nil, nil, authz.NotFound(groupNoun, r.ResourceGroup)
		}
		return nil, nil, fault.NotFoundf("no resource group may be used with project %s", project.Name).
			WithData(map[string]string{"object": groupNoun}).WithNext("ask an administrator to associate one with your domain or project")
	}
	agents, err := q.agents(ctx, names)
	if err != nil {
		return nil, nil, fmt.Errorf("read agents: %w", err)
	}
	return names, agents, nil
}

func slotKinds(agents []dbgen.AgentShapesRow) map[cluster.SlotName]cluster.SlotKind {
	reports := make([]map[string]string, len(agents))
	for i, a := range agents {
		reports[i] = a.SlotKinds
	}
	return cluster.AgreedKinds(reports)
}

// part is the kernels of a session that are alike: first those without a role, then those of each role.
type part struct {
	role     string // "" are main and sub
	count    int
	image    dbgen.Image
	slots    cluster.Slots // of one kernel
	shmem    int64         // bytes; 0 is the session's
	services []ServicePort // with the ports that are open from the start
	preopen  []int32
}

// kernel is what is stored of the kernel that has the number i among those of the part, in a session of an image.
func (p part) kernel(id string, i int, session dbgen.Image) newKernel {
	k := newKernel{ID: id, Architecture: p.image.Architecture, Registry: p.image.Registry, RequestedSlots: p.slots, ServicePorts: p.services,
		PreopenPorts: p.preopen, ShmemBytes: p.shmem}
	if p.role != "" {
		k.Role, k.Idx = p.role, int32(i+1)
	}
	if p.image.ID != session.ID {
		k.Image, k.ImageID, k.ImageDigest = p.image.Reference, p.image.ID, p.image.Digest
	}
	return k
}

// partsRequest is what the parts of a session follow from.
type partsRequest struct {
	actor   authz.Actor
	owner   dbgen.ActorByKeyRow
	request request.Session
	image   dbgen.Image // of the session itself
	groups  []string
	agents  *groupAgents
	limits  limits
	project dbgen.Project
}

// partsOf reads what the kernels of a request are to be. opts are the resource options of the session itself, groups those of the request's
// resource groups where all of its amounts mean the same.
func (s *Service) partsOf(ctx context.Context, q *lookups, r partsRequest) (parts []part, opts map[string]string, groups []string,
	err error) {
	own := part{count: r.request.ClusterSize, image: r.image}
	if opts, err = s.fillPart(ctx, q, &r, r.request, &own); err != nil {
		return nil, nil, nil, err
	}
	parts = append(parts, own)
	for _, role := range r.request.Roles {
		p := part{role: role.Name, count: role.Count, image: r.image}
		asked := r.request.As(role)
		if role.Image != "" || role.Architecture != "" {
			if p.image, err = q.image(ctx, r.actor, asked.Image, asked.Architecture); err == nil {
				err = image.Runnable(tenancy.ActorOf(r.owner), p.image)
			}
			if err != nil {
				return nil, nil, nil, fmt.Errorf("role %s: %w", role.Name, err)
			}
		}
		if r.request.ClusterMode == "single-node" && p.image.Architecture != r.image.Architecture {
			return nil, nil, nil, fault.Invalidf("role %s needs an agent of architecture %s, and the session one of %s", role.Name,
				p.image.Architecture, r.image.Architecture).WithNext("ask for cluster_mode multi-node, or choose images of one architecture")
		}
		theirs, err := s.fillPart(ctx, q, &r, asked, &p)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("role %s: %w", role.Name, err)
		}
		if theirs["isolation"] != opts["isolation"] {
			return nil, nil, nil, fault.Invalidf("role %s asks for another isolation of accelerators than the session", role.Name).
				WithNext("put isolation into the resource_opts of the session: it is for all its kernels")
		}
		if theirs["network"] != opts["network"] {
			return nil, nil, nil, fault.Invalidf("role %s asks for another network than the session", role.Name).
				WithNext("put network into the resource_opts of the session: it is for all its kernels")
		}
		if theirs["shmem"] != opts["shmem"] {
			if p.shmem, err = strconv.ParseInt(theirs["shmem"], 10, 64); err != nil {
				return nil, nil, nil, fmt.Errorf("read the shared memory of role %s: %w", role.Name, err)
			}
		}
		parts = append(parts, p)
	}
	return parts, opts, r.groups, nil
}

// fillPart says what each kernel of a part holds and serves, and leaves the resource groups where that means the same.
func (s *Service) fillPart(ctx context.Context, q *lookups, r *partsRequest, asked request.Session,
	p *part) (opts map[string]string, err error) {
	if asked.Resources, r.groups, err = q.realSlots(ctx, asked.Resources, r.groups, r.agents.rows, p.image.Architecture); err != nil {
		return nil, err
	}
	defaults, err := q.defaults(ctx, asked, r.groups, r.limits, r.project, p.image.Architecture, r.agents.rows)
	if err != nil {
		return nil, err
	}
	if p.slots, opts, err = asked.Slots(p.image, r.agents.kinds, defaults); err != nil {
		return nil, err
	}
	p.services = parseServicePorts(p.image.Labels[image.LabelServicePorts])
	if p.preopen, err = asked.Preopen(appPorts(p.services)); err != nil {
		return nil, err
	}
	for _, port := range p.preopen {
		p.services = append(p.services, ServicePort{Name: fmt.Sprint(port), Protocol: "preopen", Ports: []int{int(port)}})
	}
	return opts, nil
}

// chooseGroup picks the first group where the session could run one day. Groups without known agents of the architecture
// come after those that certainly could. When all are too small the session waits in the first one for an agent to come, or with
// FailIfImpossible is refused with words that name the slot and the amount.
func chooseGroup(groups []string, agents []dbgen.AgentShapesRow, parts []part, total cluster.Slots, r request.Session) (string, error) {
	if r.ClusterMode == "single-node" {
		parts = []part{{image: parts[0].image, slots: total}}
	}
	maybe, refusal := "", error(nil)
	for _, g := range groups {
		known, err := true, error(nil)
		for _, p := range parts {
			var here []dbgen.AgentShapesRow
			for _, a := range agents {
				if a.ResourceGroup == g && a.Architecture == p.image.Architecture && len(a.Capacity) > 0 {
					here = append(here, a)
				}
			}
			known = known && len(here) > 0
			if e := request.TooBig(p.slots, p.image.Architecture, here); e != nil && err == nil {
				err = e
				if p.role != "" {
					err = fmt.Errorf("role %s: %w", p.role, e)
				}
			}
		}
		switch {
		case err == nil && known:
			return g, nil
		case err == nil && maybe == "":
			maybe = g
		case err != nil && refusal == nil:
			refusal = err
		}
	}
	switch {
	case refusal == nil:
		return maybe, nil
	case r.FailIfImpossible:
		return "", refusal
	case maybe != "":
		return maybe, nil
	}
	return groups[0], nil
}

// designated checks the agents that the session is to run on.
func (s *Service) designated(ctx context.Context, a authz.Actor, r request.Session, groups []string) ([]string, error) {
	out := []string{}
	if len(r.Agents) == 0 {
		return out, nil
	}
	if err := authz.Agents.Need(a, authz.Administer, authz.Object{}, "choose agents"); err != nil {
		return nil, err
	}
	agents, err := s.d.Store.LargestAgents(ctx, groups)
	if err != nil {
		return nil, fmt.Errorf("read agents: %w", err)
	}
	for _, id := range r.Agents {
		if !slices.ContainsFunc(agents, func(x dbgen.LargestAgentsRow) bool { return x.ID == id }) {
			return nil, authz.NotFound(agentNoun, id)
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
			return nil, fault.Invalidf("a dependency is empty")
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
		return nil, authz.NotFound(noun, strings.Join(missing, ", "))
	}
	return out, nil
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

func typeNames(types []cluster.SessionType) string {
	out := make([]string, len(types))
	for i, t := range types {
		out[i] = string(t)
	}
	return strings.Join(out, ", ")
}

// parseServicePorts reads the label that declares apps.
func parseServicePorts(label string) []ServicePort {
	out := []ServicePort{}
	for _, p := range cluster.ParseServicePorts(label) {
		out = append(out, ServicePort{Name: p.Name, Protocol: p.Protocol, Ports: p.Ports})
	}
	return out
}
