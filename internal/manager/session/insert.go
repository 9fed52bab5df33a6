package session

import (
	"context"
	"encoding/json"
	"fmt"
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

// insertAttempts is how often creations are sent whose answers are lost.
const insertAttempts = 3

// creation is a request for a session on its way.
type creation struct {
	actor   authz.Actor
	request request.Session

	created Created
	err     error
}

// newSession is what is stored of a new session: a record of store.InsertSessions.
type newSession struct {
	ID               string                `json:"id"`
	Name             string                `json:"name"`
	Type             cluster.SessionType   `json:"type"`
	Priority         int32                 `json:"priority"`
	ClusterMode      string                `json:"cluster_mode"`
	ClusterSize      int32                 `json:"cluster_size"`
	DomainName       string                `json:"domain_name"`
	ProjectID        string                `json:"project_id"`
	UserID           string                `json:"user_id"`
	AccessKey        string                `json:"access_key"`
	ResourceGroup    string                `json:"resource_group"`
	DesignatedAgents []string              `json:"designated_agents"` // never nil
	ImageID          string                `json:"image_id"`
	ImageDigest      string                `json:"image_digest"` // what was resolved, whatever the reference means later
	Image            string                `json:"image"`
	Tag              *string               `json:"tag"`
	RequestedSlots   cluster.Slots         `json:"requested_slots"`
	ResourceOpts     map[string]string     `json:"resource_opts"`
	Environ          map[string]string     `json:"environ"`
	StartupCommand   *string               `json:"startup_command"`
	BootstrapScript  *string               `json:"bootstrap_script"`
	CallbackURL      *string               `json:"callback_url"`
	BatchTimeoutMs   *int64                `json:"batch_timeout_ms"`
	LeaseSeconds     *int32                `json:"lease_seconds,omitempty"`
	StartsAt         *time.Time            `json:"starts_at"`
	Preemptible      bool                  `json:"preemptible"`
	RerunOnAgentLoss bool                  `json:"rerun_on_agent_loss"`
	Retries          int16                 `json:"retries,omitempty"`
	Kernels          []newKernel           `json:"kernels"` // in the order of their ranks
	Roles            []newRole             `json:"roles,omitempty"`
	Mounts           []cluster.FolderMount `json:"mounts,omitempty"`
	DependsOn        []string              `json:"depends_on,omitempty"`
}

// newRole is what is stored of a role whose kernels have other variables or another script than the session says; nil is the session's.
type newRole struct {
	Role            string             `json:"role"`
	Environ         *map[string]string `json:"environ,omitempty"`
	BootstrapScript *string            `json:"bootstrap_script,omitempty"`
}

// newKernel is what is stored of a kernel of a new session.
type newKernel struct {
	ID string `json:"id"`
	// Role and Idx, its number in the role, are left out where they follow from the rank: main 1, then sub 1, sub 2 and so on.
	Role string `json:"role,omitempty"`
	Idx  int32  `json:"idx,omitempty"`
	// Image and what belongs to it are left out where they are the session's, as is ShmemBytes.
	Image          string        `json:"image,omitempty"`
	ImageID        string        `json:"image_id,omitempty"`
	ImageDigest    string        `json:"image_digest,omitempty"`
	ShmemBytes     int64         `json:"shmem_bytes,omitempty"`
	Architecture   string        `json:"architecture"`
	Registry       string        `json:"registry"`
	RequestedSlots cluster.Slots `json:"requested_slots"`
	ServicePorts   []ServicePort `json:"service_ports"` // never nil
	PreopenPorts   []int32       `json:"preopen_ports"` // never nil
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
	stored, err := s.insertKnown(ctx, plans)
	if err != nil && !store.Away(err) && len(plans) > 1 {
		// One of them cannot be stored: each is tried alone.
		for i, p := range plans {
			stored, err := s.insertKnown(ctx, plans[i:i+1])
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
	case store.Dangling(err): // it was there when the request was checked
		c.err = fault.Conflictf("the resource group, project, keypair or image of session %s was deleted at this moment", p.session.Name).
			WithNext("choose what is there, and try again")
	case err != nil:
		c.err = fmt.Errorf("create session %s: %w", p.session.Name, err)
	case stored:
		s.d.Store.Wake(store.TopicSchedule)
		s.d.Store.Wake(store.TopicEvents)
		if p.session.CallbackURL != nil {
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

// insertKnown is insertSessions that finds out what was stored when the connection broke before the answer came, and stores the rest.
// Doing it again is safe under the same ids: PostgreSQL makes it wait for the first statement if that still runs, and refuses the ids
// that are there.
func (s *Service) insertKnown(ctx context.Context, plans []*sessionPlan) (map[string]bool, error) {
	stored, err := s.insertSessions(ctx, s.d.Store.Queries, plans)
	for attempt := 1; store.Unknown(err) && attempt < insertAttempts; attempt++ {
		s.d.Log.Warn("the answer to the creation of sessions was lost; looking which of them are stored", "sessions", len(plans), "error", err)
		there, missing, lookErr := s.storedOf(ctx, plans)
		if lookErr != nil {
			return nil, unknownCreation(lookErr)
		}
		if len(missing) == 0 {
			return there, nil
		}
		switch _, err = s.insertSessions(ctx, s.d.Store.Queries, missing); {
		case err == nil, store.Duplicate(err, ""):
			if stored, _, err = s.storedOf(ctx, plans); err != nil { // the first statement may have stored some meanwhile
				return nil, unknownCreation(err)
			}
		case !store.Unknown(err):
			return nil, unknownCreation(err) // whatever kept this one from being stored: the first statement may still run
		}
	}
	if store.Unknown(err) {
		err = unknownCreation(err)
	}
	return stored, err
}

// storedOf finds the planned sessions that are stored, and the plans of the others.
func (s *Service) storedOf(ctx context.Context, plans []*sessionPlan) (there map[string]bool, missing []*sessionPlan, err error) {
	ids := make([]string, len(plans))
	for i, p := range plans {
		ids[i] = p.session.ID
	}
	found, err := s.d.Store.StoredSessions(ctx, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("look which sessions are stored: %w", err)
	}
	there = make(map[string]bool, len(found))
	for _, id := range found {
		there[id] = true
	}
	for _, p := range plans {
		if !there[p.session.ID] {
			missing = append(missing, p)
		}
	}
	return there, missing, nil
}

func unknownCreation(cause error) error {
	return fault.Unavailablef("the database went away while the session was being stored, and it is not known whether it was").
		WithReason(fault.DatabaseAway).WithCause(cause).WithNext("look for the session before you create it again")
}

// insertSessions writes everything in one statement and returns the ids of those that were stored.
func (s *Service) insertSessions(ctx context.Context, q *dbgen.Queries, plans []*sessionPlan) (map[string]bool, error) {
	records := make([]newSession, len(plans))
	for i, p := range plans {
		records[i] = p.session
	}
	raw, err := json.Marshal(records)
	if err != nil {
		return nil, fmt.Errorf("encode sessions: %w", err)
	}
	ids, err := q.InsertSessions(ctx, raw)
	if err != nil {
		return nil, err
	}
	stored := make(map[string]bool, len(ids))
	for _, id := range ids {
		stored[id] = true
	}
	return stored, nil
}
