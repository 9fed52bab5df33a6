package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newSessionUpload() *cobra.Command {
	kernel := ""
	cmd := &cobra.Command{
		Use:     "upload SESSION FILE...",
		Short:   "Copy files into a session",
		Long:    "Copy files, and what is in directories, below /home/work of a running session. Each file must be smaller than 1 MiB.",
		Example: "  berth session upload mylab train.py data/",
		Args:    frame.Args(cobra.MinimumNArgs(2)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			uploads, err := collectUploads(args[1:])
			if err != nil {
				return err
			}
			if err := c.UploadFiles(ctx, frame.InKernel(args[0], kernel), uploads); err != nil {
				return sessionHint(err)
			}
			plural := "s"
			if len(uploads) == 1 {
				plural = ""
			}
			frame.Say(cmd, "uploaded %d file%s to session %s", len(uploads), plural, args[0])
			return nil
		}),
	}
	frame.KernelFlag(cmd, &kernel)
	return cmd
}
