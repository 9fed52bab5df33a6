package folder

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type folderCloneOptions struct {
	api.CloneOptions
	detach bool
	json   bool
}

func (a *verbs) newFolderClone() *cobra.Command {
	o := &folderCloneOptions{}
	cmd := &cobra.Command{
		Use:   "clone FOLDER NAME",
		Short: "Copy a whole folder to a new one",
		Long: "Copy a whole folder to a new one of your own, on the servers, and print its id. The folder must " +
			"be yours or cloneable.",
		Example:           "  berth folder clone data data-copy",
		Args:              frame.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0], args[1])
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.Host, "host", "", "volume to keep it on (default: that of the original)")
	f.BoolVar(&o.Cloneable, "cloneable", false, "others who can read it may copy it")
	f.BoolVarP(&o.detach, "detach", "d", false, "do not wait until the files are copied")
	usageModeFlag(cmd, &o.UsageMode, "")
	permissionFlag(cmd, &o.Permission, "", "what sessions may do")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *folderCloneOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, folder, name string) error {
	made, err := c.CloneFolder(ctx, folder, name, o.CloneOptions)
	if err != nil {
		return folderHint(err)
	}
	if !o.detach && made.TaskID != "" {
		if err := frame.FollowTask(ctx, cmd, c, made.TaskID, "clone "+folder); err != nil {
			return frame.Hint(err, "berth folder info %s", made.ID)
		}
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), made)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), made.ID)
	return err
}
