package frame

import (
	"context"
	"fmt"
	"io"
	"time"

	"berth.dev/berth/api/follow"
)

// patience is how long verbs that follow something wait for a manager that does not answer.
const patience = 2 * time.Minute

// Outage is this process's patience with a manager that does not answer; it tells about that on w.
func (a *Frame) Outage(w io.Writer) *follow.Outage {
	return &follow.Outage{For: a.Patience, Pause: min(a.Look, 250*time.Millisecond), Tell: func(err error) {
		if err == nil {
			fmt.Fprintln(w, "berth: the manager answers again")
			return
		}
		fmt.Fprintf(w, "berth: the manager does not answer (%v); trying again for %s\n", err, a.Patience)
	}}
}

// Patiently calls f until it succeeds, fails for good, or the manager has not answered for too long.
func (a *Frame) Patiently(ctx context.Context, w io.Writer, f func() error) error {
	o := a.Outage(w)
	for {
		err := f()
		if err == nil {
			o.Over()
			return nil
		}
		if err := o.Wait(ctx, err); err != nil {
			return err
		}
	}
}
