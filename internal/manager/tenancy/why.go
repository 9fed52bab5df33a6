package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/facts"
)

// Why tells how it is decided whether a user may do something with an object.
type Why struct {
	User, Action, Object string
	authz.Decision
	// Inactive says that the user, their domain or all of their keypairs are not active: they are let in nowhere, whatever the rule says.
	Inactive bool
}

// explained are the kinds of objects that Why knows, by the word in front of the colon.
var explained = map[string]facts.Source{
	"session": facts.Sessions, "app": facts.Circuits, "folder": facts.Folders, "image": facts.Images, "user": facts.Users,
	"keypair": facts.Keypairs, "project": facts.Projects, "domain": facts.Domains, "keypair-policy": facts.KeypairPolicies,
	"user-policy": facts.UserPolicies, "project-policy": facts.ProjectPolicies, "resource-group": facts.ResourceGroups,
	"agent": facts.Agents, "preset": facts.Presets, "idle-checker": facts.IdleCheckers, "task": facts.Tasks,
}

// Explain tells which rule decides whether a user ("" is the actor) may do something with an object, by the same rules that decide.
// Everybody asks about themselves, those who see a user about that user; the object is one that the actor sees. action is a verb of
// docs/authorisation.md; object is a kind and a key, such as session:ID, user:EMAIL or project:NAME.
func (s *Service) Explain(ctx context.Context, a authz.Actor, user, action, object string) (*Why, error) {
	who, err := s.MainActor(ctx, a, user)
	if err != nil {
		return nil, err
	}
	kind, key, found := strings.Cut(object, ":")
	src, known := explained[kind]
	if !found || !known || key == "" || store.Text(key) != key {
		return nil, fault.Invalidf("%.80q names no object", object).WithNext("write a kind and a name such as user:ada@example.org; kinds are %s",
			strings.Join(kindsExplained(), ", "))
	}
	verb := authz.Verb(action)
	if verbs := src.Kind.Verbs(); !slices.Contains(verbs, verb) {
		return nil, fault.Invalidf("nobody can %.40q a %s", action, src.Kind.Noun).WithNext("what can be done with it: %s", joined(verbs))
	}
	if key, err = s.keyOf(ctx, who, kind, key); err != nil {
		return nil, err
	}
	seen, err := s.objectFor(ctx, a, src, key)
	if err != nil {
		return nil, err
	}
	if err := src.Kind.Check(a, authz.See, seen); err != nil {
		return nil, err
	}
	o, err := s.objectFor(ctx, who, src, key)
	if err != nil {
		return nil, err
	}
	row, err := s.d.Store.ActorByKey(ctx, string(who.AccessKey))
	if err != nil {
		return nil, fmt.Errorf("find keypair: %w", err)
	}
	w := &Why{User: who.Email, Action: action, Object: object, Decision: src.Kind.Explain(who, verb, o),
		Inactive: !row.IsActive || row.UserStatus != userActive || !row.DomainActive}
	w.Allowed = w.Allowed && !w.Inactive
	return w, nil
}

func kindsExplained() []string {
	var out []string
	for k := range explained {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func joined(verbs []authz.Verb) string {
	out := make([]string, len(verbs))
	for i, v := range verbs {
		out[i] = string(v)
	}
	return strings.Join(out, ", ")
}

// keyOf is the key of an object that is known by another name, too: users by email, projects and live sessions by name.
func (s *Service) keyOf(ctx context.Context, who authz.Actor, kind, ref string) (string, error) {
	id, isID := cluster.CanonicalUUID(ref)
	if isID {
		ref = id
	}
	switch {
	case kind == "user":
		u, err := s.userOf(ctx, ref)
		if err != nil || u.ID != "" {
			return u.ID, err
		}
	case kind == "project":
		p, err := s.FindProject(ctx, ref, who.Domain)
		return p.ID, err
	case kind == "session" && !isID:
		rows, err := s.d.Store.SessionsNamed(ctx, string(who.AccessKey), ref)
		if err != nil {
			return "", fmt.Errorf("find session %q: %w", ref, err)
		}
		if len(rows) == 1 {
			return rows[0].ID, nil
		}
	}
	return ref, nil
}

// objectFor reads the facts of an object for one actor.
func (s *Service) objectFor(ctx context.Context, a authz.Actor, src facts.Source, key string) (authz.Object, error) {
	o := authz.Object{Name: key}
	var args []any
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	columns := []string{"''"}
	of := []authz.Fact{}
	for f := range src.Columns {
		of = append(of, f)
	}
	slices.Sort(of)
	for _, f := range of {
		columns = append(columns, src.Columns.Expression(a, f, arg))
	}
	values := make([][]string, len(of))
	into := []any{new(string)}
	for i := range values {
		into = append(into, &values[i])
	}
	sql := "SELECT " + strings.Join(columns, ", ") + " FROM " + src.From + " WHERE " + src.Key + " = " + arg(key)
	err := s.d.Store.DB().QueryRow(ctx, sql, args...).Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return o, authz.NotFound(src.Kind.Noun, key)
	}
	if err != nil {
		return o, fmt.Errorf("read what decides about %s %s: %w", src.Kind.Noun, key, err)
	}
	for i, f := range of {
		o = o.With(f, values[i])
	}
	return o, nil
}
