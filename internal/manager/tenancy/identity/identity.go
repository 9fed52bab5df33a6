package identity

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// Deps are what a Service works with. Store, Tenancy and Log are required; Clock defaults to the system's.
type Deps struct {
	Store   *store.Store
	Tenancy *tenancy.Service
	Clock   func() time.Time
	Log     *slog.Logger
}

// Service is the use cases of external identities.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Tenancy == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "identity: store, tenancy and log are required")
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	return &Service{d}, nil
}

// Result is what became of a person.
type Result struct {
	Plan
	// User is the account.
	User cluster.UserID
	// Changed: something was written besides when the person was seen.
	Changed bool
}

// Preview says what Apply would do (the caller verified the person). It writes nothing: for dry runs, and for those who compare a whole
// directory and count first.
func (s *Service) Preview(ctx context.Context, p Person, r *Rules) (Plan, error) {
	snapshot, err := load(ctx, s.d.Store.Queries, &p, r)
	if err != nil {
		return Plan{}, err
	}
	return Decide(&p, &snapshot, r), nil
}

// Apply makes of a person what the rules say, in one transaction (the caller verified the person). Who is refused hears why: the error is
// Denied, its reason begins with "identity-", and there is a record. Who was deactivated is let in nowhere from then on.
func (s *Service) Apply(ctx context.Context, p Person, r *Rules) (Result, error) {
	if err := CheckName(p.Provider); err != nil {
		return Result{}, err
	}
	p.Email = fault.Cut(store.Text(p.Email), maxText)
	plan, err := s.Preview(ctx, p, r)
	if err != nil {
		return Result{}, err
	}
	if plan.Action == Update && !plan.Changes() {
		if err := s.d.Store.TouchIdentity(ctx, p.Provider, p.Subject, s.d.Clock(), p.Email); err != nil {
			return Result{}, fmt.Errorf("note that %s was seen: %w", name(&p), err)
		}
		s.warn(&plan)
		return Result{Plan: plan, User: plan.User}, nil
	}
	return s.carryOut(ctx, &p, r, plan.Action)
}

// carryOut decides once more, with everybody else waiting, and writes.
func (s *Service) carryOut(ctx context.Context, p *Person, r *Rules, action Action) (_ Result, err error) {
	subject := p.Email
	if subject == "" {
		subject = p.Subject
	}
	who := authz.Actor{Email: "provider:" + p.Provider, Domain: r.Domain}
	ctx, end := audit.Begin(ctx, s.d.Store, who, "identity."+string(action), subject)
	defer end(&err)
	var out Result
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockUserChanges(ctx); err != nil {
			return fmt.Errorf("wait for other changes of users: %w", err)
		}
		snapshot, err := load(ctx, tx.Queries, p, r)
		if err != nil {
			return err
		}
		out = Result{Plan: Decide(p, &snapshot, r)}
		if out.Action == Refuse {
			return refused(&out.Plan)
		}
		out.Changed = out.Changes()
		out.User, err = s.write(ctx, tx, p, &out.Plan)
		return err
	})
	if err != nil {
		if fault.Is(err, fault.Denied) {
			s.d.Log.Warn("somebody of an identity provider is refused", "provider", p.Provider, "subject", p.Subject, "email", p.Email,
				"reason", fault.ReasonOf(err))
		}
		return out, fmt.Errorf("admit %s: %w", name(p), err)
	}
	s.warn(&out.Plan)
	return out, nil
}

func (s *Service) warn(plan *Plan) {
	for _, w := range plan.Warnings {
		s.d.Log.Warn("a rule of an identity provider was left out", "why", w)
	}
}

// refused is the answer to somebody whom Decide refuses.
func refused(p *Plan) error {
	err := fault.Deniedf("%s", p.Words).WithReason("identity-" + string(p.Reason))
	if p.Next != "" {
		return err.WithNext("%s", p.Next)
	}
	return err
}

func (s *Service) write(ctx context.Context, tx *store.Tx, p *Person, plan *Plan) (cluster.UserID, error) {
	user := plan.User
	now := s.d.Clock()
	if plan.Action == Create {
		var err error
		if user, err = s.d.Tenancy.AdmitPerson(ctx, plan.Email, plan.Domain, plan.Username, plan.FullName); err != nil {
			return "", err
		}
	}
	if plan.Action == Create || plan.Action == Link {
		if err := tx.InsertIdentity(ctx, dbgen.InsertIdentityParams{Provider: p.Provider, Subject: p.Subject, UserID: string(user),
			Email: p.Email, CreatedAt: now}); err != nil {
			return "", fmt.Errorf("store the identity: %w", err)
		}
	} else if err := tx.TouchIdentity(ctx, p.Provider, p.Subject, now, p.Email); err != nil {
		return "", fmt.Errorf("note when the identity was seen: %w", err)
	}
	change := tenancy.Standing{Role: (*authz.Role)(plan.Role), Status: plan.Status, StatusInfo: plan.StatusInfo, FullName: plan.NewName,
		Join: plan.Join, Leave: plan.Leave}
	if change.Role != nil || change.Status != nil || change.FullName != nil || len(change.Join)+len(change.Leave) > 0 {
		if err := s.d.Tenancy.SetStanding(ctx, tx, user, change); err != nil {
			return "", err
		}
	}
	if plan.GiftChanges {
		if err := tx.SetIdentityRole(ctx, text(plan.GivenRole), text(plan.RoleBefore), p.Provider, string(user)); err != nil {
			return "", fmt.Errorf("remember the role: %w", err)
		}
	}
	if err := tx.TakeMemberships(ctx, p.Provider, string(user), texts(plan.Take)); err != nil {
		return "", fmt.Errorf("forget memberships: %w", err)
	}
	if err := tx.GiveMemberships(ctx, p.Provider, string(user), texts(plan.Give)); err != nil {
		return "", fmt.Errorf("remember memberships: %w", err)
	}
	return user, nil
}

func text(r authz.Role) *string {
	if r == "" {
		return nil
	}
	return new(string(r))
}

func texts(ids []cluster.ProjectID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}

// load reads what Decide has to know. It writes nothing.
func load(ctx context.Context, q *dbgen.Queries, p *Person, r *Rules) (Snapshot, error) {
	var s Snapshot
	known, err := q.IdentityBySubject(ctx, p.Provider, store.Text(p.Subject))
	if err != nil && !store.Missing(err) {
		return s, fmt.Errorf("find the identity: %w", err)
	}
	isKnown := err == nil
	if email := address(p.Email); email != "" && !isKnown {
		rows, err := q.UsersByAddress(ctx, email, 2)
		if err != nil {
			return s, fmt.Errorf("find accounts of an address: %w", err)
		}
		for _, row := range rows {
			a, err := account(ctx, q, p.Provider, row)
			if err != nil {
				return s, err
			}
			s.ByAddress = append(s.ByAddress, a)
		}
	}
	who := "00000000-0000-0000-0000-000000000000"
	if isKnown {
		row, err := q.UserByRef(ctx, known.UserID)
		if err != nil {
			return s, fmt.Errorf("find the account: %w", err)
		}
		a, err := account(ctx, q, p.Provider, row)
		if err != nil {
			return s, err
		}
		s.Known, who = &a, row.ID
	}
	if n := store.Text(p.Username); n != "" && !isKnown {
		count, err := q.CountUsername(ctx, n)
		if err != nil {
			return s, fmt.Errorf("look for a user name: %w", err)
		}
		s.UsernameTaken = count > 0 || n != p.Username
	}
	g := r.give(p.Groups)
	if g.domain != "" {
		d, err := q.GetDomain(ctx, g.domain)
		if err != nil && !store.Missing(err) {
			return s, fmt.Errorf("find domain %s: %w", g.domain, err)
		}
		s.DomainActive = err == nil && d.IsActive
		rows, err := q.ProjectsByNames(ctx, g.domain, g.projects)
		if err != nil {
			return s, fmt.Errorf("find projects: %w", err)
		}
		for _, row := range rows {
			s.Projects = append(s.Projects, Project{ID: cluster.ProjectID(row.ID), Name: row.Name})
		}
	}
	others, err := q.CountOtherSuperadmins(ctx, who)
	if err != nil {
		return s, fmt.Errorf("count superadmins: %w", err)
	}
	s.OtherSuperadmins = int(others)
	return s, nil
}

// account reads a user with what providers gave.
func account(ctx context.Context, q *dbgen.Queries, provider string, u dbgen.User) (Account, error) {
	a := Account{ID: cluster.UserID(u.ID), Email: u.Email, FullName: u.FullName, Domain: u.DomainName, Role: authz.Role(u.Role),
		Status: u.Status, StatusInfo: store.Value(u.StatusInfo), Service: u.IsService}
	links, err := q.IdentitiesOf(ctx, []string{u.ID})
	if err != nil {
		return a, fmt.Errorf("read identities: %w", err)
	}
	for _, l := range links {
		switch {
		case l.Provider == provider:
			a.Elsewhere = true
			a.GivenRole, a.RoleBefore = authz.Role(store.Value(l.GivenRole)), authz.Role(store.Value(l.RoleBefore))
		case l.GivenRole != nil:
			a.OthersGave = true
		}
	}
	members, err := q.MembershipsWithGivers(ctx, u.ID)
	if err != nil {
		return a, fmt.Errorf("read memberships: %w", err)
	}
	for _, m := range members {
		ours := slices.Contains(m.Givers, provider)
		a.Members = append(a.Members, Membership{Project: cluster.ProjectID(m.ProjectID), Admin: m.IsAdmin, Ours: ours,
			Others: len(m.Givers) > 1 || len(m.Givers) == 1 && !ours})
	}
	return a, nil
}

// Known is an identity of a provider with the state of its account.
type Known struct {
	Subject, Email string
	User           cluster.UserID
	LastSeen       time.Time
	Status         string
	Role           authz.Role
}

// maxKnown bounds a page of KnownOf.
const maxKnown = 1000

// KnownOf lists whom a provider has here, by subject, after one: for whoever compares them with a directory (background work; decides
// about nobody). A page shorter than asked for is the last one.
func (s *Service) KnownOf(ctx context.Context, provider, after string, most int) ([]Known, error) {
	rows, err := s.d.Store.IdentitiesOfProvider(ctx, provider, after, int32(min(max(most, 1), maxKnown)))
	if err != nil {
		return nil, fmt.Errorf("list the identities of %s: %w", provider, err)
	}
	out := make([]Known, len(rows))
	for i, r := range rows {
		out[i] = Known{Subject: r.Subject, Email: r.Email, User: cluster.UserID(r.UserID), LastSeen: r.LastSeen, Status: r.Status,
			Role: authz.Role(r.Role)}
	}
	return out, nil
}
