package follow

import (
	"context"
	"fmt"
	"io"
	"time"

	"berth.dev/berth/api"
)

// endLooks is how often a log that ended is asked for more while its session goes on: one of its containers may have ended alone.
const (
	endLooks = 5
	endPause = 300 * time.Millisecond
)

// Logs copies the console output to w until the session has ended. When the manager goes away, it goes on where it was at the
// next one that answers; the outage bounds each time without an answer, but not the first contact. session is best an id: a name is lost
// when its session ends.
func Logs(ctx context.Context, c *api.Client, session, kernelID string, w io.Writer, o *Outage) error {
	at, quiet := int64(0), 0
	out := &writeErrors{w: w}
	for first := true; ; first = false {
		n, err := c.StreamLogsFrom(ctx, session, kernelID, true, at, out)
		at += n
		var over bool
		if err == nil {
			o.Over()
			// A manager that stops may end a reply in order. Only the session says whether it is over.
			var info api.SessionInfo
			if info, err = c.SessionInfo(ctx, session); err == nil {
				if quiet++; n > 0 {
					quiet = 0
				}
				over = api.Ended(info.Status) || quiet >= endLooks
			}
		}
		switch {
		case out.err != nil:
			return fmt.Errorf("write the log of session %s: %w", session, out.err)
		case over:
			return nil
		case err == nil:
			err = pause(ctx, endPause)
		case !first || n > 0:
			err = o.Wait(ctx, err)
		}
		if err != nil {
			return err
		}
	}
}

// writeErrors remembers that the reader of the output failed: trying again would not help.
type writeErrors struct {
	w   io.Writer
	err error
}

func (w *writeErrors) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}
