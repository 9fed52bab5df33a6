package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newPresetDelete() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME",
		Aliases: []string{"rm"},
		Short:   "Delete a preset",
		Long:    "Delete a preset. Sessions made with it stay as they are. Administrators only.",
		Example: "  berth preset delete large",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := admin.DeletePreset(ctx, c, args[0]); err != nil {
				return frame.Hint(err, "berth preset list")
			}
			frame.Say(cmd, "preset %s is gone", args[0])
			return nil
		}),
	}
}
