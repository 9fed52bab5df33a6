package idle

import (
	"context"
	"time"
)

// LookForIdle is one look of the idle loop at an instant.
func (l *Loops) LookForIdle(ctx context.Context, token int64, now time.Time, full bool) (time.Time, error) {
	return l.idle(ctx, token, now, full)
}
