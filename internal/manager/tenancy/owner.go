package tenancy

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/list"
)

// Owner authorises a request on behalf of a keypair ("" is the actor's own) and returns that keypair with its user: whose
// quota and memberships count.
func (s *Service) Owner(ctx context.Context, a authz.Actor, key cluster.AccessKey) (dbgen.ActorByKeyRow, error) {
	return OwnerOf(a, key, func(key string) (dbgen.ActorByKeyRow, error) { return s.d.Store.ActorByKey(ctx, key) })
}

// OwnerOf is Owner with a lookup of the caller's.
func OwnerOf(
	a authz.Actor, key cluster.AccessKey, find func(key string) (dbgen.ActorByKeyRow, error),
) (dbgen.ActorByKeyRow, error) {
	var none dbgen.ActorByKeyRow
	if err := authz.Authenticated(a); err != nil {
		return none, err
	}
	if a.Monitor() {
		return none, fault.Deniedf("%s is a monitor and may not create sessions", a.Email)
	}
	if key == "" {
		key = a.AccessKey
	}
	row, err := find(string(key))
	if err != nil && !store.Missing(err) {
		return none, fmt.Errorf("find owner: %w", err)
	}
	o := authz.Owned{Noun: keypairNoun, Name: string(key), AccessKey: key, UserID: cluster.UserID(row.UserID), Domain: row.DomainName,
		OwnerRole: authz.Role(row.Role)}
	if err := authz.ActFor(a, o); err != nil {
		return none, err // also for keys that do not exist: strangers learn nothing
	}
	if row.AccessKey == "" || !row.IsActive || row.UserStatus != "active" {
		return none, fault.Invalidf("access key %s does not exist or is not active", key)
	}
	return row, nil
}

// Restrict narrows a list of owned objects to what authz.Read allows. The arguments are SQL expressions of our own.
func Restrict(l *list.Spec, a authz.Actor, userID, domain, ownerRole string) {
	switch {
	case a.Superadmin() || a.Monitor():
	case a.Role == authz.RoleAdmin:
		own, dom := l.Arg(string(a.UserID)), l.Arg(a.Domain)
		l.Where(fmt.Sprintf("(%s = %s::uuid OR %s = %s AND %s <> 'superadmin')", userID, own, domain, dom, ownerRole))
	default:
		l.And(userID+" = %s::uuid", string(a.UserID))
	}
}
