package folder

import (
	"context"
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type folderLsOptions struct {
	app   *verbs
	limit int
	json  bool
}

func (a *verbs) newFolderLs() *cobra.Command {
	o := &folderLsOptions{app: a}
	cmd := &cobra.Command{
		Use:               "ls FOLDER[:PATH]",
		Short:             "List files in a folder",
		Long:              "List a directory of a folder, by name.",
		Example:           "  berth folder ls data\n  berth folder ls data:train --limit 0 --json",
		Args:              frame.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeFolders(":"),
		RunE:              a.Run(o.run),
	}
	cmd.Flags().IntVarP(&o.limit, "limit", "n", 10000, "at most this many entries; 0 is all")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *folderLsOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	at, err := folderPlace(cmd, args[0])
	if err != nil {
		return err
	}
	list, cut := []api.FolderEntry{}, ""
	for e, err := range c.FolderEntries(ctx, at) {
		if errors.Is(err, api.ErrTruncated) {
			cut = "the server sent no more"
			break
		}
		if err != nil {
			return folderHint(err)
		}
		if o.limit > 0 && len(list) == o.limit {
			cut = "--limit 0 shows all"
			break
		}
		list = append(list, e)
	}
	if cut != "" {
		defer frame.Say(cmd, "there is more than these %d entries: %s", len(list), cut)
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	t := frame.Table{Titles: []string{"MODE", "SIZE", "MODIFIED", "NAME"}}
	for _, e := range list {
		name, size := visible(e.Name), strconv.FormatInt(e.Size, 10)
		if e.Type == api.EntryDirectory {
			name, size = name+"/", ""
		}
		if e.Type == api.EntrySymlink {
			name += "@"
		}
		t.Rows = append(t.Rows, []string{e.Mode, size, e.ModTime().UTC().Format("2006-01-02 15:04"), name})
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

// visible keeps names of files from controlling a terminal.
func visible(name string) string {
	for _, r := range name {
		if !strconv.IsPrint(r) {
			return strconv.Quote(name)
		}
	}
	return name
}
