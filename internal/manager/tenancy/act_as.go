package tenancy

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// ActAs is another user as an actor, for a superadmin who does something in their stead: the decisions are those about the user, and the
// record names both. user is an id. Nobody acts as a superadmin, as oneself, or with an API token.
func (s *Service) ActAs(ctx context.Context, a authz.Actor, user string) (authz.Actor, error) {
	var none authz.Actor
	if err := authz.InPerson(a, "act as other users"); err != nil {
		return none, err
	}
	id, ok := cluster.CanonicalUUID(user)
	if !ok {
		return none, fault.Invalidf("%.60q is no id of a user", user)
	}
	row, err := s.d.Store.UserByRef(ctx, id)
	if err != nil && !store.Missing(err) {
		return none, fmt.Errorf("find user %s: %w", user, err)
	}
	o := authz.Object{Name: user, Owner: cluster.UserID(row.ID), OwnerRole: authz.Role(row.Role), Domain: row.DomainName}
	if err := authz.Users.Need(a, authz.Act, o, "act as user "+id); err != nil {
		return none, err
	}
	switch {
	case row.ID == "":
		return none, authz.NotFound(userNoun, user)
	case row.ID == string(a.UserID):
		return none, fault.Invalidf("%s is who asks", a.Email)
	case row.MainAccessKey == nil:
		return none, fault.Conflictf("%s has no main keypair", row.Email)
	}
	other, _, err := s.Authenticate(ctx, cluster.AccessKey(*row.MainAccessKey))
	if fault.Is(err, fault.Unauthenticated) {
		return none, fault.Conflictf("%s is not active", row.Email).WithNext("activate the user, the domain and the keypair first")
	}
	if err != nil {
		return none, err
	}
	// It is the superadmin whose requests come from somewhere and are counted.
	other.ClientIP, other.AllowedClientIP, other.RateLimit, other.By, other.ByLogin = a.ClientIP, a.AllowedClientIP, a.RateLimit, &a, a.ByLogin
	return other, nil
}
