package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

func (a *app) newFolderInfo() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "info FOLDER",
		Short:             "Describe a folder",
		Long:              "Describe a folder: whose it is, where it is, what you may do and how much is in it.",
		Example:           "  berth folder info data",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			f, err := c.Folder(ctx, args[0])
			if err != nil {
				return folderHint(err)
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), f)
			}
			return describeFolder(f).write(cmd.OutOrStdout(), a.colour(cmd.OutOrStdout()))
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func describeFolder(f api.Folder) fields {
	var out fields
	atLeast := ""
	if f.Complete != nil && !*f.Complete {
		atLeast = "at least "
	}
	out.add("name", f.Name)
	out.add("id", f.ID)
	out.add("status", f.Status)
	out.add("info", f.StatusInfo)
	out.add("owner", ownerOf(f))
	out.add("permission", f.Permission)
	out.add("host", f.Host)
	out.add("usage mode", f.UsageMode)
	if f.Files != nil {
		out.add("files", atLeast+strconv.FormatInt(*f.Files, 10))
	}
	if f.UsedBytes != nil {
		out.add("size", atLeast+bytesOrUnknown(f.UsedBytes))
	}
	out.add("cloneable", map[bool]string{true: "yes", false: "no"}[f.Cloneable])
	out.add("quota scope", f.QuotaScope)
	out.add("created", f.CreatedAt)
	out.add("last used", deref(f.LastUsed))
	return out
}
