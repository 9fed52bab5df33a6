package folder

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderPurge() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "purge FOLDER...",
		Short:   "Delete folders of the trash for good",
		Long:    "Delete folders that are in the trash, with all their files. Nothing brings them back.",
		Example: "  berth folder purge old-data\n  berth folder purge --yes 0123456789abcdef0123456789abcdef",
		Args:    frame.Args(cobra.MinimumNArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return eachFolder(cmd, args, func(name string) error {
				f, err := c.TrashedFolder(ctx, name)
				if err != nil {
					return trashHint(err)
				}
				if err := frame.Confirm(cmd, yes, "Delete folder "+f.Name+" ("+f.ID+") and all its files for good?"); err != nil {
					return err
				}
				return sayDone(cmd, c.PurgeFolder(ctx, f.ID), "folder %s is being deleted", f.Name)
			})
		}),
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
