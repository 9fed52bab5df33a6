package folder

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderMv() *cobra.Command {
	return &cobra.Command{
		Use:               "mv FOLDER:PATH... FOLDER:PATH",
		Short:             "Move or rename files inside a folder",
		Long:              "Move or rename files and directories inside a folder. A target that is a directory, or ends with /, takes them in.",
		Example:           "  berth folder mv data:a.csv data:b.csv\n  berth folder mv data:a.csv data:b.csv data:train/",
		Args:              frame.Args(cobra.MinimumNArgs(2)),
		ValidArgsFunction: a.completeFolders(":"),
		RunE:              a.Run(moveFiles),
	}
}

func moveFiles(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	last := len(args) - 1
	sources, err := filePlaces(cmd, args[:last])
	if err != nil {
		return err
	}
	to, err := folderPlace(cmd, args[last])
	if err != nil {
		return err
	}
	for _, from := range sources {
		if from.Folder != to.Folder {
			return frame.Usage(
				frame.Hint(
					errors.New("files are moved inside one folder only"), "berth folder cp -r %s %s, then berth folder rm -r %s", from, to,
					from,
				),
			)
		}
	}
	into := len(sources) > 1 || to.IsRoot() || strings.HasSuffix(to.Path, "/")
	if !into {
		_, err := c.ListFolder(ctx, to, "", 1)
		into = err == nil
	}
	for _, from := range sources {
		target := to.Clean()
		if into {
			target = path.Join(target, path.Base(from.Clean()))
		}
		if err := c.MoveFile(ctx, to.Folder, from.Clean(), target); err != nil {
			return frame.Hint(err, "berth folder ls %s", to.Folder)
		}
	}
	return nil
}
