package folder

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderRename() *cobra.Command {
	return &cobra.Command{
		Use:               "rename FOLDER NAME",
		Short:             "Give a folder another name",
		Long:              "Give a folder another name. Running sessions keep it mounted under the old one.",
		Example:           "  berth folder rename data data-2025",
		Args:              frame.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return sayDone(cmd, c.RenameFolder(ctx, args[0], args[1]), "folder %s is called %s now", args[0], args[1])
		}),
	}
}
