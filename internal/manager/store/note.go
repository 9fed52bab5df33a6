package store

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Note is what a use case leaves about itself in each transaction that changes something: package audit makes one for every use case that
// it records. The note of a context concerns all transactions of that context, and every statement outside of one.
type Note struct {
	// Write inserts the note's rows. It must write nothing where the transaction has changed nothing (see audit.sql).
	Write func(ctx context.Context, q *Tx) (rows int64, err error)
	// left says that a transaction with the note was committed.
	left   atomic.Bool
	closed atomic.Bool
}

type noteKey struct{}

// WithNote gives the note to everything that is done with the context.
func WithNote(ctx context.Context, n *Note) context.Context {
	return context.WithValue(ctx, noteKey{}, n)
}

// NoteOf is the note of a context whose use case still runs, or nil.
func NoteOf(ctx context.Context) *Note {
	n, _ := ctx.Value(noteKey{}).(*Note)
	if n == nil || n.closed.Load() {
		return nil
	}
	return n
}

// Left reports whether a transaction that changed something was committed with the note.
func (n *Note) Left() bool { return n.left.Load() }

// Close ends the note: what still runs with its context, such as a background task, leaves none.
func (n *Note) Close() { n.closed.Store(true) }

// beginNoted begins a transaction whose changes of rows are noted by triggers (migration 0035) under an id of their own.
const beginNoted = "BEGIN; SELECT set_config('berth.audit', gen_random_uuid()::text, true)"

func (n *Note) options() pgx.TxOptions {
	if n == nil {
		return pgx.TxOptions{}
	}
	return pgx.TxOptions{BeginQuery: beginNoted}
}

// noted is access outside of a transaction. A statement that changes something becomes a transaction with the note of its context.
type noted struct {
	*translated
	s *Store
}

// Exec implements dbgen.DBTX.
func (n noted) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if NoteOf(ctx) == nil || reads(sql) {
		return n.translated.Exec(ctx, sql, args...)
	}
	err = n.s.Tx(ctx, func(ctx context.Context, tx *Tx) error {
		tag, err = tx.DB().Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

// QueryRow implements dbgen.DBTX.
func (n noted) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if NoteOf(ctx) == nil || reads(sql) {
		return n.translated.QueryRow(ctx, sql, args...)
	}
	return translatedRow(func(dest ...any) error {
		return n.s.Tx(ctx, func(ctx context.Context, tx *Tx) error { return tx.DB().QueryRow(ctx, sql, args...).Scan(dest...) })
	})
}

// leave writes the note of the context into the transaction.
func (t *Tx) leave(ctx context.Context, n *Note) (left bool, err error) {
	if n == nil {
		return false, nil
	}
	rows, err := n.Write(ctx, t)
	if err != nil {
		return false, fmt.Errorf("record what was done: %w", err)
	}
	return rows > 0, nil
}

// PruneAudit forgets entries of the audit log that are older than age, most at once, with their changes.
func (s *Store) PruneAudit(ctx context.Context, age time.Duration, most int32) (removed int64, err error) {
	err = s.Tx(ctx, func(ctx context.Context, tx *Tx) error {
		if err := tx.AllowAuditRetention(ctx); err != nil {
			return fmt.Errorf("allow retention: %w", err)
		}
		removed, err = tx.ForgetAudit(ctx, age, most)
		return err
	})
	return removed, err
}

// PruneUsage forgets intervals of the usage ledger that ended longer ago than age, most at once.
func (s *Store) PruneUsage(ctx context.Context, age time.Duration, most int32) (removed int64, err error) {
	err = s.Tx(ctx, func(ctx context.Context, tx *Tx) error {
		if err := tx.AllowUsageRetention(ctx); err != nil {
			return fmt.Errorf("allow retention: %w", err)
		}
		removed, err = tx.PruneUsageIntervals(ctx, age, most)
		return err
	})
	return removed, err
}
