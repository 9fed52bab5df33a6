package resource

import (
	"context"

	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

func tokenPurpose(group string) string { return "wsproxy-api-token:" + group }

// Reseal seals the secrets of all resource groups with the current master key and returns how many it changed.
func Reseal(ctx context.Context, db *store.Store, key *seal.Key) (changed int, err error) {
	return store.Reseal(ctx, db, "",
		func(ctx context.Context, tx *store.Tx, after string, limit int32) ([]dbgen.SealedOfResourceGroupsRow, error) {
			return tx.SealedOfResourceGroups(ctx, after, limit)
		},
		func(ctx context.Context, tx *store.Tx, r dbgen.SealedOfResourceGroupsRow) (string, bool, error) {
			fresh, is, err := key.Reseal(r.WsproxyApiTokenSealed, tokenPurpose(r.Name))
			if err != nil || !is {
				return r.Name, false, err
			}
			return r.Name, true, tx.ResealResourceGroup(ctx, fresh, r.Name)
		})
}
