package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type folderListOptions struct {
	app    *app
	filter api.FolderFilter
	trash  bool
	quiet  bool
	json   bool
}

func (a *app) newFolderList() *cobra.Command {
	o := &folderListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List folders",
		Long:    "List the folders that you can use: your own, those of your projects and those that others share with you.",
		Example: "  berth folder list\n  berth folder list --trash",
		Args:    args(cobra.NoArgs),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.filter.All, "all", "a", false, "the folders of everybody, for administrators")
	f.StringVar(&o.filter.Group, "project", "", "your own folders and those of one project only")
	f.BoolVar(&o.trash, "trash", false, "what is in the trash or being deleted")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *folderListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.Folders(ctx, o.filter)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(f api.Folder) bool { return strings.HasPrefix(f.Status, "delete-") != o.trash })
	if o.json {
		return printJSON(cmd.OutOrStdout(), list)
	}
	if o.quiet {
		for _, f := range list {
			fmt.Fprintln(cmd.OutOrStdout(), f.ID)
		}
		return nil
	}
	if len(list) == 0 {
		what := "no folders; berth folder create makes one"
		if o.trash {
			what = "the trash is empty"
		}
		say(cmd, "%s", what)
		return nil
	}
	t := table{titles: []string{"NAME", "STATUS", "PERMISSION", "OWNER", "HOST", "SIZE", "AGE", "ID"}}
	for _, f := range list {
		t.rows = append(t.rows, []string{f.Name, f.Status, f.Permission, ownerOf(f), f.Host, bytesOrUnknown(f.CurSize), age(f.CreatedAt, o.app.now()), f.ID})
	}
	return t.write(cmd.OutOrStdout(), o.app.colour(cmd.OutOrStdout()))
}
