package provision

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/list"
)

// Group is a group of a provider.
type Group struct {
	DisplayName, ExternalID, ID string
	Members                     []Ref
	Version                     int64
	Created, Changed            time.Time
}

// MaxGroupCount is the largest page of groups with their members.
const MaxGroupCount = 20

var groupFields = list.Fields{"id": list.ID("g.id"), "display_name": list.Text("lower(g.display_name)"),
	"external_id": list.Text("g.external_id"),
	"created":     list.Time("g.created_at"), "changed": list.Time("g.modified_at"),
	"members": list.Texts("ARRAY(SELECT m.member_id::text FROM scim_members m WHERE m.group_id = g.id)")}

var groupAttributes = map[string]scim.Attribute{"id": {Field: "id"}, "displayname": {Field: "display_name", Kind: scim.Folded},
	"externalid": {Field: "external_id"}, "meta.created": {Field: "created", Kind: scim.Time},
	"meta.lastmodified": {Field: "changed", Kind: scim.Time}, "members": {Field: "members", Kind: scim.Set},
	"members.value": {Field: "members", Kind: scim.Set}}

// ListGroups lists the groups of the token's provider. Without members, the members are left out.
func (s *Service) ListGroups(ctx context.Context, a authz.Actor, p Page, members bool) ([]Group, int, error) {
	c, err := s.client(a)
	if err != nil {
		return nil, 0, err
	}
	l := &list.Spec{From: "scim_groups g", Key: "g.id::text", Fields: groupFields, Order: "g.created_at"}
	l.And("g.provider = %s", c.name)
	l.And("g.domain_name = %s", c.domain)
	if members {
		p.Count = min(p.Count, MaxGroupCount)
	}
	ids, total, err := s.keys(ctx, l, groupAttributes, p)
	if err != nil {
		return nil, 0, err
	}
	views, err := s.groups(ctx, ids, members)
	return list.InOrder(ids, views), total, err
}

func (s *Service) groups(ctx context.Context, ids []string, members bool) (map[string]Group, error) {
	rows, err := s.d.Store.ScimGroups(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	out := map[string]Group{}
	for _, r := range rows {
		out[r.ID] = Group{ID: r.ID, DisplayName: r.DisplayName, ExternalID: r.ExternalID, Members: []Ref{}, Version: r.Version,
			Created: r.CreatedAt.UTC(), Changed: r.ModifiedAt.UTC()}
	}
	if !members {
		return out, nil
	}
	all, err := s.d.Store.MembersOfScimGroups(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	for _, m := range all {
		g := out[m.GroupID]
		g.Members = append(g.Members, Ref{m.MemberID, m.UserName})
		out[m.GroupID] = g
	}
	return out, nil
}

// group finds a group of the client.
func (s *Service) group(ctx context.Context, c client, id string, members bool) (Group, error) {
	key, err := canonical("group", id)
	if err != nil {
		return Group{}, err
	}
	rows, err := s.d.Store.ScimGroups(ctx, []string{key})
	if err != nil {
		return Group{}, fmt.Errorf("find a group: %w", err)
	}
	if len(rows) == 0 || rows[0].Provider != c.name || rows[0].DomainName != c.domain {
		return Group{}, missing("group", id)
	}
	views, err := s.groups(ctx, []string{key}, members)
	return views[key], err
}

// GetGroup reads a group of the token's provider. Without members, the members are left out.
func (s *Service) GetGroup(ctx context.Context, a authz.Actor, id string, members bool) (Group, error) {
	c, err := s.client(a)
	if err != nil {
		return Group{}, err
	}
	return s.group(ctx, c, id, members)
}

// CreateGroup keeps a new group of the token's provider.
func (s *Service) CreateGroup(ctx context.Context, a authz.Actor, g scim.Group) (Group, error) {
	id := s.d.IDs()
	c, err := s.stored(ctx, a, "scim.create-group", g.DisplayName, func(ctx context.Context, c client) error {
		return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			if err := tx.LockProvider(ctx, c.name); err != nil {
				return fmt.Errorf("wait for other changes: %w", err)
			}
			if err := taken(tx.AddScimGroup(ctx, dbgen.AddScimGroupParams{ID: id, Provider: c.name, DomainName: c.domain,
				DisplayName: g.DisplayName, ExternalID: g.ExternalID}), g.DisplayName); err != nil {
				return err
			}
			return join(ctx, tx, c, id, g.Members)
		})
	})
	if err != nil {
		return Group{}, err
	}
	if err := s.settleAll(ctx, g.Members); err != nil {
		return Group{}, err
	}
	return s.group(ctx, c, id, true)
}

// join adds users of the client to a group.
func join(ctx context.Context, tx *store.Tx, c client, group string, members []string) error {
	for _, id := range members {
		if _, ok := cluster.CanonicalUUID(id); !ok {
			return failed(http.StatusBadRequest, scim.InvalidValue, "there is no user %.60q", id)
		}
	}
	n, err := tx.CountScimUsers(ctx, members, c.name, c.domain)
	if err != nil {
		return fmt.Errorf("look for members: %w", err)
	}
	if int(n) != len(members) {
		return failed(http.StatusBadRequest, scim.InvalidValue, "%d of the %d new members are no users of %s", len(members)-int(n),
			len(members), c.name)
	}
	if err := tx.AddScimMembers(ctx, group, members); err != nil {
		return fmt.Errorf("add members: %w", err)
	}
	return tx.UnsettleScimUsers(ctx, members)
}

// ChangeGroup changes a group of the token's provider by a function. ifMatch is the version that it has to have, "" for any.
func (s *Service) ChangeGroup(ctx context.Context, a authz.Actor, id, ifMatch string, change func(*scim.Group) error) (Group, error) {
	var concerned []string
	c, err := s.stored(ctx, a, "scim.change-group", id, func(ctx context.Context, c client) error {
		return again(func() (err error) {
			concerned, err = s.changeGroup(ctx, c, id, ifMatch, change)
			return err
		})
	})
	if err != nil {
		return Group{}, err
	}
	if err := s.settleAll(ctx, concerned); err != nil {
		return Group{}, err
	}
	return s.group(ctx, c, id, true)
}

// changeGroup returns whom the change concerns.
func (s *Service) changeGroup(ctx context.Context, c client, id, ifMatch string, change func(*scim.Group) error) (concerned []string,
	err error) {
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockProvider(ctx, c.name); err != nil { // members of a group change one after another
			return fmt.Errorf("wait for other changes: %w", err)
		}
		before, old, err := groupIn(ctx, tx, c, id)
		if err != nil {
			return err
		}
		if err := matches(before.Version, ifMatch); err != nil {
			return err
		}
		g := scim.Group{DisplayName: before.DisplayName, ExternalID: before.ExternalID, Members: slices.Clone(old)}
		if err := change(&g); err != nil {
			return err
		}
		var fresh, gone []string
		for _, m := range g.Members {
			if _, is := slices.BinarySearch(old, m); !is {
				fresh = append(fresh, m)
			}
		}
		for _, m := range old {
			if _, is := slices.BinarySearch(g.Members, m); !is {
				gone = append(gone, m)
			}
		}
		loses := len(gone)
		concerned = append(slices.Clone(fresh), gone...)
		if g.DisplayName != before.DisplayName { // the rules know groups by their names
			concerned, loses = append(slices.Clone(fresh), old...), len(old)
		}
		if err := s.remove(ctx, tx, c, loses); err != nil {
			return err
		}
		n, err := tx.ChangeScimGroup(ctx, dbgen.ChangeScimGroupParams{ID: before.ID, Provider: c.name, Version: before.Version,
			DisplayName: g.DisplayName, ExternalID: g.ExternalID})
		if err != nil {
			return taken(err, g.DisplayName)
		}
		if n == 0 {
			return errMoved
		}
		if err := tx.DropScimMembers(ctx, before.ID, store.Texts(gone)); err != nil {
			return fmt.Errorf("remove members: %w", err)
		}
		if err := join(ctx, tx, c, before.ID, store.Texts(fresh)); err != nil {
			return err
		}
		return tx.UnsettleScimUsers(ctx, store.Texts(concerned))
	})
	return concerned, err
}

// groupIn reads a group with its members, sorted, in a transaction.
func groupIn(ctx context.Context, tx *store.Tx, c client, id string) (dbgen.ScimGroup, []string, error) {
	key, err := canonical("group", id)
	if err != nil {
		return dbgen.ScimGroup{}, nil, err
	}
	rows, err := tx.ScimGroups(ctx, []string{key})
	if err != nil {
		return dbgen.ScimGroup{}, nil, fmt.Errorf("find a group: %w", err)
	}
	if len(rows) == 0 || rows[0].Provider != c.name || rows[0].DomainName != c.domain {
		return dbgen.ScimGroup{}, nil, missing("group", id)
	}
	members, err := tx.MembersOfScimGroups(ctx, []string{key})
	if err != nil {
		return rows[0], nil, fmt.Errorf("read members: %w", err)
	}
	out := []string{}
	for _, m := range members {
		out = append(out, m.MemberID)
	}
	slices.Sort(out)
	return rows[0], out, nil
}

// DeleteGroup forgets a group of the token's provider. What it gave to its members is taken back.
func (s *Service) DeleteGroup(ctx context.Context, a authz.Actor, id, ifMatch string) error {
	var concerned []string
	_, err := s.stored(ctx, a, "scim.delete-group", id, func(ctx context.Context, c client) error {
		return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			if err := tx.LockProvider(ctx, c.name); err != nil {
				return fmt.Errorf("wait for other changes: %w", err)
			}
			g, members, err := groupIn(ctx, tx, c, id)
			if err != nil {
				return err
			}
			if err := matches(g.Version, ifMatch); err != nil {
				return err
			}
			concerned = members
			if err := s.remove(ctx, tx, c, len(members)); err != nil {
				return err
			}
			if err := tx.UnsettleScimUsers(ctx, members); err != nil {
				return fmt.Errorf("note whom it concerns: %w", err)
			}
			_, err = tx.DropScimGroup(ctx, g.ID, c.name)
			return err
		})
	})
	if err != nil {
		return err
	}
	return s.settleAll(ctx, concerned)
}

const (
	// passUsers is how many users a pass of the loop settles; calm and soon are the times between passes without and with some.
	passUsers  = 200
	calm, soon = 30 * time.Second, 2 * time.Second
)

// Loops returns the control loop that settles what requests left.
func (s *Service) Loops() []reconcile.Loop {
	if len(s.d.Providers) == 0 {
		return nil
	}
	return []reconcile.Loop{{Name: "provision", Begin: func(t reconcile.Term) reconcile.Work {
		return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) { return s.pass(ctx, t) }}
	}}}
}

func (s *Service) pass(ctx context.Context, t reconcile.Term) (time.Duration, error) {
	ids, err := s.d.Store.OpenScimUsers(ctx, passUsers)
	if err != nil {
		return 0, fmt.Errorf("read users that are not settled: %w", err)
	}
	if len(ids) == 0 {
		return calm, nil
	}
	if err := t.Check(ctx); err != nil {
		return 0, err
	}
	for _, id := range ids {
		if err := s.settle(ctx, id); err != nil { // one whose turn fails holds up no other
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			s.d.Log.Warn("a user of an identity provider could not be settled", "user", id, "error", err)
			if err := s.d.Store.PostponeScimUser(ctx, "it is tried again", id); err != nil {
				return 0, fmt.Errorf("postpone a user: %w", err)
			}
		}
	}
	return soon, nil
}
