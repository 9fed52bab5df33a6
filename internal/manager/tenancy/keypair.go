package tenancy

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// Keypair is an access key with its owner. The secret is set only for who signs with it, and for who just made it.
type Keypair struct {
	AccessKey       cluster.AccessKey
	SecretKey       seal.Secret
	UserID          cluster.UserID
	UserEmail       string // the wire's user_id
	UserFullName    string
	Domain          string
	Projects        []string // names
	IsActive        bool
	IsAdmin         bool
	ResourcePolicy  string
	RateLimit       int
	NumQueries      int64
	ConcurrencyUsed int
	CreatedAt       time.Time
	ModifiedAt      time.Time
	LastUsed        *time.Time
	SSHPublicKey    string
	// IsMain says that it is its user's main keypair: its policy limits the user with all keypairs.
	IsMain bool
	// ConcurrencyLimit bounds the live sessions that were started with it; 0 is no limit.
	ConcurrencyLimit int
	// ExpiresAt is when a keypair ends that was replaced by another one.
	ExpiresAt       *time.Time
	ReplacedBy      cluster.AccessKey
	Dotfiles        []cluster.Dotfile
	BootstrapScript string
}

// KeypairFilter narrows ListKeypairs.
type KeypairFilter struct {
	list.Query
	Active *bool
	Domain string
	Email  string
}

var keypairFields = list.Fields{
	"access_key": list.Text("k.access_key"), "user_id": list.Text("u.email"), "email": list.Text("u.email"),
	"full_name": list.Text("u.full_name"),
	"is_active": list.Bool("k.is_active"), "is_admin": list.Bool("k.is_admin"), "resource_policy": list.Text("k.resource_policy"),
	"created_at": list.Time("k.created_at"), "last_used": list.Time("k.last_used"), "rate_limit": list.Number("k.rate_limit"),
	"num_queries": list.Number("k.num_queries"), "ssh_public_key": list.Text("k.ssh_public_key"),
	"projects": list.Texts("ARRAY(SELECT p.name FROM project_members m JOIN projects p ON p.id = m.project_id WHERE m.user_id = u.id)"),
}

// keypairCounts are where the number of keypairs is kept. Whose they are is not known there.
const keypairCounts = `SELECT coalesce(sum(k.n), 0)::bigint FROM (SELECT NULL::uuid AS user_id, c.status = 'true' AS is_active, c.n,
	CASE WHEN c.status = 'deleted' THEN now() END AS deleted_at,
	c.domain_name,
	c.owner_role FROM list_counts c WHERE c.list = 'keypairs') k CROSS JOIN LATERAL (SELECT k.domain_name, k.owner_role AS role) u WHERE true`

// GetKeypair returns a keypair; key "" is the actor's own.
func (s *Service) GetKeypair(ctx context.Context, a authz.Actor, key cluster.AccessKey) (*Keypair, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	if key == "" {
		key = a.AccessKey
	}
	views, err := s.keypairViews(ctx, a, []string{string(key)})
	if err != nil {
		return nil, err
	}
	if views[key] == nil {
		return nil, authz.NotFound(keypairNoun, string(key))
	}
	return views[key], nil
}

// ListKeypairs lists the keypairs of the actor, of the domain for its administrators, all for superadmins.
func (s *Service) ListKeypairs(ctx context.Context, a authz.Actor, f KeypairFilter) (list.Page[*Keypair], error) {
	if err := authz.Authenticated(a); err != nil {
		return list.Page[*Keypair]{}, err
	}
	l := &list.Spec{From: "keypairs k JOIN users u ON u.id = k.user_id", Key: "k.access_key", Fields: keypairFields, Order: "k.created_at"}
	l.Where(facts.Keypairs.Where(a, authz.See, l.Arg))
	if a.Role == authz.RoleAdmin { // own keys are of the own domain, too
		l.Implied("u.domain_name = " + l.Arg(a.Domain))
	}
	l.Where("k.deleted_at IS NULL")
	if f.Active != nil {
		l.And("k.is_active = %s", *f.Active)
	}
	if f.Domain != "" {
		l.And("u.domain_name = %s", f.Domain)
	}
	switch {
	case f.Email != "":
		l.And("u.email = %s", f.Email)
	case a.Role != authz.RoleUser:
		l.Counts = func() []string { return []string{keypairCounts} }
	}
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), f.Query)
	if err != nil {
		return list.Page[*Keypair]{}, err
	}
	views, err := s.keypairViews(ctx, a, keys)
	if err != nil {
		return list.Page[*Keypair]{}, err
	}
	return list.Page[*Keypair]{Items: list.InOrder(keys, views), Total: total}, nil
}

// keypairViews loads keypairs that the actor may see.
func (s *Service) keypairViews(ctx context.Context, a authz.Actor, keys []string) (map[cluster.AccessKey]*Keypair, error) {
	rows, err := s.d.Store.KeypairViews(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("read keypairs: %w", err)
	}
	out := map[cluster.AccessKey]*Keypair{}
	for _, r := range rows {
		o := authz.Object{Owner: cluster.UserID(r.UserID), OwnerRole: authz.Role(r.Role), Domain: r.DomainName,
			Keys: []cluster.AccessKey{cluster.AccessKey(r.AccessKey)}}
		if !authz.Keypairs.May(a, authz.See, o) {
			continue
		}
		v := &Keypair{AccessKey: cluster.AccessKey(r.AccessKey), UserID: o.Owner, UserEmail: r.Email, UserFullName: r.FullName,
			Domain: r.DomainName, Projects: r.Projects,
			IsActive: r.IsActive, IsAdmin: r.IsAdmin, ResourcePolicy: r.ResourcePolicy, RateLimit: int(r.RateLimit), NumQueries: r.NumQueries,
			ConcurrencyUsed: int(r.ConcurrencyUsed), CreatedAt: r.CreatedAt.UTC(), ModifiedAt: r.ModifiedAt.UTC(), LastUsed: store.UTC(r.LastUsed),
			Dotfiles: ReadDotfiles(r.Dotfiles), BootstrapScript: r.BootstrapScript, IsMain: r.IsMain, ExpiresAt: store.UTC(r.ExpiresAt)}
		if r.ConcurrencyLimit != nil {
			v.ConcurrencyLimit = int(*r.ConcurrencyLimit)
		}
		if r.ReplacedBy != nil {
			v.ReplacedBy = cluster.AccessKey(*r.ReplacedBy)
		}
		if r.SshPublicKey != nil {
			v.SSHPublicKey = *r.SshPublicKey
		}
		if authz.Keypairs.May(a, authz.Reveal, o) && !a.ByLogin && a.By == nil {
			if v.SecretKey, err = s.d.Seal.Open(r.SecretSealed, keypairPurpose(r.AccessKey)); err != nil {
				return nil, fmt.Errorf("open secret key of %s: %w", r.AccessKey, err)
			}
		}
		out[v.AccessKey] = v
	}
	return out, nil
}

// KeypairPolicy is a keypair resource policy. An absent slot of TotalSlots is unlimited.
type KeypairPolicy struct {
	Name                  string
	CreatedAt             time.Time
	DefaultForUnspecified string
	TotalSlots            cluster.Slots
	MaxSessionLifetime    int
	MaxConcurrentSessions int
	MaxConcurrentSFTP     int
	MaxPendingSessions    *int
	MaxPendingSlots       cluster.Slots
	MaxPriority           *int
	MaxContainers         int
	IdleTimeout           int64
	AllowedHosts          map[string]any
}

func policyView(r dbgen.KeypairResourcePolicy) *KeypairPolicy {
	return &KeypairPolicy{Name: r.Name, CreatedAt: r.CreatedAt.UTC(), DefaultForUnspecified: r.DefaultForUnspecified,
		TotalSlots:         r.TotalResourceSlots,
		MaxSessionLifetime: int(r.MaxSessionLifetime), MaxConcurrentSessions: int(r.MaxConcurrentSessions),
		MaxConcurrentSFTP:  int(r.MaxConcurrentSftpSessions),
		MaxPendingSessions: store.Int(r.MaxPendingSessionCount), MaxPendingSlots: r.MaxPendingSessionResourceSlots,
		MaxPriority:   store.Int(r.MaxPriority),
		MaxContainers: int(r.MaxContainersPerSession), IdleTimeout: r.IdleTimeout, AllowedHosts: r.AllowedVfolderHosts}
}

// GetKeypairPolicy returns a policy; name "" is that of the actor's keypair. Others are for administrators.
func (s *Service) GetKeypairPolicy(ctx context.Context, a authz.Actor, name string) (*KeypairPolicy, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	own, err := s.PolicyOfKey(ctx, a.AccessKey)
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = own.Name
	}
	if err := authz.Policies.Check(a, authz.See, authz.Object{Name: name, Given: name == own.Name}); err != nil {
		return nil, err
	}
	r, err := s.d.Store.GetKeypairPolicy(ctx, name)
	if store.Missing(err) {
		return nil, authz.NotFound(policyNoun, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read resource policy %s: %w", name, err)
	}
	return policyView(r), nil
}

// ListKeypairPolicies lists all policies for administrators, the actor's own otherwise.
func (s *Service) ListKeypairPolicies(ctx context.Context, a authz.Actor) ([]*KeypairPolicy, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	own, err := s.PolicyOfKey(ctx, a.AccessKey)
	if err != nil {
		return nil, err
	}
	rows, err := s.d.Store.ListKeypairPolicies(ctx)
	if err != nil {
		return nil, fmt.Errorf("read resource policies: %w", err)
	}
	out := []*KeypairPolicy{}
	for _, r := range rows {
		if authz.Policies.May(a, authz.See, authz.Object{Given: r.Name == own.Name}) {
			out = append(out, policyView(r))
		}
	}
	return out, nil
}

// PolicyOfKey returns the resource policy of a keypair, for whoever asks.
func (s *Service) PolicyOfKey(ctx context.Context, key cluster.AccessKey) (dbgen.KeypairResourcePolicy, error) {
	row, err := s.d.Store.ActorByKey(ctx, string(key))
	if store.Missing(err) {
		return dbgen.KeypairResourcePolicy{}, authz.NotFound("keypair", string(key))
	}
	if err != nil {
		return dbgen.KeypairResourcePolicy{}, fmt.Errorf("find keypair: %w", err)
	}
	p, err := s.d.Store.GetKeypairPolicy(ctx, row.ResourcePolicy)
	if err != nil {
		return p, fmt.Errorf("read resource policy %s: %w", row.ResourcePolicy, err)
	}
	return p, nil
}
