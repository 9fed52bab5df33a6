package metric

import "context"

// Write writes what is over.
func Write(ctx context.Context, r *Recorder) { r.write(ctx) }
