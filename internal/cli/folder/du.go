package folder

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// usageLine is what du tells of one place.
type usageLine struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Files int64  `json:"files"`
	// Complete false says that the numbers are lower bounds.
	Complete bool `json:"complete"`
}

func (a *verbs) newFolderDu() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "du FOLDER[:PATH]...",
		Short: "Tell how much folders and directories hold",
		Long: `Tell how many bytes and files folders and directories hold. For whole folders the servers' count is shown, which is
some seconds old, or minutes where there are very many files; directories inside are counted now, by listing them.`,
		Example:           "  berth folder du data data:train",
		Args:              frame.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeFolders(":"),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			var lines []usageLine
			for _, text := range args {
				at, err := folderPlace(cmd, text)
				if err != nil {
					return err
				}
				u, err := usageOf(ctx, c, at)
				if err != nil {
					return folderHint(err)
				}
				u.Path = text
				lines = append(lines, u)
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), lines)
			}
			t := frame.Table{Titles: []string{"SIZE", "FILES", "PATH"}}
			for _, u := range lines {
				atLeast := map[bool]string{false: "at least "}[u.Complete]
				t.Rows = append(
					t.Rows, []string{atLeast + frame.BytesText(float64(u.Bytes)), atLeast + strconv.FormatInt(u.Files, 10), u.Path},
				)
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func usageOf(ctx context.Context, c *api.Client, at api.FolderPath) (usageLine, error) {
	if at.IsRoot() {
		f, err := c.Folder(ctx, at.Folder)
		if err != nil {
			return usageLine{}, err
		}
		if f.UsedBytes != nil && f.Files != nil {
			return usageLine{Bytes: *f.UsedBytes, Files: *f.Files, Complete: f.Complete == nil || *f.Complete}, nil
		}
	}
	u, err := c.DiskUsage(ctx, at)
	return usageLine{Bytes: u.Bytes, Files: u.Files, Complete: true}, err
}
