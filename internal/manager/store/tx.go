package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth.dev/berth/internal/manager/store/dbgen"
)

// Tx is a running transaction. Wakes asked for in it are sent after it is committed.
type Tx struct {
	*dbgen.Queries                // after what has gathered in writes
	direct         *dbgen.Queries // past it
	raw            pgx.Tx
	wakes          map[string]struct{}
	writes         writes
}

type txKey struct{ s *Store }

// maxAttempts bounds how often a transaction is run when it loses against others.
const maxAttempts = 6

// Tx runs fn in one transaction and commits it when fn returns nil. A Tx within a Tx of the same context joins the
// outer one. Serialization failures and deadlocks run the outermost fn again from the start, so fn must
// have no effects besides the transaction; nothing that waits for the network belongs into it.
func (s *Store) Tx(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if outer, ok := ctx.Value(txKey{s}).(*Tx); ok {
		return fn(ctx, outer)
	}
	for attempt := 1; ; attempt++ {
		err := s.once(ctx, fn)
		if err == nil || attempt == maxAttempts || !lost(err) || ctx.Err() != nil {
			return wrap(err)
		}
		wait := time.Duration(rand.Int64N(int64(time.Millisecond) << attempt))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Store) once(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, transactionFactor*s.patience)
	defer cancel()
	var raw pgx.Tx
	note := NoteOf(ctx)
	err := s.outage.patiently(ctx, func() (err error) { raw, err = s.pool.BeginTx(ctx, note.options()); return err })
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	tx := &Tx{direct: s.Queries.WithTx(raw), raw: raw, wakes: map[string]struct{}{}, writes: newWrites()}
	tx.Queries = dbgen.New(flushed{tx})
	// Rollback after Commit does nothing. It gets its own time, because ctx may be the reason to roll back.
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = raw.Rollback(rctx)
	}()
	if err := fn(context.WithValue(ctx, txKey{s}, tx), tx); err != nil {
		return err
	}
	if err := tx.flush(ctx); err != nil {
		return err
	}
	left, err := tx.leave(ctx, note)
	if err != nil {
		return err
	}
	if err := raw.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", written(err))
	}
	if left {
		note.left.Store(true)
	}
	for topic := range tx.wakes {
		s.Wake(topic)
	}
	return nil
}

// Wake sends a hint when the transaction is committed.
func (t *Tx) Wake(topics ...string) {
	for _, topic := range topics {
		t.wakes[topic] = struct{}{}
	}
}

// DB gives direct access for queries that are composed at run time.
func (t *Tx) DB() dbgen.DBTX { return flushed{t} }

func lost(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == "40001" || pe.Code == "40P01")
}
