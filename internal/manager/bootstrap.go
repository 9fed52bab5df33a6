package manager

import (
	"context"
	"crypto/rand"
	"fmt"

	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
)

// Bootstrap makes the first rows of an empty cluster (domain, project, resource group, presets and policies "default", the
// administrator and a keypair) and returns the administrator's credentials; created says whether this call made them.
// On later starts the password is empty.
func Bootstrap(ctx context.Context, d tenancy.Deps) (c tenancy.Credentials, created bool, err error) {
	if d.IDs == nil {
		d.IDs = tenancy.RandomIDs(rand.Reader)
	}
	err = d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		// Of several managers that start together one makes the rows.
		if err := tx.LockBootstrap(ctx); err != nil {
			return fmt.Errorf("wait for other managers: %w", err)
		}
		if c, created, err = tenancy.Prepare(ctx, tx, d); err != nil {
			return err
		}
		if created {
			if err := resource.FirstRows(ctx, tx, d.IDs); err != nil {
				return err
			}
		}
		return folder.AllowFirstHosts(ctx, tx)
	})
	if err != nil {
		return tenancy.Credentials{}, false, fmt.Errorf("prepare the cluster: %w", err)
	}
	return c, created, nil
}
