package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/manager/store/dbgen"
)

// View runs fn with queries that all see the database as of one instant and cannot change it.
func (s *Store) View(ctx context.Context, fn func(ctx context.Context, q *dbgen.Queries) error) error {
	ctx, cancel := context.WithTimeout(ctx, transactionFactor*s.patience)
	defer cancel()
	var raw pgx.Tx
	err := s.outage.patiently(ctx, func() (err error) {
		raw, err = s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		return err
	})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = raw.Rollback(rctx)
	}()
	return wrap(fn(ctx, s.Queries.WithTx(raw)))
}
