package folder

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderMkdir() *cobra.Command {
	var parents bool
	cmd := &cobra.Command{
		Use:               "mkdir FOLDER:PATH...",
		Short:             "Make directories in folders",
		Long:              "Make directories in folders.",
		Example:           "  berth folder mkdir -p data:train/2025",
		Args:              frame.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeFolders(":"),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			dirs, err := filePlaces(cmd, args)
			if err != nil {
				return err
			}
			for _, at := range dirs {
				if err := c.MakeDirs(ctx, at.Folder, []string{at.Clean()}, parents, parents); err != nil {
					return frame.Hint(err, "berth folder ls %s, or mkdir -p", at.Folder)
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "make the directories above as well, and be content when it is there")
	return cmd
}
