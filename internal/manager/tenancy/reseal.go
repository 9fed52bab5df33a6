package tenancy

import (
	"context"

	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Reseal seals the secrets of all keypairs with the current master key and returns how many it changed.
func Reseal(ctx context.Context, db *store.Store, key *seal.Key) (changed int, err error) {
	return store.Reseal(ctx, db, "",
		func(ctx context.Context, tx *store.Tx, after string, limit int32) ([]dbgen.SealedOfKeypairsRow, error) {
			return tx.SealedOfKeypairs(ctx, after, limit)
		},
		func(ctx context.Context, tx *store.Tx, r dbgen.SealedOfKeypairsRow) (string, bool, error) {
			secret, first, err := key.Reseal(r.SecretSealed, keypairPurpose(r.AccessKey))
			if err != nil {
				return r.AccessKey, false, err
			}
			ssh, second := r.SshPrivateSealed, false
			if ssh != nil {
				if ssh, second, err = key.Reseal(ssh, sshPurpose(r.AccessKey)); err != nil {
					return r.AccessKey, false, err
				}
			}
			if !first && !second {
				return r.AccessKey, false, nil
			}
			return r.AccessKey, true, tx.ResealKeypair(ctx, secret, ssh, r.AccessKey)
		})
}
