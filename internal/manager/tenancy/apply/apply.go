// Package apply makes tenancies as files say: it reads what is there as far as the actor sees it, has package plan decide what changes, and
// carries changes out.
//
// Nothing of a plan is kept. A change carries the values that it replaces; where others are there by now it is a conflict, and nothing is
// overwritten. What is as it should be already is left alone. So whoever is interrupted plans and applies again. Every change is one use
// case of its noun, which decides who may and records it.
package apply

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/plan"
)

const (
	// MaxChanges bounds what one request changes, maxUsers what is read for a plan.
	MaxChanges = 100
	maxUsers   = 100_000
	// atOnce is how many users are made at one time: each waits for the disk, and for its turn to hash a password.
	atOnce = 4
	// readers is how many plans are made at one time: each may take some hundred megabytes.
	readers = 2
)

// Format is how a tenancy is written.
type Format string

// The formats: everything, or users alone.
const (
	YAML Format = "yaml"
	CSV  Format = "csv"
)

// Letters send e-mails to new users.
type Letters interface {
	Ready() error
	Welcome(ctx context.Context, email string) error
}

// Deps are what a Service works with; all but Letters are required.
type Deps struct {
	Store     *store.Store
	Tenancy   *tenancy.Service
	Resources *resource.Service
	Letters   Letters
	// Permissions are those that there are on folder hosts; CheckHosts reads permissions by host.
	Permissions []string
	CheckHosts  func(map[string][]string) (map[string]any, error)
}

// Service is the use cases.
type Service struct {
	d     Deps
	turns chan struct{}
}

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Tenancy == nil || d.Resources == nil || d.CheckHosts == nil {
		return nil, fault.New(fault.Internal, "apply: store, tenancy, resources and hosts are required")
	}
	return &Service{d: d, turns: make(chan struct{}, readers)}, nil
}

// turn waits until a plan may be made.
func (s *Service) turn(ctx context.Context) (done func(), err error) {
	select {
	case s.turns <- struct{}{}:
		return func() { <-s.turns }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a turn to read a tenancy: %w", ctx.Err())
	}
}

// scope is what an actor may look at: "" is every domain.
func scope(a authz.Actor, domain string) string {
	if domain == "" && !a.Superadmin() && !a.Monitor() {
		return a.Domain
	}
	return domain
}

// own is a user of the domain in question.
func own(a authz.Actor, domain string) authz.Object {
	if domain == "" {
		domain = a.Domain
	}
	return authz.Object{Domain: domain, OwnerRole: authz.RoleUser}
}

// Export writes a domain, or ("") all that the actor administers: superadmins and monitors everything, administrators of a domain its
// projects and users.
func (s *Service) Export(ctx context.Context, a authz.Actor, domain string, f Format) (string, error) {
	if err := authz.Users.Need(a, authz.See, own(a, domain), "export a tenancy"); err != nil {
		return "", err
	}
	if f != YAML && f != CSV {
		return "", fault.Invalidf("%.40q is no format of tenancies", string(f)).WithNext("choose yaml or csv")
	}
	done, err := s.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	now, err := s.read(ctx, a, scope(a, domain), domain == "" && (a.Superadmin() || a.Monitor()))
	if err != nil {
		return "", err
	}
	if domain != "" && now.Objects[plan.Key{Kind: plan.Domain, Name: domain}] == nil {
		return "", authz.NotFound("domain", domain)
	}
	if f == CSV {
		return string(plan.WriteCSV(now)), nil
	}
	return string(plan.WriteYAML(now)), nil
}

// Request is a file that shall be true.
type Request struct {
	Format Format
	Text   string
	// Prune makes inactive what lists of the file leave out; tables of users never do.
	Prune bool
}

// Plan says what has to change for a file to be true, and changes nothing (superadmins, and administrators of a domain for it).
func (s *Service) Plan(ctx context.Context, a authz.Actor, r Request) (*plan.Plan, error) {
	if err := authz.Users.Need(a, authz.Administer, own(a, ""), "apply a tenancy"); err != nil {
		return nil, err
	}
	read := plan.ReadYAML
	switch {
	case r.Format == CSV && r.Prune:
		return nil, fault.Invalidf("a table of users does not say who else there is").WithNext("prune with a YAML file")
	case r.Format == CSV:
		read = plan.ReadCSV
	case r.Format != YAML:
		return nil, fault.Invalidf("%.40q is no format of tenancies", string(r.Format)).WithNext("choose yaml or csv")
	}
	done, err := s.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	now, err := s.read(ctx, a, scope(a, ""), true)
	if err != nil {
		return nil, err
	}
	file, bad := read([]byte(r.Text), now)
	if len(bad) == 0 {
		var p plan.Plan
		who := plan.Who{Superadmin: a.Superadmin(), Domain: a.Domain, Email: a.Email, Address: a.ClientIP}
		if p, bad = plan.Make(file, now, who, r.Prune); len(bad) == 0 {
			return &p, nil
		}
	}
	return nil, fault.Invalidf("%s", plan.Told(bad)).WithReason("bad-tenancy").WithNext("correct the file; nothing was changed")
}

// Step is a change that is asked for.
type Step struct {
	plan.Change
	// Password is that of a new user; without one no password lets them in until they get one. Letter has an e-mail sent to them
	// with which they set it.
	Password *seal.Secret
	Letter   bool
}

// Result is what became of a change: done, or as it should be already, or an error.
type Result struct {
	Already bool
	Err     error
}

// Apply carries out some changes, one by one: those that fail do not keep the others from being done. Every change is decided and recorded
// by its noun.
func (s *Service) Apply(ctx context.Context, a authz.Actor, steps []Step) (out []Result, err error) {
	if err := s.begin(ctx, a, len(steps)); err != nil {
		return nil, err
	}
	if len(steps) > MaxChanges {
		return nil, fault.Invalidf("%d changes are asked for at once; %d are the most", len(steps), MaxChanges)
	}
	out = make([]Result, len(steps))
	for i := 0; i < len(steps); {
		// New users do not depend on one another.
		n := 1
		for i+n < len(steps) && fresh(steps[i]) && fresh(steps[i+n]) {
			n++
		}
		var g errgroup.Group
		g.SetLimit(atOnce)
		for j := i; j < i+n; j++ {
			g.Go(func() error { out[j] = s.step(ctx, a, steps[j]); return nil })
		}
		_ = g.Wait() // results hold the errors
		if ctx.Err() != nil {
			return nil, fmt.Errorf("apply a tenancy: %w", ctx.Err())
		}
		i += n
	}
	for _, r := range out {
		switch fault.KindOf(r.Err) {
		case fault.Unavailable, fault.Timeout:
			return nil, r.Err
		case fault.Internal:
			if r.Err != nil { // for the log, not for the caller
				return nil, r.Err
			}
		}
	}
	return out, nil
}

func fresh(s Step) bool { return s.Kind == plan.User && s.Make }

// begin decides who may apply anything at all, and records that somebody did.
func (s *Service) begin(ctx context.Context, a authz.Actor, n int) (err error) {
	_, end := audit.Begin(ctx, s.d.Store, a, "tenancy.apply", fmt.Sprintf("%d changes", n))
	defer end(&err)
	return authz.Users.Need(a, authz.Administer, own(a, ""), "apply a tenancy")
}

func (s *Service) step(ctx context.Context, a authz.Actor, st Step) Result {
	for _, of := range []plan.Attrs{st.From, st.To} {
		for name, v := range of {
			if st.Kind == plan.Members || st.Kind == plan.Access {
				continue
			}
			if err := plan.Value(st.Kind, name, v); err != nil {
				return Result{Err: fault.Invalidf("%s", err).WithNext("plan again")}
			}
		}
	}
	already, err := s.carryOut(ctx, a, st)
	return Result{Already: already, Err: err}
}

func (s *Service) carryOut(ctx context.Context, a authz.Actor, st Step) (already bool, err error) {
	c := st.Change
	switch c.Kind {
	case plan.KeypairPolicy, plan.UserPolicy, plan.ProjectPolicy:
		return s.policy(ctx, a, c)
	case plan.Domain:
		return s.domain(ctx, a, c)
	case plan.ResourceGroup:
		return s.group(ctx, a, c)
	case plan.Project:
		return s.project(ctx, a, c)
	case plan.User:
		return s.user(ctx, a, st)
	case plan.Members:
		return s.members(ctx, a, c)
	case plan.Access:
		return s.access(ctx, a, c)
	}
	return false, fault.Invalidf("%.40q is nothing that a tenancy consists of", string(c.Kind))
}

// errAlready ends a change that is not needed.
var errAlready = fault.Conflictf("it is as it should be")

// unchanged compares what is there with what a change expects.
func unchanged(c plan.Change, is plan.Attrs) error {
	need := false
	for name, to := range c.To {
		switch {
		case is[name] == to:
		case is[name] == c.From[name]:
			need = true
		default:
			return conflict(c, name, is[name], c.From[name])
		}
	}
	if !need {
		return errAlready
	}
	return nil
}

func conflict(c plan.Change, name, is, was string) error {
	return fault.Conflictf("%s: %s is %s by now, and was %s when the change was planned: somebody else changed it", c.Key(), name,
		plan.Shown(is), plan.Shown(was)).
		WithReason("changed-meanwhile").WithNext("look at the difference again, and apply what is still right")
}
