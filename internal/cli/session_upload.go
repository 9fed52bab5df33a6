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
		Example: "  berth session upload lab train.py data/",
		Args:    args(cobra.MinimumNArgs(2)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			uploads, err := collectUploads(args[1:])
			if err != nil {
				return err
			}
			if err := c.UploadFiles(ctx, args[0], uploads); err != nil {
				return sessionHint(err)
			}
			say(cmd, "%d files are in session %s", len(uploads), args[0])
			return nil
		}),
	}
}
