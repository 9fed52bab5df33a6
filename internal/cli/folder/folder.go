// Package folder holds the client verbs about folders, one file per verb, and cp, which copies into and out of them. Package
// cli adds them to the command line.
package folder

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// verbs make the commands of this package.
type verbs struct{ *frame.Frame }

// Commands returns the verbs for folders and files.
func Commands(f *frame.Frame) []*cobra.Command {
	v := &verbs{f}
	return []*cobra.Command{v.newFolder(), v.newCp()}
}

func (a *verbs) newFolder() *cobra.Command {
	return frame.Group(
		"folder",
		"Keep files in folders that every session can mount",
		"Keep files in folders that every session can mount.\n\n"+
			"A folder is named by its name or id. NAME:PATH is a place inside a folder: data:train/a.csv. The verbs cp, ls, cat,\n"+
			"mkdir, mv and du work on files; rm on both: rm NAME trashes a folder, rm NAME:PATH deletes files.",
		a.newFolderCreate(),
		a.newFolderList(),
		a.newFolderInfo(),
		a.newFolderRename(),
		a.newFolderUpdate(),
		a.newFolderClone(),
		a.newFolderRm(),
		a.newFolderRestore(),
		a.newFolderPurge(),
		a.newFolderInvite(),
		a.newFolderInvitations(),
		a.newFolderShare(),
		a.newFolderUnshare(),
		a.newFolderLeave(),
		a.newFolderHosts(),
		a.newFolderQuota(),
		a.newFolderImport(),
		a.newFolderExport(),
		a.newCp(),
		a.newFolderLs(),
		a.newFolderCat(),
		a.newFolderMkdir(),
		a.newFolderMv(),
		a.newFolderDu(),
	)
}

// place is an operand of the file verbs: a path of this machine, or one inside a folder.
type place struct {
	text   string
	at     api.FolderPath
	remote bool
}

// parsePlace takes NAME:PATH for a place in a folder, unless a slash comes before the colon.
func parsePlace(text string) place {
	name, path, ok := strings.Cut(text, ":")
	if !ok || name == "" || strings.ContainsRune(name, '/') {
		return place{text: text}
	}
	return place{text: text, at: api.FolderPath{Folder: name, Path: path}, remote: true}
}

// folderPlace reads an operand that must be in a folder; a bare name is the whole folder.
func folderPlace(cmd *cobra.Command, text string) (api.FolderPath, error) {
	p := parsePlace(text)
	if !p.remote {
		p.at = api.FolderPath{Folder: text}
	}
	err := api.CheckFolderPath(p.at.Path)
	if strings.ContainsRune(p.at.Folder, '/') {
		err = errors.New("this is no place in a folder")
	}
	if err != nil {
		return p.at, frame.Usage(
			frame.Hint(fmt.Errorf("%s: %w", text, err), "write NAME:PATH, as in data:train/a.csv; %s --help", cmd.CommandPath()),
		)
	}
	return p.at, nil
}

// filePlaces reads operands that must name something inside folders.
func filePlaces(cmd *cobra.Command, args []string) ([]api.FolderPath, error) {
	list := make([]api.FolderPath, len(args))
	for i, text := range args {
		at, err := folderPlace(cmd, text)
		if err == nil && at.IsRoot() {
			err = frame.Usage(frame.Hint(fmt.Errorf("%s is a whole folder", text), "name what is inside, as in %s:PATH", at.Folder))
		}
		if err != nil {
			return nil, err
		}
		list[i] = at
	}
	return list, nil
}

// eachFolder calls f for every operand and goes on after failures.
func eachFolder(cmd *cobra.Command, args []string, f func(name string) error) error {
	var failed []error
	for _, name := range args {
		if err := f(name); err != nil {
			failed = append(failed, folderHint(err))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	for _, err := range failed[:len(failed)-1] {
		frame.PrintError(cmd.ErrOrStderr(), err)
	}
	return failed[len(failed)-1]
}

// folderHint points at the list of folders when one was not found.
func folderHint(err error) error {
	if api.IsNotFound(err) {
		return frame.Hint(err, "berth folder list")
	}
	return err
}

// helpHint points at a verb's help when what was asked for is refused without a better word.
func helpHint(cmd *cobra.Command, err error) error {
	var refused *api.Error
	if errors.As(err, &refused) && refused.Status == http.StatusBadRequest {
		return frame.Hint(err, "%s --help", cmd.CommandPath())
	}
	return err
}

// sayDone tells of a change to people.
func sayDone(cmd *cobra.Command, err error, format string, args ...any) error {
	if err != nil {
		return helpHint(cmd, folderHint(err))
	}
	frame.Say(cmd, format, args...)
	return nil
}

// ownerOf words whose a folder is.
func ownerOf(f api.FolderItem) string {
	switch {
	case f.GroupName != nil && *f.GroupName != "":
		return "project " + *f.GroupName
	case f.UserEmail != nil:
		return *f.UserEmail
	case f.Group != nil:
		return "project " + *f.Group
	}
	return frame.Deref(f.Creator)
}

func bytesOrUnknown(n *int64) string {
	if n == nil {
		return ""
	}
	return frame.BytesText(float64(*n))
}

// permissionFlag adds --permission.
func permissionFlag(cmd *cobra.Command, p *string, def, what string) {
	cmd.Flags().StringVarP(p, "permission", "p", def, what+": ro (read), rw (write) or wd (write, and delete files)")
	_ = cmd.RegisterFlagCompletionFunc(
		"permission",
		cobra.FixedCompletions([]string{api.PermReadOnly, api.PermReadWrite, api.PermReadWriteDelete}, cobra.ShellCompDirectiveNoFileComp),
	)
}

// usageModeFlag adds --usage-mode.
func usageModeFlag(cmd *cobra.Command, p *string, def string) {
	cmd.Flags().StringVar(p, "usage-mode", def, "what it is for: general, model or data")
	_ = cmd.RegisterFlagCompletionFunc(
		"usage-mode", cobra.FixedCompletions([]string{"general", "model", "data"}, cobra.ShellCompDirectiveNoFileComp),
	)
}

// completionTimeout bounds how long a shell waits for the names of folders.
const completionTimeout = 3 * time.Second

// completeFolders completes names of folders, followed by suffix.
func (a *verbs) completeFolders(suffix string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		c, err := a.Client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		list, err := c.Folders(ctx, api.FolderFilter{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		var names []cobra.Completion
		for _, f := range list {
			if strings.HasPrefix(f.Name, typed) {
				names = append(names, f.Name+suffix)
			}
		}
		if suffix == "" {
			return names, cobra.ShellCompDirectiveNoFileComp
		}
		return names, cobra.ShellCompDirectiveNoSpace
	}
}
