package folder

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type folderListOptions struct {
	app    *verbs
	filter api.FolderFilter
	trash  bool
	quiet  bool
	json   bool
}

func (a *verbs) newFolderList() *cobra.Command {
	o := &folderListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List folders",
		Long:    "List the folders that you can use: your own, those of your projects and those that others share with you.",
		Example: "  berth folder list\n  berth folder list --trash",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.filter.All, "all", "a", false, "the folders of everybody, for administrators")
	f.StringVar(&o.filter.Group, "project", "", "your own folders and those of one project only")
	f.BoolVar(&o.trash, "trash", false, "what is in the trash or being deleted")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *folderListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.Folders(ctx, o.filter)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(f api.FolderItem) bool { return strings.HasPrefix(f.Status, "delete-") != o.trash })
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
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
		frame.Say(cmd, "%s", what)
		return nil
	}
	t := frame.Table{Titles: []string{"NAME", "STATUS", "PERMISSION", "OWNER", "HOST", "SIZE", "AGE", "ID"}}
	for _, f := range list {
		t.Rows = append(
			t.Rows,
			[]string{
				f.Name, f.Status, f.Permission, ownerOf(f), f.Host, bytesOrUnknown(f.CurSize), frame.Age(f.CreatedAt, o.app.Now()), f.ID,
			},
		)
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
