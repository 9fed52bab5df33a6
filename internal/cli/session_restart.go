package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newSessionRestart() *cobra.Command {
	return &cobra.Command{
		Use:     "restart SESSION",
		Short:   "Restart the containers of a session",
		Long:    "Restart the containers of a session in place. Files in /home/work stay, variables of the interpreter do not.",
		Example: "  berth session restart mylab",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := c.RestartSession(ctx, args[0]); err != nil {
				return sessionHint(err)
			}
			frame.Say(cmd, "session %s is restarting; berth session wait %s tells when it runs again", args[0], args[0])
			return nil
		}),
	}
}
