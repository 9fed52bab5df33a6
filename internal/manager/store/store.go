// Package store is the manager's only way to PostgreSQL: the pool, migrations, transactions
// with retry, guarded moves, wake-up hints and the generated queries (dbgen).
//
// It holds no policy about who may do what (service) and none about what to do next
// (scheduler, reconcile). It does own the table of moves in SQL: every change of a
// session's or kernel's status goes through moves.go.
package store

import "github.com/jackc/pgx/v5/pgxpool"

// Store is a pool of connections with the schema in place.
type Store struct {
	pool *pgxpool.Pool
}
