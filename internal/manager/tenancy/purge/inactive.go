package purge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy/plan"
)

// errTried rolls a change back that was only tried.
var errTried = errors.New("tried, and rolled back")

// PreviewInactive says what becomes of what a user, project or domain has when it is made inactive (tenancy.DeleteUser, DeleteProject,
// DeleteDomain), and whether that would be refused. It changes nothing: the change is made in a transaction that is rolled back.
func (s *Service) PreviewInactive(ctx context.Context, a authz.Actor, kind Kind, ref string) (Plan, error) {
	t, err := s.find(ctx, a, closing, kind, ref)
	if err != nil {
		return Plan{}, err
	}
	out := Plan{Kind: t.kind, Name: t.name, Domain: t.domain}
	err = s.d.Store.Tx(audit.Trial(ctx), func(ctx context.Context, tx *store.Tx) error {
		var err error
		if out.Items, err = becomes(ctx, tx, t); err != nil {
			return err
		}
		switch kind {
		case User:
			err = s.d.Tenancy.DeleteUser(ctx, a, t.name)
		case Project:
			err = s.d.Tenancy.DeleteProject(ctx, a, t.id)
		case Domain:
			err = s.d.Tenancy.DeleteDomain(ctx, a, t.id)
		}
		if out.Refusal = ""; fault.Is(err, fault.Conflict) {
			if out.Refusal = err.Error(); fault.NextOf(err) != "" {
				out.Refusal += ": " + fault.NextOf(err)
			}
			err = nil
		}
		if err != nil {
			return err
		}
		return errTried
	})
	if err != nil && !errors.Is(err, errTried) {
		return Plan{}, fmt.Errorf("try what making %s %s inactive does: %w", kind, t.name, err)
	}
	return out, nil
}

// becomes tells what becomes of what belongs to a subject, with the first names of each kind.
func becomes(ctx context.Context, tx *store.Tx, t subject) ([]Item, error) {
	fail := func(what string, err error) ([]Item, error) {
		return nil, fmt.Errorf("read %s of %s: %w", what, t.name, err)
	}
	n, err := tx.CountOf(ctx, t.user, t.project, t.domRef)
	if err != nil {
		return fail("what belongs", err)
	}
	live, err := tx.LiveSessionsOf(ctx, t.user, t.project, t.domRef, maxPurges)
	if err != nil {
		return fail("the sessions", err)
	}
	folders, err := tx.FoldersOf(ctx, dbgen.FoldersOfParams{UserID: t.user, ProjectID: t.project, DomainName: t.domRef, After: nobody,
		MaxRows: maxPurges})
	if err != nil {
		return fail("the folders", err)
	}
	total, err := tx.CountFoldersOf(ctx, t.user, t.project, t.domRef)
	if err != nil {
		return fail("the folders", err)
	}
	var tokens int
	if err := tx.DB().QueryRow(ctx, `SELECT count(*) FROM api_tokens t JOIN users u ON u.id = t.user_id
		WHERE t.user_id = $1::uuid OR u.domain_name = $2::text`, t.user, t.domRef).Scan(&tokens); err != nil {
		return fail("the API tokens", err)
	}
	o := plan.Owned{Live: int(n.Live), Folders: int(total), Borrowed: int(n.Shares), Keypairs: int(n.Keypairs), Tokens: tokens,
		Members: int(n.Memberships)}
	names := map[string][]string{}
	for _, r := range live {
		what := "sessions that run"
		if r.Status == "PENDING" {
			what = "sessions that wait to start"
			o.Waiting++
		}
		names[what] = append(names[what], r.Name+" ("+r.Email+")")
	}
	for _, f := range folders {
		what := "folders"
		if f.Shared && f.UserID != nil {
			what = "shared folders"
			o.Shared++
		}
		names[what] = append(names[what], f.Name+" ("+f.Host+")")
	}
	kind := map[Kind]plan.Kind{User: plan.User, Project: plan.Project, Domain: plan.Domain}[t.kind]
	if t.kind == Domain {
		c, err := tx.CountInDomain(ctx, t.id)
		if err != nil {
			return fail("users and projects", err)
		}
		o.Users, o.Projects = int(c.Users), int(c.Projects)
	}
	var out []Item
	for _, f := range plan.Inactive(kind, o) {
		of := names[f.What]
		out = append(out, Item{What: f.What, Count: f.Count, Names: slices.Clone(of[:min(len(of), shown)]), Fate: f.Words})
	}
	return out, nil
}
