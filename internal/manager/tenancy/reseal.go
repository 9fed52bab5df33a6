package tenancy

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
)

// resealPage is how many rows are held at a time.
const resealPage = 200

// Reseal seals the secrets of all keypairs with the current master key and returns how many it changed.
func Reseal(ctx context.Context, db *store.Store, key *seal.Key) (changed int, err error) {
	for after, more := "", true; more && err == nil; {
		page, from := 0, after
		err = db.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			page = 0
			rows, err := tx.SealedOfKeypairs(ctx, from, resealPage)
			if err != nil {
				return fmt.Errorf("read sealed keypairs: %w", err)
			}
			more = len(rows) == resealPage
			for _, r := range rows {
				after = r.AccessKey
				secret, first, err := key.Reseal(r.SecretSealed, keypairPurpose(r.AccessKey))
				if err != nil {
					return err
				}
				ssh, second := r.SshPrivateSealed, false
				if ssh != nil {
					if ssh, second, err = key.Reseal(ssh, sshPurpose(r.AccessKey)); err != nil {
						return err
					}
				}
				if !first && !second {
					continue
				}
				page++
				if err := tx.ResealKeypair(ctx, secret, ssh, r.AccessKey); err != nil {
					return fmt.Errorf("seal keypair %s again: %w", r.AccessKey, err)
				}
			}
			return nil
		})
		changed += page
	}
	return changed, err
}
