package frame

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

// FollowTask shows the progress of a background task until its end.
func FollowTask(ctx context.Context, cmd *cobra.Command, c *api.Client, task, what string) error {
	p := &Progress{Out: cmd.ErrOrStderr(), Name: what, TTY: IsTerminal(cmd.ErrOrStderr())}
	defer p.Clear()
	_, err := c.FollowTask(ctx, task, func(t api.TaskEvent) {
		text := t.Message
		if t.Total > 0 {
			text = fmt.Sprintf("%s (%.0f %%)", text, 100*t.Current/t.Total)
		}
		p.Say(text)
	})
	var ended *api.TaskError
	switch {
	case errors.As(err, &ended) && ended.Event == api.EventTaskPartial:
		Say(cmd, "%s: done in part: %s", what, ended.Message)
		return nil
	case errors.As(err, &ended):
		return fmt.Errorf("%s failed: %s", what, ended.Message)
	}
	return err
}
