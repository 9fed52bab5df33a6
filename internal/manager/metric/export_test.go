package metric

import (
	"context"
	"fmt"
	"time"
)

// Write writes what is over.
func Write(ctx context.Context, r *Recorder) { r.write(ctx) }

// Reads are the queries for a day of some kernels, with what they are asked with.
func Reads(day time.Time, n int) map[string][]any {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("00000000-0000-0000-0000-%012d", i+1)
	}
	figures, devices := queries(kernels, false)
	args := []any{ids, day, day.Add(24 * time.Hour), 600.0, day}
	return map[string][]any{figures: args, devices: args, firstDay: {"kernel_minutes"}}
}
