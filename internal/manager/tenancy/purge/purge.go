// Package purge forgets users, projects and domains with all that they own. It says before what would happen (Preview), notes that it shall
// happen (Begin), and its loop on the leader does it in bounded steps that another manager goes on with. What is in use is not taken away:
// sessions end first, on request, and folders that others use are waited for or go to an heir.
package purge

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// Kind is what is purged.
type Kind string

// The kinds.
const (
	User    Kind = "user"
	Project Kind = "project"
	Domain  Kind = "domain"
)

const (
	// maxPurges bounds how many purges wait at once, shown how many names a plan tells of each kind of thing.
	maxPurges = 10_000
	shown     = 20
)

// Folders is what purging needs of folders.
type Folders interface {
	Discard(ctx context.Context, tx *store.Tx, f dbgen.FoldersOfRow) (gone bool, waits string, err error)
}

// Deps are what a Service works with; all are required.
type Deps struct {
	Store   *store.Store
	Tenancy *tenancy.Service
	Folders Folders
	IDs     func() string
	Log     *slog.Logger
}

// Service is the use cases of purging.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Tenancy == nil || d.Folders == nil || d.IDs == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "purge: store, tenancy, folders, ids and log are required")
	}
	return &Service{d}, nil
}

// Options say how far a purge goes.
type Options struct {
	// PurgeShared removes folders of users that others have a share of, too. Without it they go to who purges.
	PurgeShared bool
	// EndSessions ends live sessions; without it a purge is refused while there are any.
	EndSessions bool
	// Contents purges the users and projects of a domain first; without it only an empty domain is purged.
	Contents bool
}

// Item is one kind of thing that a purge concerns.
type Item struct {
	What  string // such as folders
	Count int
	Names []string // the first of them
	Fate  string   // what becomes of them
}

// Plan is what a purge would do.
type Plan struct {
	Kind    Kind
	Name    string
	Domain  string
	Items   []Item
	Refusal string // why it would be refused; "" when it would not
}

// Purge is one that is not done yet.
type Purge struct {
	ID      string // of the background task
	Kind    Kind
	Name    string
	Domain  string
	Message string // what it is doing or waiting for
	Done    int64  // how much was removed so far
}

// subject is what is to be purged, with the columns that its things name it by.
type subject struct {
	kind                  Kind
	id, name, domain      string
	user, project, domRef *string
	row                   dbgen.User // of a user
}

// deeds are what is done to a subject: the verb of each kind, and its word.
type deeds struct {
	verbs map[Kind]authz.Verb
	word  string
}

var (
	purging = deeds{map[Kind]authz.Verb{User: authz.Purge, Project: authz.Purge, Domain: authz.Purge}, "purge"}
	closing = deeds{map[Kind]authz.Verb{User: authz.Administer, Project: authz.Change, Domain: authz.Administer}, "close"}
)

// find finds the subject and decides whether the actor may do that with it.
func (s *Service) find(ctx context.Context, a authz.Actor, d deeds, kind Kind, ref string) (subject, error) {
	if err := authz.Authenticated(a); err != nil {
		return subject{}, err
	}
	switch kind {
	case User:
		if id, ok := cluster.CanonicalUUID(ref); ok {
			ref = id
		}
		r, err := s.d.Store.UserByRef(ctx, store.Text(ref))
		if store.Missing(err) {
			return subject{}, authz.NotFound(authz.Users.Noun, ref)
		}
		if err != nil {
			return subject{}, fmt.Errorf("find user %s: %w", ref, err)
		}
		o := authz.Object{Name: ref, Owner: cluster.UserID(r.ID), OwnerRole: authz.Role(r.Role), Domain: r.DomainName}
		return subject{kind: kind, id: r.ID, name: r.Email, domain: r.DomainName, user: &r.ID, row: r}, authz.Users.Check(a, d.verbs[kind], o)
	case Project:
		p, err := s.d.Tenancy.VisibleProject(ctx, a, ref, a.Domain)
		if err != nil {
			return subject{}, err
		}
		return subject{kind: kind, id: p.ID, name: p.Name, domain: p.DomainName, project: &p.ID},
			authz.Projects.Check(a, d.verbs[kind], tenancy.ProjectObject(p, ref))
	case Domain:
		if err := authz.Domains.Need(a, d.verbs[kind], authz.Object{Name: ref, Domain: ref}, d.word+" domains"); err != nil {
			return subject{}, err
		}
		found, err := s.d.Tenancy.GetDomain(ctx, a, ref)
		if err != nil {
			return subject{}, err
		}
		return subject{kind: kind, id: found.Name, name: found.Name, domain: found.Name, domRef: &found.Name}, nil
	}
	return subject{}, fault.Invalidf("%.40q is nothing to %s", string(kind), d.word).WithNext("choose user, project or domain")
}

// Preview says what a purge would do, and whether it would be refused. It changes nothing.
func (s *Service) Preview(ctx context.Context, a authz.Actor, kind Kind, ref string, o Options) (Plan, error) {
	t, err := s.find(ctx, a, purging, kind, ref)
	if err != nil {
		return Plan{}, err
	}
	var plan Plan
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		plan, err = look(ctx, tx.Queries, a, t, o)
		return err
	})
	return plan, err
}

// look reads what belongs to a subject.
func look(ctx context.Context, q *dbgen.Queries, a authz.Actor, t subject, o Options) (Plan, error) {
	plan := Plan{Kind: t.kind, Name: t.name, Domain: t.domain}
	fail := func(what string, err error) (Plan, error) {
		return plan, fmt.Errorf("read %s of %s: %w", what, t.name, err)
	}
	n, err := q.CountOf(ctx, t.user, t.project, t.domRef)
	if err != nil {
		return fail("what belongs", err)
	}
	live, err := q.LiveSessionsOf(ctx, t.user, t.project, t.domRef, shown)
	if err != nil {
		return fail("the sessions", err)
	}
	folders, err := q.FoldersOf(ctx, dbgen.FoldersOfParams{UserID: t.user, ProjectID: t.project, DomainName: t.domRef, After: nobody,
		MaxRows: maxPurges})
	if err != nil {
		return fail("the folders", err)
	}
	total, err := q.CountFoldersOf(ctx, t.user, t.project, t.domRef)
	if err != nil {
		return fail("the folders", err)
	}
	add := func(what string, count int64, names []string, fate string) {
		if count > 0 {
			plan.Items = append(plan.Items, Item{What: what, Count: int(count), Names: names[:min(len(names), shown)], Fate: fate})
		}
	}
	var names, kept, mounted []string
	for _, r := range live {
		names = append(names, r.Name+" ("+r.Email+")")
	}
	add("live sessions", n.Live, names, "end")
	var goes []string
	for _, f := range folders {
		name := f.Name + " (" + f.Host + ")"
		if f.Shared && f.UserID != nil && !o.PurgeShared {
			kept = append(kept, name)
			continue
		}
		if goes = append(goes, name); f.Mounted {
			mounted = append(mounted, name)
		}
	}
	add("folders", total-int64(len(kept)), goes, "are removed with their files")
	add("shared folders", int64(len(kept)), kept, "go to "+a.Email+" with their shares")
	add("ended sessions", n.Ended, nil, "are forgotten with their history")
	add("keypairs", n.Keypairs, nil, "are deleted")
	add("shares of others' folders", n.Shares, nil, "end")
	add("memberships", n.Memberships, nil, "end")
	add("images of sessions", n.Images, nil, "stay for superadmins")
	var belong []string
	if t.kind == Domain {
		c, err := q.CountInDomain(ctx, t.id)
		if err != nil {
			return fail("users and projects", err)
		}
		users, err := q.UsersInDomain(ctx, t.id, shown)
		if err != nil {
			return fail("the users", err)
		}
		projects, err := q.ProjectsInDomain(ctx, t.id, shown)
		if err != nil {
			return fail("the projects", err)
		}
		for _, u := range users {
			belong = append(belong, u.Email)
		}
		add("users", c.Users, belong, "are purged")
		names = nil
		for _, p := range projects {
			names = append(names, p.Name)
		}
		add("projects", c.Projects, names, "are purged")
		if len(users) > 0 && users[0].Role == string(authz.RoleSuperadmin) {
			plan.Refusal = "superadmin " + users[0].Email + " is in domain " + t.name + ": make another role or domain for them first"
			return plan, nil
		}
		if c.Users+c.Projects > 0 && !o.Contents {
			plan.Refusal = fmt.Sprintf("%d users and %d projects belong to domain %s: purge them first, or with it", c.Users, c.Projects, t.name)
			return plan, nil
		}
	}
	plan.Refusal, err = refusal(ctx, q, a, t)
	switch {
	case err != nil || plan.Refusal != "":
	case n.Live > 0 && !o.EndSessions:
		plan.Refusal = fmt.Sprintf("%d sessions of %s %s are live: end them first, or with it", n.Live, t.kind, t.name)
	case len(mounted) > 0 && !o.EndSessions:
		plan.Refusal = "sessions of others mount folder " + mounted[0] + ": wait until they have ended"
	}
	return plan, err
}

// refusal says what is never purged.
func refusal(ctx context.Context, q *dbgen.Queries, a authz.Actor, t subject) (string, error) {
	switch {
	case t.kind == User && t.id == string(a.UserID):
		return "nobody purges themselves: ask another superadmin", nil
	case t.kind == User && t.row.Role == string(authz.RoleSuperadmin):
		n, err := q.CountOtherSuperadmins(ctx, t.id)
		if err == nil && n == 0 {
			return t.name + " is the last active superadmin: make another one first", nil
		}
		return "", err
	case t.kind == Project && t.name == tenancy.Default && t.domain == tenancy.Default:
		return "project " + t.name + " is the cluster's first one and stays", nil
	case t.kind == Domain && t.name == tenancy.Default:
		return "domain " + t.name + " is the cluster's first one and stays", nil
	case t.kind == Domain && t.name == a.Domain:
		return "domain " + t.name + " is your own: have it done by a superadmin of another domain", nil
	}
	return "", nil
}

// nobody is an id that no user has.
const nobody = "00000000-0000-0000-0000-000000000000"

// Begin notes that a user, project or domain shall be forgotten, after which nobody is let in by it and nothing new starts; the loop does
// the rest. It is refused with Conflict for the reason that Preview tells. The name is free when the purge is done.
func (s *Service) Begin(ctx context.Context, a authz.Actor, kind Kind, ref string, o Options) (_ Purge, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, string(kind)+".purge", ref)
	defer end(&err)
	t, err := s.find(ctx, a, purging, kind, ref)
	if err != nil {
		return Purge{}, err
	}
	p := Purge{ID: s.d.IDs(), Kind: kind, Name: t.name, Domain: t.domain, Message: "begins"}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// Of the last two superadmins only one is purged, and of two purges of one subject only one begins.
		if err := tx.LockUserChanges(ctx); err != nil {
			return fmt.Errorf("wait for other changes of users: %w", err)
		}
		plan, err := look(ctx, tx.Queries, a, t, o)
		if err != nil {
			return err
		}
		if plan.Refusal != "" {
			what, next, _ := strings.Cut(plan.Refusal, ": ")
			return fault.Conflictf("%s", what).WithNext("%s", next)
		}
		if n, err := tx.CountPurges(ctx); err != nil || n >= maxPurges {
			return fault.Unavailablef("%d purges are waiting already", n).WithCause(err).WithNext("wait until some are done")
		}
		heir := new(string(a.UserID))
		return begin(ctx, tx, a.UserID, dbgen.AddPurgeParams{ID: p.ID, Kind: string(kind), Subject: t.id, Name: t.name, DomainName: t.domain,
			HeirID: heir, KeepShared: !o.PurgeShared})
	})
	if err != nil {
		return Purge{}, fmt.Errorf("purge %s %s: %w", kind, t.name, err)
	}
	return p, nil
}

// begin shuts a subject and writes its row.
func begin(ctx context.Context, tx *store.Tx, by cluster.UserID, row dbgen.AddPurgeParams) error {
	there, err := tx.BeingPurged(ctx, row.Kind, row.Subject)
	if err != nil {
		return fmt.Errorf("look for purges: %w", err)
	}
	if there {
		return fault.Conflictf("%s %s is being purged already", row.Kind, row.Name).WithNext("wait until that is done")
	}
	switch Kind(row.Kind) {
	case User:
		err = tx.ShutOutUser(ctx, row.Subject)
	case Project:
		err = tx.CloseProject(ctx, row.Subject)
	case Domain:
		err = tx.CloseDomain(ctx, row.Subject)
	}
	if err != nil {
		return fmt.Errorf("shut %s %s: %w", row.Kind, row.Name, err)
	}
	if by != "" {
		if err := tx.AddTask(ctx, dbgen.AddTaskParams{ID: row.ID, Kind: "purge-" + row.Kind, Owner: (*string)(&by), Subject: row.Name,
			Message: "begins"}); err != nil {
			return fmt.Errorf("note the task: %w", err)
		}
	}
	tx.Wake(store.TopicPurges)
	if err := tx.AddPurge(ctx, row); err != nil {
		return fmt.Errorf("note the purge: %w", err)
	}
	return nil
}

// List lists purges that are not done: all for superadmins and monitors, those of their domain for its administrators.
func (s *Service) List(ctx context.Context, a authz.Actor) ([]Purge, error) {
	if err := authz.Projects.Need(a, authz.SeeMembers, authz.Object{Domain: a.Domain}, "list purges"); err != nil {
		return nil, err
	}
	domain := a.Domain
	if authz.Cluster.May(a, authz.See, authz.Object{}) {
		domain = ""
	}
	rows, err := s.d.Store.ListPurges(ctx, domain, maxPurges)
	if err != nil {
		return nil, fmt.Errorf("read purges: %w", err)
	}
	out := make([]Purge, len(rows))
	for i, r := range rows {
		out[i] = Purge{ID: r.ID, Kind: Kind(r.Kind), Name: r.Name, Domain: r.DomainName, Message: r.Message, Done: r.Done}
	}
	return out, nil
}
