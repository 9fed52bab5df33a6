package folder

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type folderRmOptions struct {
	recursive bool
	yes       bool
}

func (a *verbs) newFolderRm() *cobra.Command {
	o := &folderRmOptions{}
	cmd := &cobra.Command{
		Use:   "rm FOLDER... | FOLDER:PATH...",
		Short: "Trash folders, or delete files in them",
		Long: `Trash folders, or delete files in them.

rm FOLDER moves a whole folder into the trash: berth folder restore brings it back, berth folder purge deletes it.
rm FOLDER:PATH deletes a file, and with -r a directory with all it holds, at once and for good.`,
		Example:           "  berth folder rm old-data\n  berth folder rm data:tmp/a.bin data:tmp/b.bin\n  berth folder rm -r --yes data:tmp",
		Args:              frame.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeFolders(""),
		RunE:              a.Run(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.recursive, "recursive", "r", false, "delete directories with all they hold")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	return cmd
}

func (o *folderRmOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	var folders []string
	files := map[string][]string{}
	var inside []string
	for _, text := range args {
		p := parsePlace(text)
		if !p.remote {
			folders = append(folders, text)
			continue
		}
		at, err := folderPlace(cmd, text)
		if err == nil && at.IsRoot() {
			err = frame.Usage(frame.Hint(errors.New(text+" is all of the folder"), "berth folder rm %s moves it into the trash", at.Folder))
		}
		if err != nil {
			return err
		}
		if files[at.Folder] == nil {
			inside = append(inside, at.Folder)
		}
		files[at.Folder] = append(files[at.Folder], at.Clean())
	}
	if len(inside) > 0 {
		if err := frame.Confirm(cmd, o.yes, "Delete "+strings.Join(args, ", ")+" for good?"); err != nil {
			return err
		}
	}
	err := eachFolder(cmd, inside, func(folder string) error {
		err := c.DeleteFiles(ctx, folder, files[folder], o.recursive)
		if err != nil && !o.recursive && !api.IsNotFound(err) && !api.IsDenied(err) {
			return frame.Hint(err, "berth folder ls %s; -r deletes directories with all they hold", folder)
		}
		return err
	})
	if err != nil {
		return err
	}
	return eachFolder(cmd, folders, func(name string) error {
		f, err := c.TrashFolder(ctx, name)
		return sayDone(cmd, err, "folder %s is in the trash; berth folder restore %s brings it back", f.Name, f.Name)
	})
}
