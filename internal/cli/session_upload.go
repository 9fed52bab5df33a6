package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

func (a *app) newSessionUpload() *cobra.Command {
	return &cobra.Command{
		Use:     "upload SESSION FILE...",
		Short:   "Copy files into a session",
		Long:    "Copy files, and what is in directories, below /home/work of a running session. Each file must be smaller than 1 MiB.",
		Example: "  berth session upload mylab train.py data/",
		Args:    args(cobra.MinimumNArgs(2)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			uploads, err := collectUploads(args[1:])
			if err != nil {
				return err
			}
			if err := c.UploadFiles(ctx, args[0], uploads); err != nil {
				return sessionHint(err)
			}
			plural := "s"
			if len(uploads) == 1 {
				plural = ""
			}
			say(cmd, "uploaded %d file%s to session %s", len(uploads), plural, args[0])
			return nil
		}),
	}
}
