package folder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/text/unicode/norm"

	"berth.dev/berth/api"
	"berth.dev/berth/api/transfer"
	"berth.dev/berth/internal/cli/frame"
)

type cpOptions struct {
	app *verbs
	transfer.Options
	recursive bool
	quiet     bool
	json      bool
}

func (a *verbs) newCp() *cobra.Command {
	o := &cpOptions{app: a}
	cmd := &cobra.Command{
		Use:   "cp SOURCE... TARGET",
		Short: "Copy files into folders, out of folders and between them",
		Long: `Copy files and, with -r, directories between this machine and folders, or from folder to folder. FOLDER:PATH is a place
in a folder; everything else is a path here.

A directory is copied to exactly the target and merged with what is there. A target that ends with /, is . or a whole
folder (data:) takes it in under its own name; with SOURCE/. only what is inside is taken.

Run it again after an interruption: files that are there already are skipped, and large ones go on where they were.
There already is a file of the same size that is not older than its source (from a folder: of the same time); --verify
compares SHA-256 instead, and compares after copying too. For that every file is read back through the network, since
servers keep no checksums. --force copies everything.

Links and special files are left out with a message; -L copies what links point to. Between folders the bytes pass
through this machine; berth folder clone copies whole folders on the servers.`,
		Example: `  berth cp model.bin data:models/
  berth cp -r ./train data:
  berth cp -r data:results results -j 8 --verify
  berth cp -r data:train/. backup:train`,
		Args:              frame.Args(cobra.MinimumNArgs(2)),
		ValidArgsFunction: a.completeCopy,
		RunE:              a.Run(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.recursive, "recursive", "r", false, "copy directories with all they hold")
	f.IntVarP(&o.Parallel, "parallel", "j", transfer.DefaultParallel, fmt.Sprintf("files to copy at once, up to %d", transfer.MaxParallel))
	f.BoolVar(&o.Verify, "verify", false, "compare the SHA-256 of both ends by reading files back")
	f.BoolVarP(&o.Overwrite, "force", "f", false, "copy files also when they seem to be there already")
	f.BoolVarP(&o.FollowLinks, "dereference", "L", false, "copy what symbolic links point to")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not tell how it goes")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

// completeCopy offers folders besides the files of this machine.
func (a *verbs) completeCopy(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.ContainsAny(typed, "/.:") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, _ := a.completeFolders(":")(cmd, args, typed)
	if len(names) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return names, cobra.ShellCompDirectiveNoSpace
}

func (o *cpOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	if o.Parallel < 1 || o.Parallel > transfer.MaxParallel {
		return frame.Usage(frame.Hint(fmt.Errorf("--parallel %d is not from 1 to %d", o.Parallel, transfer.MaxParallel), "berth cp --help"))
	}
	sources := make([]place, len(args))
	for i, text := range args {
		sources[i] = parsePlace(text)
		if sources[i].remote {
			if _, err := folderPlace(cmd, text); err != nil {
				return err
			}
		}
	}
	target := sources[len(sources)-1]
	sources = sources[:len(sources)-1]
	for _, s := range sources {
		if s.remote != sources[0].remote {
			return frame.Usage(frame.Hint(errors.New("some sources are here and some in folders"), "copy them by two commands"))
		}
	}
	if !sources[0].remote && !target.remote {
		return frame.Usage(frame.Hint(errors.New("neither end is in a folder"), "write FOLDER:PATH for a place in a folder, or use cp"))
	}

	signals, stop := o.app.Interrupts()
	defer stop()
	ctx, stopWaiting := frame.UntilSignal(ctx, signals)
	defer stopWaiting()
	bar := newTransferProgress(cmd.ErrOrStderr(), o.quiet)
	o.Seen, o.Resume, o.Checksums = bar.seen, o.app.resumeDir(cmd), o.Verify
	o.Spelling = norm.NFC.String // of storage proxies
	report, err := o.copy(ctx, c, sources, target)
	bar.clear()
	return o.tell(cmd, report, err)
}

// copy finds out what goes where and moves it.
func (o *cpOptions) copy(ctx context.Context, c *api.Client, sources []place, target place) (transfer.Report, error) {
	into := len(sources) > 1
	var moves []move
	from := map[string]string{} // sources by the place that they get
	for _, s := range sources {
		m, err := o.plan(ctx, c, s, target, into)
		if err != nil {
			return transfer.Report{}, err
		}
		at := m.to.at.String()
		if !m.to.remote {
			at = filepath.Clean(m.to.text)
		}
		if other, taken := from[at]; taken && baseName(s) != "" {
			return transfer.Report{}, frame.Usage(
				frame.Hint(
					fmt.Errorf("%s and %s would both be copied to %s", other, s.text, at), "copy them to different places by two commands",
				),
			)
		}
		from[at] = s.text
		moves = append(moves, m)
	}
	var here []transfer.Placement
	var between []transfer.RemotePlacement
	for _, m := range moves {
		switch {
		case !m.from.remote:
			here = append(here, transfer.Placement{Local: m.from.text, Remote: m.to.at, Label: m.label})
		case !m.to.remote:
			here = append(here, transfer.Placement{Local: m.to.text, Remote: m.from.at, Label: m.label})
		default:
			between = append(between, transfer.RemotePlacement{From: m.from.at, To: m.to.at, Label: m.label})
		}
	}
	switch {
	case len(between) > 0:
		return transfer.CopyTree(ctx, c, between, o.Options)
	case target.remote:
		return transfer.UploadTree(ctx, c, here, o.Options)
	}
	return transfer.DownloadTree(ctx, c, here, o.Options)
}

// move is one source with the exact place that it gets.
type move struct {
	from, to place
	label    string
}

func (o *cpOptions) plan(ctx context.Context, c *api.Client, s, target place, into bool) (move, error) {
	dir, err := o.isDirectory(ctx, c, s)
	if err != nil {
		return move{}, err
	}
	if dir && !o.recursive {
		return move{}, frame.Usage(frame.Hint(fmt.Errorf("%s is a directory", s.text), "berth cp -r"))
	}
	m := move{from: s, to: target, label: baseName(s)}
	if !dir {
		m.label = ""
	}
	if takesIn(target) {
		into = true
	}
	if !into && !dir {
		// A file cannot be a directory, so that one of the target's name takes it in.
		if into, err = o.isDirectory(ctx, c, target); err != nil && !api.IsNotFound(err) && !errors.Is(err, os.ErrNotExist) {
			return move{}, err
		}
	}
	if name := baseName(s); into && name != "" {
		if target.remote {
			m.to.at = target.at.Join(name)
		} else {
			m.to.text = filepath.Join(target.text, filepath.FromSlash(name))
		}
	}
	if s.remote && target.remote && s.at.Folder == target.at.Folder {
		from, to := m.from.at.Clean(), m.to.at.Clean()
		if from == to || dir && (from == "." || strings.HasPrefix(to, from+"/")) {
			return move{}, frame.Usage(
				frame.Hint(fmt.Errorf("%s would be copied into itself", s.text), "berth folder mv moves inside a folder"),
			)
		}
	}
	return m, nil
}

// takesIn reports whether the text of a target says that it is a directory.
func takesIn(p place) bool {
	if p.remote {
		return p.at.IsRoot() || strings.HasSuffix(p.at.Path, "/")
	}
	clean := filepath.Clean(p.text)
	return strings.HasSuffix(p.text, "/") || clean == "." || clean == ".." || strings.HasSuffix(clean, "/..")
}

// baseName is the name that a source has inside a directory, "" when only what it holds is meant.
func baseName(p place) string {
	if !p.remote {
		if p.text == "." || strings.HasSuffix(p.text, "/.") {
			return ""
		}
		abs, err := filepath.Abs(p.text)
		if err != nil || abs == "/" {
			return ""
		}
		return filepath.Base(abs)
	}
	switch {
	case p.at.Path == "." || strings.HasSuffix(p.at.Path, "/."):
		return ""
	case p.at.IsRoot():
		return p.at.Folder
	}
	return path.Base(p.at.Clean())
}

func (o *cpOptions) isDirectory(ctx context.Context, c *api.Client, p place) (bool, error) {
	if p.remote {
		e, err := transfer.Stat(ctx, c, p.at, o.Options)
		if api.IsNotFound(err) {
			err = frame.Hint(fmt.Errorf("%s: %w", p.text, err), "berth folder list, berth folder ls %s", p.at.Folder)
		}
		return e.Type == api.EntryDirectory, err
	}
	info, err := os.Stat(p.text)
	if err != nil {
		return false, frame.Hint(err, "ls; a place in a folder is written FOLDER:PATH")
	}
	return info.IsDir(), nil
}

// resumeDir is where unfinished transfers are remembered; nil when there is no place for it.
func (a *verbs) resumeDir(cmd *cobra.Command) *transfer.ResumeDir {
	cache := a.Getenv("XDG_CACHE_HOME")
	if home := a.Getenv("HOME"); cache == "" && home != "" {
		cache = filepath.Join(home, ".cache")
	}
	if cache == "" {
		return nil
	}
	d, err := transfer.OpenResumeDir(filepath.Join(cache, "berth", "transfers"), a.Now)
	if err != nil {
		frame.Say(cmd, "an interrupted copy will have to begin files anew: %v", err)
		return nil
	}
	return d
}

// afterCopy says what to do when a copy broke off.
func afterCopy(err error, again string) string {
	var here *transfer.LocalError
	switch {
	case !errors.As(err, &here):
		return again
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room, then " + again
	}
	return "copy to another place, or make that one a directory that you may write to; then " + again
}

// tell words the end.
func (o *cpOptions) tell(cmd *cobra.Command, r transfer.Report, err error) error {
	const again = "run the same command again; it goes on where it was"
	var incomplete *transfer.IncompleteError
	switch {
	case errors.Is(err, frame.ErrInterrupted):
		return frame.Hint(err, again)
	case err != nil && !errors.As(err, &incomplete):
		var refused *api.Error
		if !errors.As(err, &refused) {
			err = frame.Hint(err, "%s", afterCopy(err, again))
		}
		return err
	}
	if o.json {
		if jsonErr := frame.PrintJSON(cmd.OutOrStdout(), r); jsonErr != nil {
			return jsonErr
		}
	}
	if !o.quiet && !o.json {
		text := fmt.Sprintf("copied %s, %s", frame.Count(int(r.Files), "file"), frame.BytesText(float64(r.Bytes)))
		if r.Unchanged > 0 {
			text += fmt.Sprintf("; %d there already", r.Unchanged)
		}
		if r.LeftOut > 0 {
			text += fmt.Sprintf("; %d left out", r.LeftOut)
		}
		frame.Say(cmd, "%s", text)
	}
	if incomplete != nil && !o.quiet {
		err = fmt.Errorf("%s could not be copied, as told above", frame.Count(int(r.Failed), "path"))
	}
	return frame.Hint(err, again)
}
