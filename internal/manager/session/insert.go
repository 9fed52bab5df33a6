package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// maxCreations is how many requests share a commit.
const maxCreations = 128

// creation is a request for a session on its way.
type creation struct {
	actor   authz.Actor
	request request.Session

	created Created
	err     error
}

// newSession is what is stored of a new session.
type newSession struct {
	ID, Name         string
	Type             cluster.SessionType
	Priority         int32
	ClusterMode      string
	ClusterSize      int32
	DomainName       string
	ProjectID        string
	UserID           string
	AccessKey        string
	ResourceGroup    string
	DesignatedAgents []string
	ImageID          string
	Image            string
	Tag              *string
	RequestedSlots   cluster.Slots
	ResourceOpts     map[string]string
	Environ          map[string]string
	StartupCommand   *string
	BootstrapScript  *string
	CallbackUrl      *string
	BatchTimeoutMs   *int64
	StartsAt         *time.Time
	Preemptible      bool
	Mounts           []cluster.FolderMount
	// Of each kernel:
	KernelIDs              []string
	Architecture, Registry string
	KernelSlots            json.RawMessage
	ServicePorts           json.RawMessage
	PreopenPorts           []int32
	DependsOn              []string
}

// create checks and stores some requests together. Those that fail leave the others alone.
func (s *Service) create(ctx context.Context, batch []*creation) {
	q := s.lookups()
	q.findLive(ctx, batch)
	var plans []*sessionPlan
	var of []*creation
	for _, c := range batch {
		p, reused, err := s.draft(ctx, q, c.actor, c.request)
		switch {
		case err != nil:
			c.err = err
		case reused != nil:
			c.created = *reused
		default:
			if p.limits.ofWaiting() || len(p.session.Mounts) > 0 {
				stored, err := s.insertAlone(ctx, p)
				s.answer(ctx, c, p, stored, err)
				continue
			}
			plans, of = append(plans, p), append(of, c)
		}
	}
	if len(plans) == 0 {
		return
	}
	stored, err := s.insertSessions(ctx, s.d.Store.Queries, plans)
	if err != nil && len(plans) > 1 {
		// One of them cannot be stored: each is tried alone.
		for i, p := range plans {
			stored, err := s.insertSessions(ctx, s.d.Store.Queries, plans[i:i+1])
			s.answer(ctx, of[i], p, stored[p.session.ID], err)
		}
		return
	}
	for i, p := range plans {
		s.answer(ctx, of[i], p, stored[p.session.ID], err)
	}
}

func (s *Service) answer(ctx context.Context, c *creation, p *sessionPlan, stored bool, err error) {
	switch {
	case err != nil:
		c.err = fmt.Errorf("create session %s: %w", p.session.Name, err)
	case stored:
		s.d.Store.Wake(store.TopicSchedule)
		s.d.Store.Wake(store.TopicEvents)
		if p.session.CallbackUrl != nil {
			s.d.Store.Wake(store.TopicCallbacks)
		}
		c.created = Created{ID: cluster.SessionID(p.session.ID), Name: p.session.Name, Status: cluster.Pending, ServicePorts: p.services,
			Created: true}
	default: // somebody created one of this name meanwhile, perhaps in this batch
		found, err := s.reuse(ctx, s.lookups(), p.owner, c.request, p.image)
		switch {
		case err != nil:
			c.err = err
		case found != nil:
			c.created = *found
		default:
			c.err = fault.Conflictf("session %s was created and ended by somebody else at this moment", p.session.Name).WithNext("try again")
		}
	}
}

// insertSessions writes everything in one statement and returns the ids of those that were stored.
func (s *Service) insertSessions(ctx context.Context, q *dbgen.Queries, plans []*sessionPlan) (map[string]bool, error) {
	var a dbgen.InsertSessionsParams
	for _, p := range plans {
		n := p.session
		slots, err := json.Marshal(n.RequestedSlots)
		if err != nil {
			return nil, fmt.Errorf("encode slots: %w", err)
		}
		opts, err := json.Marshal(n.ResourceOpts)
		if err != nil {
			return nil, fmt.Errorf("encode options: %w", err)
		}
		environ, err := json.Marshal(n.Environ)
		if err != nil {
			return nil, fmt.Errorf("encode environment: %w", err)
		}
		mounts := ""
		if len(n.Mounts) > 0 {
			raw, err := json.Marshal(n.Mounts)
			if err != nil {
				return nil, fmt.Errorf("encode mounts: %w", err)
			}
			mounts = string(raw)
		}
		a.Mounts = append(a.Mounts, mounts)
		a.Ids, a.Names, a.Types, a.Priorities = append(a.Ids, n.ID), append(a.Names, n.Name), append(a.Types, string(n.Type)),
			append(a.Priorities, n.Priority)
		a.ClusterModes, a.ClusterSizes = append(a.ClusterModes, n.ClusterMode), append(a.ClusterSizes, n.ClusterSize)
		a.DomainNames, a.ProjectIds = append(a.DomainNames, n.DomainName), append(a.ProjectIds, n.ProjectID)
		a.UserIds, a.AccessKeys = append(a.UserIds, n.UserID), append(a.AccessKeys, n.AccessKey)
		a.ResourceGroups, a.DesignatedAgents = append(a.ResourceGroups, n.ResourceGroup), append(a.DesignatedAgents, joined(n.DesignatedAgents))
		a.ImageIds, a.Images, a.Tags = append(a.ImageIds, n.ImageID), append(a.Images, n.Image), append(a.Tags, present(n.Tag))
		a.RequestedSlots, a.ResourceOpts, a.Environs = append(a.RequestedSlots, string(slots)), append(a.ResourceOpts, string(opts)),
			append(a.Environs, string(environ))
		a.StartupCommands, a.BootstrapScripts = append(a.StartupCommands, present(n.StartupCommand)),
			append(a.BootstrapScripts, present(n.BootstrapScript))
		a.CallbackUrls, a.Preemptible = append(a.CallbackUrls, present(n.CallbackUrl)), append(a.Preemptible, n.Preemptible)
		var timeout, starts int64
		if n.BatchTimeoutMs != nil {
			timeout = *n.BatchTimeoutMs
		}
		if n.StartsAt != nil {
			starts = n.StartsAt.UnixMicro()
		}
		a.BatchTimeoutsMs, a.StartsAtUs = append(a.BatchTimeoutsMs, timeout), append(a.StartsAtUs, starts)
		ports := make([]string, len(n.PreopenPorts))
		for i, port := range n.PreopenPorts {
			ports[i] = strconv.Itoa(int(port))
		}
		for rank, id := range n.KernelIDs {
			a.KIds, a.KSessions, a.KRanks = append(a.KIds, id), append(a.KSessions, n.ID), append(a.KRanks, int32(rank))
			a.KArchitectures, a.KRegistries = append(a.KArchitectures, n.Architecture), append(a.KRegistries, n.Registry)
			a.KSlots, a.KServicePorts, a.KPreopenPorts = append(a.KSlots, string(n.KernelSlots)), append(a.KServicePorts, string(n.ServicePorts)),
				append(a.KPreopenPorts, joined(ports))
		}
		for _, id := range n.DependsOn {
			a.DSessions, a.DDependsOn = append(a.DSessions, n.ID), append(a.DDependsOn, id)
		}
	}
	ids, err := q.InsertSessions(ctx, a)
	if err != nil {
		return nil, err
	}
	stored := make(map[string]bool, len(ids))
	for _, id := range ids {
		stored[id] = true
	}
	return stored, nil
}

// present marks a text that is there, so that an empty one differs from none.
func present(text *string) string {
	if text == nil {
		return ""
	}
	return "+" + *text
}

func joined(list []string) string { return strings.Join(list, "\x1f") }
