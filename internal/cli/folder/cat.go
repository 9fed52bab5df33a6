package folder

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/transfer"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderCat() *cobra.Command {
	return &cobra.Command{
		Use:               "cat FOLDER:PATH...",
		Short:             "Write files of folders to standard output",
		Long:              "Write files of folders to standard output, one after another. Broken connections are taken up where they were.",
		Example:           "  berth folder cat logs:run7/out.txt | tail\n  berth folder cat data:a.tar | tar t",
		Args:              frame.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeFolders(":"),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			files, err := filePlaces(cmd, args)
			if err != nil {
				return err
			}
			for _, at := range files {
				if err := transfer.ReadFile(ctx, c, at, cmd.OutOrStdout(), transfer.Options{}); err != nil {
					return frame.Hint(err, "berth folder ls %s", at.Folder)
				}
			}
			return nil
		}),
	}
}
