package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newIdleRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Aliases: []string{"rm"},
		Short:   "Remove an idle checker",
		Long:    "Remove a rule by which sessions count as idle. Administrators only.",
		Example: "  berth idle remove week",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := c.RemoveIdleChecker(ctx, args[0]); err != nil {
				if api.IsNotFound(err) {
					return frame.Hint(err, "berth idle list")
				}
				return err
			}
			frame.Say(cmd, "idle checker %s is gone", args[0])
			return nil
		}),
	}
}
