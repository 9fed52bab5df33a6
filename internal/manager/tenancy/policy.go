package tenancy

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// Policy limits what users or projects may have. What does not concern its kind is nil.
type Policy struct {
	Name      string
	CreatedAt time.Time
	// MaxFolders is 0 for no limit, MaxScopeBytes -1.
	MaxFolders       int
	MaxScopeBytes    int64
	MaxModelSessions *int
	MaxImages        *int
	MaxNetworks      *int
	// MaxLogins is nil where the cluster's configuration says it.
	MaxLogins *int
}

// PolicyQuery selects policies among those that the actor may see: administrators and monitors all, others their own.
type PolicyQuery struct {
	Name string // "" is any
	Mine bool   // only what holds for the actor
}

func (q PolicyQuery) of(a authz.Actor) *string {
	if !q.Mine && authz.Policies.May(a, authz.See, authz.Object{}) {
		return nil
	}
	return new(string(a.UserID))
}

// UserPolicies are the policies of users, by name.
func (s *Service) UserPolicies(ctx context.Context, a authz.Actor, q PolicyQuery) ([]Policy, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	rows, err := s.d.Store.UserPolicies(ctx, q.Name, q.of(a))
	if err != nil {
		return nil, fmt.Errorf("read policies of users: %w", err)
	}
	out := make([]Policy, len(rows))
	for i, r := range rows {
		out[i] = userPolicyView(r)
	}
	return out, nil
}

// ProjectPolicies are the policies of projects, by name.
func (s *Service) ProjectPolicies(ctx context.Context, a authz.Actor, q PolicyQuery) ([]Policy, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	rows, err := s.d.Store.ProjectPolicies(ctx, q.Name, q.of(a))
	if err != nil {
		return nil, fmt.Errorf("read policies of projects: %w", err)
	}
	out := make([]Policy, len(rows))
	for i, r := range rows {
		out[i] = projectPolicyView(r)
	}
	return out, nil
}

func userPolicyView(r dbgen.UserResourcePolicy) Policy {
	return Policy{Name: r.Name, CreatedAt: r.CreatedAt.UTC(), MaxFolders: int(r.MaxVfolderCount), MaxScopeBytes: r.MaxQuotaScopeSize,
		MaxModelSessions: new(int(r.MaxSessionCountPerModelSession)), MaxImages: new(int(r.MaxCustomizedImageCount)),
		MaxLogins: store.Int(r.MaxConcurrentLogins)}
}

func projectPolicyView(r dbgen.ProjectResourcePolicy) Policy {
	return Policy{Name: r.Name, CreatedAt: r.CreatedAt.UTC(), MaxFolders: int(r.MaxVfolderCount), MaxScopeBytes: r.MaxQuotaScopeSize,
		MaxNetworks: new(int(r.MaxNetworkCount))}
}

var policyFields = list.Fields{"name": list.Text("p.name"), "created_at": list.Time("p.created_at")}

// PageKeypairPolicies is one page of the policies of keypairs that the actor may see.
func (s *Service) PageKeypairPolicies(ctx context.Context, a authz.Actor, q list.Query) (list.Page[*KeypairPolicy], error) {
	return pageOf(ctx, s, a, facts.KeypairPolicies, policyFields, q, s.d.Store.KeypairPoliciesByName,
		func(r dbgen.KeypairResourcePolicy) (string, *KeypairPolicy) { return r.Name, policyView(r) })
}

// PageUserPolicies is one page of the policies of users that the actor may see.
func (s *Service) PageUserPolicies(ctx context.Context, a authz.Actor, q list.Query) (list.Page[Policy], error) {
	return pageOf(ctx, s, a, facts.UserPolicies, policyFields, q, s.d.Store.UserPoliciesByName,
		func(r dbgen.UserResourcePolicy) (string, Policy) { return r.Name, userPolicyView(r) })
}

// PageProjectPolicies is one page of the policies of projects that the actor may see.
func (s *Service) PageProjectPolicies(ctx context.Context, a authz.Actor, q list.Query) (list.Page[Policy], error) {
	return pageOf(ctx, s, a, facts.ProjectPolicies, policyFields, q, s.d.Store.ProjectPoliciesByName,
		func(r dbgen.ProjectResourcePolicy) (string, Policy) { return r.Name, projectPolicyView(r) })
}
