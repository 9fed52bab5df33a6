package node

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// secretPurpose is what a secret of a session is sealed for.
func secretPurpose(session string) string { return "secret of session " + session }

// secretsOf are the secrets of the sessions of several kernels among these, made where they are missing. They stay as long as the
// session, so that a kernel that starts again has that of the others.
func (n *Reports) secretsOf(ctx context.Context, rows []dbgen.KernelSpecsRow) (map[cluster.SessionID]string, error) {
	missing := map[string]bool{}
	var sessions []string
	for _, r := range rows {
		if r.ClusterSize > 1 && !missing[r.SessionID] {
			missing[r.SessionID] = true
			sessions = append(sessions, r.SessionID)
		}
	}
	out := map[cluster.SessionID]string{}
	if len(sessions) == 0 {
		return out, nil
	}
	read := func() error {
		found, err := n.Store.SessionSecrets(ctx, sessions)
		if err != nil {
			return fmt.Errorf("read secrets of sessions: %w", err)
		}
		for _, r := range found {
			text, err := n.Seal.Open(r.Sealed, secretPurpose(r.SessionID))
			if err != nil {
				return fmt.Errorf("unseal the secret of session %s: %w", r.SessionID, err)
			}
			out[cluster.SessionID(r.SessionID)] = text.Reveal()
			delete(missing, r.SessionID)
		}
		return nil
	}
	if err := read(); err != nil || len(missing) == 0 {
		return out, err
	}
	err := n.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.BeginSessionSecrets(ctx); err != nil {
			return err
		}
		for _, id := range slices.Sorted(slices.Values(sessions)) { // in one order with other managers
			if !missing[id] {
				continue
			}
			raw := make([]byte, 32)
			if _, err := io.ReadFull(n.Random, raw); err != nil {
				return fmt.Errorf("draw a secret: %w", err)
			}
			sealed, err := n.Seal.Seal(seal.Secret(hex.EncodeToString(raw)), secretPurpose(id))
			if err != nil {
				return fmt.Errorf("seal a secret: %w", err)
			}
			if err := tx.AddSessionSecret(ctx, sealed, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make secrets of sessions: %w", err)
	}
	return out, read()
}

// Reseal seals the secrets of all sessions with the current master key and returns how many it changed.
func Reseal(ctx context.Context, db *store.Store, key *seal.Key) (changed int, err error) {
	return store.Reseal(ctx, db, store.BeforeAllUUIDs,
		func(ctx context.Context, tx *store.Tx, after string, limit int32) ([]dbgen.SealedOfSessionsRow, error) {
			return tx.SealedOfSessions(ctx, after, limit)
		},
		func(ctx context.Context, tx *store.Tx, r dbgen.SealedOfSessionsRow) (string, bool, error) {
			fresh, is, err := key.Reseal(r.Sealed, secretPurpose(r.SessionID))
			if err != nil || !is {
				return r.SessionID, false, err
			}
			return r.SessionID, true, tx.ResealSession(ctx, fresh, r.SessionID)
		})
}
