package folder

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type folderShareOptions struct {
	app        *verbs
	permission string
	json       bool
}

func (a *verbs) newFolderShare() *cobra.Command {
	o := &folderShareOptions{app: a}
	cmd := &cobra.Command{
		Use:   "share FOLDER [EMAIL...]",
		Short: "Give others access to a folder, or show who has it",
		Long: `Give members of a project another permission on a folder of the project, at once. Administrators only; for your own
folders there is berth folder invite. Without addresses: show who has access.`,
		Example:           "  berth folder share models ada@example.org --permission rw\n  berth folder share models",
		Args:              frame.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if len(args) == 1 {
				return o.show(ctx, cmd, c, args[0])
			}
			shared, err := c.ShareFolder(ctx, args[0], o.permission, args[1:])
			err = frame.Hint(err, "check the addresses and the name of the folder: berth folder list")
			if err == nil && len(shared) == 0 {
				err = frame.Hint(errors.New("nobody was given access: no such users"), "berth folder share %s shows who has it", args[0])
			}
			return sayDone(cmd, err, "%s may use folder %s now: %s", strings.Join(shared, ", "), args[0], o.permission)
		}),
	}
	permissionFlag(cmd, &o.permission, api.PermReadWrite, "what they may do")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *folderShareOptions) show(ctx context.Context, cmd *cobra.Command, c *api.Client, name string) error {
	f, err := c.Folder(ctx, name)
	if err != nil {
		return folderHint(err)
	}
	shares, err := c.FolderShares(ctx, f.ID)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), shares)
	}
	if len(shares) == 0 {
		frame.Say(cmd, "folder %s is shared with nobody", f.Name)
		return nil
	}
	t := frame.Table{Titles: []string{"USER", "PERMISSION"}}
	for _, s := range shares {
		t.Rows = append(t.Rows, []string{s.SharedTo.Email, s.Permission})
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

func (a *verbs) newFolderUnshare() *cobra.Command {
	return &cobra.Command{
		Use:   "unshare FOLDER EMAIL...",
		Short: "Take access to a folder back",
		Long: `Take back what others may do with a folder: what berth folder share gave, or an invitation that was accepted. Members of
a project keep what the folder allows all of them, and sessions that mount the folder keep it until they end.`,
		Example:           "  berth folder unshare data ada@example.org",
		Args:              frame.Args(cobra.MinimumNArgs(2)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			gone, err := c.UnshareFolder(ctx, args[0], args[1:])
			if err == nil && len(gone) == 0 {
				err = frame.Hint(errors.New("none of them had access of their own"), "berth folder share %s shows who has it", args[0])
			}
			return sayDone(cmd, err, "took access to folder %s from %s", args[0], strings.Join(gone, ", "))
		}),
	}
}

func (a *verbs) newFolderLeave() *cobra.Command {
	return &cobra.Command{
		Use:               "leave FOLDER...",
		Short:             "Give up folders that others share with you",
		Long:              "Give up folders that others share with you. Their files stay; you need a new invitation to use them again.",
		Example:           "  berth folder leave data",
		Args:              frame.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return eachFolder(cmd, args, func(name string) error {
				return sayDone(cmd, c.LeaveFolder(ctx, name), "folder %s is no longer shared with you", name)
			})
		}),
	}
}
