package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newSessionRename() *cobra.Command {
	return &cobra.Command{
		Use:     "rename SESSION NAME",
		Short:   "Give a running session another name",
		Long:    "Give a running session another name.",
		Example: "  berth session rename run-0a1b2c3d4e mylab",
		Args:    frame.Args(cobra.ExactArgs(2)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := c.RenameSession(ctx, args[0], args[1]); err != nil {
				return sessionHint(err)
			}
			frame.Say(cmd, "session %s is now %s", args[0], args[1])
			return nil
		}),
	}
}
