package resource

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
)

// resealPage is how many rows are held at a time.
const resealPage = 200

func tokenPurpose(group string) string { return "wsproxy-api-token:" + group }

// Reseal seals the secrets of all resource groups with the current master key and returns how many it changed.
func Reseal(ctx context.Context, db *store.Store, key *seal.Key) (changed int, err error) {
	for after, more := "", true; more && err == nil; {
		page, from := 0, after
		err = db.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			page = 0
			rows, err := tx.SealedOfResourceGroups(ctx, from, resealPage)
			if err != nil {
				return fmt.Errorf("read the sealed tokens of resource groups: %w", err)
			}
			more = len(rows) == resealPage
			for _, r := range rows {
				after = r.Name
				fresh, again, err := key.Reseal(r.WsproxyApiTokenSealed, tokenPurpose(r.Name))
				if err != nil {
					return err
				}
				if !again {
					continue
				}
				page++
				if err := tx.ResealResourceGroup(ctx, fresh, r.Name); err != nil {
					return fmt.Errorf("seal the token of resource group %s again: %w", r.Name, err)
				}
			}
			return nil
		})
		changed += page
	}
	return changed, err
}
