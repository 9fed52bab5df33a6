package manager

import (
	"context"
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
)

// vault keeps small secrets of the cluster in PostgreSQL, sealed with the master key: the
// authority of node certificates, join tokens, serials. It is the Vault of link/ca.
type vault struct {
	store *store.Store
	key   *seal.Key
}

const vaultPrefix = "vault/"

func (v *vault) open(key string, raw json.RawMessage) ([]byte, error) {
	var sealed []byte // base64 in JSON
	if err := json.Unmarshal(raw, &sealed); err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	secret, err := v.key.Open(sealed, vaultPrefix+key)
	if err != nil {
		return nil, fmt.Errorf("unseal %s: %w", key, err)
	}
	return []byte(secret.Reveal()), nil
}

// Get returns the value of a key, nil when there is none.
func (v *vault) Get(ctx context.Context, key string) ([]byte, error) {
	raw, err := v.store.GetSetting(ctx, vaultPrefix+key)
	if store.Missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return v.open(key, raw)
}

// Update replaces a value alone against other managers.
func (v *vault) Update(ctx context.Context, key string, fn func(old []byte) ([]byte, error)) (now []byte, err error) {
	err = v.store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// One lock for all keys: updates are rare.
		if err := tx.LockBootstrap(ctx); err != nil {
			return fmt.Errorf("wait for other managers: %w", err)
		}
		var old []byte
		raw, err := tx.GetSetting(ctx, vaultPrefix+key)
		switch {
		case store.Missing(err):
		case err != nil:
			return fmt.Errorf("read %s: %w", key, err)
		default:
			if old, err = v.open(key, raw); err != nil {
				return err
			}
		}
		fresh, err := fn(old)
		if err != nil {
			return err
		}
		if fresh == nil {
			now = old
			return nil
		}
		sealed, err := v.key.Seal(seal.Secret(fresh), vaultPrefix+key)
		if err != nil {
			return fmt.Errorf("seal %s: %w", key, err)
		}
		text, err := json.Marshal(sealed)
		if err != nil {
			return fmt.Errorf("render %s: %w", key, err)
		}
		now = fresh
		return tx.SetSetting(ctx, vaultPrefix+key, text)
	})
	return now, err
}

// resealPage is how many entries are held at a time.
const resealPage = 50

// reseal seals all entries with the current master key and returns how many it changed.
func (v *vault) reseal(ctx context.Context) (changed int, err error) {
	for after, more := "", true; more && err == nil; {
		page, from := 0, after
		err = v.store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			page = 0
			rows, err := tx.SealedSettings(ctx, from, vaultPrefix, resealPage)
			if err != nil {
				return fmt.Errorf("read sealed settings: %w", err)
			}
			more = len(rows) == resealPage
			for _, r := range rows {
				after = r.Key
				var sealed []byte // base64 in JSON
				if err := json.Unmarshal(r.Value, &sealed); err != nil {
					return fmt.Errorf("read %s: %w", r.Key, err)
				}
				fresh, again, err := v.key.Reseal(sealed, r.Key)
				if err != nil {
					return err
				}
				if !again {
					continue
				}
				page++
				text, err := json.Marshal(fresh)
				if err != nil {
					return fmt.Errorf("render %s: %w", r.Key, err)
				}
				if err := tx.SetSetting(ctx, r.Key, text); err != nil {
					return fmt.Errorf("seal %s again: %w", r.Key, err)
				}
			}
			return nil
		})
		changed += page
	}
	return changed, err
}
