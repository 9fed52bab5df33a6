package follow

import (
	"context"
	"iter"

	"berth.dev/berth/api"
)

// Events follows session events as api.Client.SessionEvents does. When the manager goes away, it goes on after the last event seen at the
// next one that answers; the outage bounds each time without an answer, but not the first contact. The session of the filter is best an
// id: a name is lost when its session ends.
func Events(ctx context.Context, c *api.Client, f api.EventFilter, o *Outage) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		answered := false
		f.Opened = func() {
			answered = true
			o.Over()
		}
		for {
			var broken error
			for e, err := range c.SessionEvents(ctx, f) {
				if err != nil {
					broken = err
					break
				}
				if e.ID != "" {
					f.After = e.ID
				}
				if !yield(e, nil) {
					return
				}
			}
			if broken == nil {
				return
			}
			if answered {
				broken = o.Wait(ctx, broken)
			}
			if broken != nil {
				yield(api.Event{}, broken)
				return
			}
		}
	}
}
