package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

func (a *app) newPresetDelete() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Aliases: []string{"rm"},
		Short:   "Delete a preset",
		Long:    "Delete a preset. Sessions made with it stay as they are. Administrators only.",
		Example: "  berth preset delete large",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := c.DeletePreset(ctx, args[0]); err != nil {
				return hint(err, "berth preset list")
			}
			say(cmd, "preset %s is gone", args[0])
			return nil
		}),
	}
}
