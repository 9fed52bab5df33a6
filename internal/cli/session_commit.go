package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionCommitOptions struct {
	filename string
	detach   bool
}

func (a *verbs) newSessionCommit() *cobra.Command {
	o := &sessionCommitOptions{}
	cmd := &cobra.Command{
		Use:     "commit SESSION",
		Short:   "Save the file system of a session as an image archive",
		Long:    "Save the file system of a session's main container as an image archive on its agent and print the id of the task.",
		Example: "  berth session commit mylab --filename mylab.tar.gz",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
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
		if err := frame.FollowTask(ctx, cmd, c, task, "commit "+session); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), task)
	return err
}
