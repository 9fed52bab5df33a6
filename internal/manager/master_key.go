package manager

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"path/filepath"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/notice"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/otp"
)

func masterKeyFile(stateDir string) string { return filepath.Join(stateDir, "master.key") }

// RotationStep is a part of replacing the master key; package seal says what each does.
type RotationStep string

// The steps in their order. RotateAll is all three, for a cluster with a single manager.
const (
	RotateAll     RotationStep = "all"
	RotatePrepare RotationStep = "prepare"
	RotateUse     RotationStep = "use"
	RotateFinish  RotationStep = "finish"
)

// Rotation is what a step did.
type Rotation struct {
	Key      string `json:"key"`      // id of the key that seals now
	Prepared string `json:"prepared"` // id of the key that the next step uses; "" when none waits
	Resealed int    `json:"resealed"` // rows and settings that were sealed again
}

// MayRotate refuses all steps at once where several managers run: the others would open nothing until they have the new key.
func MayRotate(step RotationStep, managers int) error {
	if step != RotateAll || managers < 2 {
		return nil
	}
	return fault.Conflictf("%d managers run, and each has a copy of the master key", managers).WithReason("several-managers").
		WithNext("go step by step, and copy master.key to all managers after each: berth admin rotate-master-key --step prepare")
}

// RotateMasterKey replaces the master key of a running manager, or does one step of it.
func (m *Manager) RotateMasterKey(ctx context.Context, step RotationStep) (Rotation, error) {
	if m.peers != nil {
		if err := MayRotate(step, m.peers.Count()); err != nil {
			return Rotation{}, err
		}
	}
	return rotate(ctx, m.store, m.key, step)
}

// RotateMasterKeyInDatabase does the same beside a manager, with its state directory and its database. A manager that runs there
// follows the file.
func RotateMasterKeyInDatabase(ctx context.Context, cfg Config, step RotationStep) (Rotation, error) {
	key, err := seal.Load(masterKeyFile(cfg.StateDir), rand.Reader)
	if err != nil {
		return Rotation{}, fmt.Errorf("load master key: %w", err)
	}
	db, err := store.Open(ctx, store.Config{DSN: cfg.Postgres.DSN.Reveal(), SkipMigrations: true, MaxConns: 2},
		slog.New(slog.DiscardHandler))
	if err != nil {
		return Rotation{}, err
	}
	defer db.Close()
	return rotate(ctx, db, key, step)
}

func rotate(ctx context.Context, db *store.Store, key *seal.Key, step RotationStep) (done Rotation, err error) {
	all := step == RotateAll
	if !all && step != RotatePrepare && step != RotateUse && step != RotateFinish {
		return done, fault.Invalidf("%q is not a step of replacing the master key", step).WithNext("use all, prepare, use or finish")
	}
	// All steps at once finish what was begun instead of beginning again.
	if step == RotatePrepare || all && !key.Replaced() {
		if done.Prepared, err = key.Prepare(); err != nil {
			return done, fmt.Errorf("prepare a master key: %w", err)
		}
	}
	if all || step == RotateUse {
		if err = key.Use(); err != nil {
			return done, fmt.Errorf("use the new master key: %w", err)
		}
		done.Prepared = ""
	}
	in := key.ID()
	if step != RotatePrepare {
		if done.Resealed, err = reseal(ctx, db, key); err != nil {
			return done, fmt.Errorf("seal everything again: %w", err)
		}
	}
	if all || step == RotateFinish {
		if err = key.Forget(in); err != nil {
			return done, fmt.Errorf("forget the old master key: %w", err)
		}
	}
	done.Key = key.ID()
	return done, nil
}

// reseal seals everything that is stored with the current master key. It may be cut off and begun again. What was being written
// meanwhile may be sealed with the key before, so all is looked at once more when those writers have ended.
func reseal(ctx context.Context, db *store.Store, key *seal.Key) (changed int, err error) {
	for pass := range 2 {
		if pass == 1 {
			err := db.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
				// Updates of the vault seal before they write. They hold this lock meanwhile.
				if err := tx.LockBootstrap(ctx); err != nil {
					return err
				}
				return tx.WaitForWritersOfSecrets(ctx)
			})
			if err != nil {
				return changed, fmt.Errorf("wait for writers of secrets: %w", err)
			}
		}
		for _, part := range []func(context.Context, *store.Store, *seal.Key) (int, error){
			tenancy.Reseal, otp.Reseal, resource.Reseal, notice.Reseal, node.Reseal,
			func(ctx context.Context, db *store.Store, key *seal.Key) (int, error) {
				return (&vault{db, key}).reseal(ctx)
			},
		} {
			n, err := part(ctx, db, key)
			if err != nil {
				return changed, err
			}
			changed += n
		}
	}
	return changed, nil
}
