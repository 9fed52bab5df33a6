package folder

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderUpdate() *cobra.Command {
	var o api.FolderOptions
	var cloneable bool
	cmd := &cobra.Command{
		Use:   "update FOLDER",
		Short: "Change what may be done with a folder",
		Long: `Change what may be done with a folder: --permission is what sessions and project members may do with its files. With ro
nobody changes them, not even the owner. Sessions that run keep what they have.`,
		Example:           "  berth folder update data --permission ro\n  berth folder update data --cloneable=false",
		Args:              frame.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if cmd.Flags().Changed("cloneable") {
				o.Cloneable = &cloneable
			}
			if o.Cloneable == nil && o.Permission == "" {
				return frame.Usage(frame.Hint(errors.New("there is nothing to change"), "give --permission or --cloneable"))
			}
			return sayDone(cmd, c.UpdateFolder(ctx, args[0], o), "folder %s is changed", args[0])
		}),
	}
	cmd.Flags().BoolVar(&cloneable, "cloneable", false, "others who can read it may copy it")
	permissionFlag(cmd, &o.Permission, "", "what sessions and project members may do")
	return cmd
}
