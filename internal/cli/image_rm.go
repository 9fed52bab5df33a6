package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newImageRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Take images away from new sessions",
		Long: "Take images away from new sessions. An image that was made of one of your sessions is deleted where it lies, which frees its\n" +
			"place and its bytes. Superadmins may take away any image.",
		Example: "  berth image rm local/0f1e2d3c-…/my-lab:v1",
		Args:    frame.Args(cobra.MinimumNArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			for _, ref := range args {
				i, err := c.FindImage(ctx, ref)
				if err != nil {
					return imageHint(err)
				}
				if err := c.ForgetImage(ctx, i.ID); err != nil {
					return imageHint(err)
				}
				frame.Say(cmd, "%s is taken away", i.Reference())
			}
			return nil
		}),
	}
}
