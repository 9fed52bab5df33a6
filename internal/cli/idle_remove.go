package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

func (a *app) newIdleRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Aliases: []string{"rm"},
		Short:   "Remove an idle checker",
		Long:    "Remove a rule by which sessions count as idle. Administrators only.",
		Example: "  berth idle remove week",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := c.RemoveIdleChecker(ctx, args[0]); err != nil {
				if api.IsNotFound(err) {
					return hint(err, "berth idle list")
				}
				return err
			}
			say(cmd, "idle checker %s is gone", args[0])
			return nil
		}),
	}
}
