package folder

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderInfo() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "info FOLDER",
		Short:             "Describe a folder",
		Long:              "Describe a folder: whose it is, where it is, what you may do and how much is in it.",
		Example:           "  berth folder info data",
		Args:              frame.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			f, err := c.Folder(ctx, args[0])
			if err != nil {
				return folderHint(err)
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), f)
			}
			return describeFolder(f).Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func describeFolder(f api.Folder) frame.Fields {
	var out frame.Fields
	atLeast := ""
	if f.Complete != nil && !*f.Complete {
		atLeast = "at least "
	}
	out.Add("name", f.Name)
	out.Add("id", f.ID)
	out.Add("status", f.Status)
	out.Add("info", f.StatusInfo)
	out.Add("owner", ownerOf(f.FolderItem))
	out.Add("permission", f.Permission)
	out.Add("host", f.Host)
	out.Add("usage mode", f.UsageMode)
	if f.Files != nil {
		out.Add("files", atLeast+strconv.FormatInt(*f.Files, 10))
	}
	if f.UsedBytes != nil {
		out.Add("size", atLeast+bytesOrUnknown(f.UsedBytes))
	}
	out.Add("cloneable", map[bool]string{true: "yes", false: "no"}[f.Cloneable])
	out.Add("quota scope", f.QuotaScope)
	out.Add("created", f.CreatedAt)
	out.Add("last used", frame.Deref(f.LastUsed))
	return out
}
