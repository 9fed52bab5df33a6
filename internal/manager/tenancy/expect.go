package tenancy

import (
	"context"

	"berth.dev/berth/internal/manager/store"
)

// Expect looks at a row before it is changed, while it is locked; its error ends the change. Whoever changes what they read earlier says
// by it what they read.
type Expect[Row any] func(ctx context.Context, tx *store.Tx, row Row) error

func (e Expect[Row]) met(ctx context.Context, tx *store.Tx, row Row) error {
	if e == nil {
		return nil
	}
	return e(ctx, tx, row)
}
