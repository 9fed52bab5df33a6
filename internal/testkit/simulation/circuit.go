package simulation

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// publish asks for a circuit to what an event of the plan made, as soon as that runs. There is no app proxy: it is the part of the use case
// that decides, which holds the session and its kernel and writes the circuit.
func (s *sim) publish(of int) {
	s.mu.Lock()
	ids := slices.Clone(s.sessions[of])
	s.mu.Unlock()
	for _, session := range ids {
		s.insist(fmt.Sprint("publish ", of, session), func(ctx context.Context, m *managerRole) (acknowledge func(), err error) {
			id := tenancy.RandomIDs(&m.random)()
			var to target
			err = s.db.store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
				status, err := tx.HoldAppSession(ctx, nil, string(session))
				switch {
				case err != nil:
					return err
				case status.Final():
					return fault.NotFoundf("session %s has ended", session)
				case status != cluster.Running:
					return fault.Conflictf("session %s does not run yet", session)
				}
				r, err := tx.AppSession(ctx, nil, string(session))
				if err != nil {
					return err
				}
				to.kernel = r.KernelID
				return tx.AddCircuit(ctx, dbgen.AddCircuitParams{ID: id, Proxy: "local", Mode: "subdomain", Label: &id, SessionID: r.ID,
					KernelID: r.KernelID, App: "ttyd", Protocol: "http", Target: 7681, Path: "/", UserID: r.UserID, CreatedBy: r.UserID,
					Allowed: []string{}, CreatedAt: s.clock()})
			})
			if fault.Is(err, fault.NotFound) {
				return func() {}, nil
			}
			if err == nil {
				err = s.db.store.Pool().QueryRow(ctx, `SELECT generation FROM kernels WHERE id = $1`, to.kernel).Scan(&to.generation)
			}
			return func() { s.published[id] = to }, err
		})
	}
}
