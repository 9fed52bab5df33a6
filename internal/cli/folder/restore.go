package folder

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderRestore() *cobra.Command {
	return &cobra.Command{
		Use:     "restore FOLDER...",
		Short:   "Bring folders back from the trash",
		Long:    "Bring folders back from the trash, with all their files. When the trash holds several of a name, use the id.",
		Example: "  berth folder list --trash\n  berth folder restore old-data",
		Args:    frame.Args(cobra.MinimumNArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return eachFolder(cmd, args, func(name string) error {
				f, err := c.TrashedFolder(ctx, name)
				if err == nil {
					err = c.RestoreFolder(ctx, f.ID)
				}
				return sayDone(cmd, trashHint(err), "folder %s is back", f.Name)
			})
		}),
	}
}

// trashHint points at the trash when a folder is not in it.
func trashHint(err error) error {
	if api.IsNotFound(err) {
		return frame.Hint(err, "berth folder list --trash")
	}
	return err
}
