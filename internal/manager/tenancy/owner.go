package tenancy

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
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
	o := authz.Object{Name: string(key), Owner: cluster.UserID(row.UserID), OwnerRole: authz.Role(row.Role), Domain: row.DomainName}
	if err := authz.Keypairs.Need(a, authz.Act, o, "act for access key "+string(key)); err != nil {
		return none, err // also for keys that do not exist: strangers learn nothing
	}
	if row.AccessKey == "" || !row.IsActive || row.UserStatus != "active" || !row.DomainActive {
		return none, fault.Invalidf("access key %s does not exist or is not active", key)
	}
	return row, nil
}
