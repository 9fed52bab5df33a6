package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type sessionCommitOptions struct {
	filename string
	detach   bool
}

func (a *app) newSessionCommit() *cobra.Command {
	o := &sessionCommitOptions{}
	cmd := &cobra.Command{
		Use:     "commit SESSION",
		Short:   "Save the file system of a session as an image archive",
		Long:    "Save the file system of a session's main container as an image archive on its agent and print the id of the task.",
		Example: "  berth session commit mylab --filename mylab.tar.gz",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	cmd.Flags().StringVar(&o.filename, "filename", "", "name of the archive (default: the manager's)")
	cmd.Flags().BoolVarP(&o.detach, "detach", "d", false, "do not wait for the end")
	return cmd
}

func (o *sessionCommitOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	task, err := c.CommitSession(ctx, session, o.filename)
	if err != nil {
		return sessionHint(err)
	}
	if !o.detach && task != "" {
		if err := followTask(ctx, cmd, c, task, "commit "+session); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), task)
	return err
}

// followTask shows the progress of a background task until its end.
func followTask(ctx context.Context, cmd *cobra.Command, c *api.Client, task, what string) error {
	p := &progress{w: cmd.ErrOrStderr(), name: what, tty: isTerminal(cmd.ErrOrStderr())}
	defer p.clear()
	_, err := c.FollowTask(ctx, task, func(t api.TaskEvent) {
		text := t.Message
		if t.Total > 0 {
			text = fmt.Sprintf("%s (%.0f %%)", text, 100*t.Current/t.Total)
		}
		p.say(text)
	})
	var ended *api.TaskError
	switch {
	case errors.As(err, &ended) && ended.Event == api.EventTaskPartial:
		say(cmd, "%s: done in part: %s", what, ended.Message)
		return nil
	case errors.As(err, &ended):
		return fmt.Errorf("%s failed: %s", what, ended.Message)
	}
	return err
}
