package mount

import (
	"context"
	"time"

	"berth.dev/berth/internal/cluster"
)

// WithholdLate is Withhold by an agent that did not run from its beginning until all time for it had passed.
func (m *Mounts) WithholdLate(ctx context.Context, pid int, list []cluster.Withheld) error {
	return m.withholdAll(ctx, pid, list, time.Now().Add(-time.Hour))
}
