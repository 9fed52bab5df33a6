package store_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/storetest"
)

// What every session asks for many times keeps one plan for a connection: PostgreSQL plans each statement for its first five calls, and
// goes on doing so when it takes a short array for cheaper than one of unknown length.
func TestStatementsOfASessionsLifeKeepTheirPlans(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t, storetest.DSN(t))
	conn, err := s.Pool().Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	q := dbgen.New(conn)
	one := []string{"00000000-0000-4000-8000-000000000001"}
	// A kernel and a session that nobody has, and neither events nor callbacks.
	var moves dbgen.WriteMovesParams
	fields := reflect.ValueOf(&moves).Elem()
	for i := range fields.NumField() {
		n := 1
		if name := fields.Type().Field(i).Name; name[0] == 'C' || name[0] == 'E' {
			n = 0
		}
		fields.Field(i).Set(reflect.MakeSlice(fields.Field(i).Type(), n, n))
	}
	moves.KIds, moves.SIds = one, one
	calls := map[string]func() error{
		"KernelSpecs":      func() error { _, err := q.KernelSpecs(t.Context(), one); return err },
		"KernelsByID":      func() error { _, err := q.KernelsByID(t.Context(), one); return err },
		"RemovalsOfAgents": func() error { _, err := q.RemovalsOfAgents(t.Context(), []string{"i-one"}); return err },
		"LockSessions":     func() error { _, err := q.LockSessions(t.Context(), one); return err },
		"WriteMoves":       func() error { _, err := q.WriteMoves(t.Context(), moves); return err },
	}
	for name, call := range calls {
		for range 10 {
			require.NoError(t, call(), name)
		}
		var kept, made int64
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT generic_plans, custom_plans FROM pg_prepared_statements
			WHERE statement LIKE '-- name: ' || $1 || ' :%'`, name).Scan(&kept, &made))
		require.EqualValues(t, []int64{5, 5}, []int64{kept, made}, "%s: calls with the plan that is kept, and with one of their own", name)
	}
}
