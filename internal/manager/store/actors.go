package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// actorsChannel is what the triggers of migration 0015 notify on when something changed about who may do what.
const actorsChannel = "berth_actors"

// ActorsTurn is a number that is another one after every change of what actors are made of: users, keypairs, domains and
// memberships. Whoever remembers something about actors notes the turn before reading and believes it while the turn
// lasts. A change by this store counts when its statement or transaction returns, a change by others when PostgreSQL has told.
func (s *Store) ActorsTurn() uint64 { return s.actorsTurn.Load() }

// listenForActors makes every connection of the pool listen. PostgreSQL tells a connection of its own changes before it
// answers the commit, so that nobody here goes on with what was remembered before.
func (s *Store) listenForActors(c *pgxpool.Config) {
	c.ConnConfig.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if n.Channel == actorsChannel {
			s.actorsTurn.Add(1)
		}
	}
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "LISTEN "+actorsChannel); err != nil {
			return fmt.Errorf("listen for changes of actors: %w", err)
		}
		return nil
	}
}
