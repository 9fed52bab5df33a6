package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/app"
	"berth.dev/berth/internal/cli/frame"
)

// notebookApps are apps that edit notebooks, best first.
var notebookApps = []string{"jupyterlab", "jupyter"}

type notebookOptions struct {
	createFlags
	app.Opener
	verbs   *verbs
	image   string
	replace bool
}

func (a *verbs) newNotebook() *cobra.Command {
	o := &notebookOptions{Opener: app.Opener{Frame: a.Frame}, verbs: a}
	o.size, o.mode, o.priority = 1, "single-node", -1
	cmd := &cobra.Command{
		Use:   "notebook [FILE.ipynb]",
		Short: "Open Jupyter in a session",
		Long: `Open Jupyter in the browser, in a session that is created, or used again when one of the name lives. A FILE is copied into
the session first; one that is there already is kept, since it may hold work, unless --replace says otherwise.

The session goes on when the browser is closed. berth session rm ends it, and what is in no mounted folder goes with it.`,
		Example: `  berth notebook analysis.ipynb -v data
  berth notebook --image pytorch --name train -r cuda.device=1`,
		Args: frame.Args(cobra.MaximumNArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.image, "image", "python", "image with Jupyter")
	f.StringVar(&o.name, "name", "notebook", "name of the session")
	f.StringArrayVarP(&o.resources, "resource", "r", nil, "amount of a slot, such as cpu=1, mem=512m, gpu=0.5 (repeatable)")
	f.StringArrayVarP(&o.mounts, "mount", "v", nil, "folder to mount, such as data or data:/home/work/data (repeatable)")
	f.StringArrayVarP(&o.environ, "env", "e", nil, "environment variable K=V, or K to pass the own value on (repeatable)")
	f.StringVar(&o.group, "resource-group", "", "resource group to run in")
	f.DurationVar(&o.timeout, "timeout", 0, "give up after this time, such as 90s or 10m (default: never)")
	f.BoolVar(&o.replace, "replace", false, "replace a file of the same name in the session")
	f.BoolVar(&o.NoBrowser, "no-browser", false, "only print the address")
	return cmd
}

func (o *notebookOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, files []string) error {
	for _, f := range files {
		if err := checkNotebook(f); err != nil {
			return err
		}
	}
	req, err := o.request(ctx, o.verbs, c, o.image)
	if err != nil {
		return err
	}
	signals, stopSignals := o.Interrupts()
	defer stopSignals()
	ctx, stop := frame.UntilSignal(ctx, signals)
	defer stop()
	ctx, cancel := frame.Within(ctx, o.timeout)
	defer cancel()
	made, err := c.CreateSession(ctx, req)
	if err != nil {
		return o.hint(err)
	}
	p := &frame.Progress{Out: cmd.ErrOrStderr(), Name: made.Name, TTY: frame.IsTerminal(cmd.ErrOrStderr())}
	info, err := o.Watch(ctx, c, made.ID, frame.GoalRunning, p)
	if err != nil {
		return err
	}
	info.ID, info.Name = made.ID, made.Name
	if !made.Created {
		frame.Say(cmd, "session %s lives already and is used again", made.Name)
	}
	for _, f := range files {
		if err := o.bring(ctx, cmd, c, info, f); err != nil {
			return err
		}
	}
	list, err := c.Apps(ctx, info.ID)
	if err != nil {
		return err
	}
	jupyter, err := notebookApp(info, list)
	if err != nil {
		return err
	}
	out, err := o.Publish(ctx, cmd, c, info, jupyter)
	if err != nil {
		return frame.Hint(err, "berth app list %s; berth session rm %s ends the session", info.Name, info.Name)
	}
	for _, f := range files {
		out.URL = atNotebook(out.URL, jupyter.Name, filepath.Base(f))
	}
	if err := o.Show(cmd, info, jupyter, out); err != nil {
		return err
	}
	frame.Say(cmd, "session %s goes on; berth session rm %s ends it", info.Name, info.Name)
	return nil
}

// checkNotebook refuses a file that cannot be brought before a session is made for it.
func checkNotebook(name string) error {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return fmt.Errorf("read notebook: %w", err)
	case filepath.Ext(name) != ".ipynb":
		return frame.Usage(
			frame.Hint(fmt.Errorf("%s is no notebook", name), "name a file that ends in .ipynb, or bring others with berth session upload"),
		)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", name)
	case info.Size() >= api.MaxUploadSize:
		return frame.Hint(
			fmt.Errorf(
				"%s has %s; only files below %s can be brought", name, frame.BytesText(float64(info.Size())),
				frame.BytesText(api.MaxUploadSize),
			),
			"clear the outputs of its cells, or put it into a folder (berth cp) and mount that with -v",
		)
	}
	return nil
}

// bring copies a notebook into the session, unless one of its name is there.
func (o *notebookOptions) bring(ctx context.Context, cmd *cobra.Command, c *api.Client, info api.SessionInfo, name string) error {
	base := filepath.Base(name)
	if !o.replace {
		there, err := c.ListFiles(ctx, info.ID, ".")
		if err != nil {
			return err
		}
		if slices.ContainsFunc(there.Files, func(f api.FileInfo) bool { return f.Name == base }) {
			frame.Say(cmd, "%s is in the session already and is kept; --replace brings the local one", base)
			return nil
		}
	}
	return c.UploadFiles(ctx, info.ID, []api.Upload{{Path: base, Open: func() (io.ReadCloser, error) { return os.Open(name) }}})
}

// atNotebook makes an address lead to a notebook inside the app. App proxies of others ignore what it adds.
func atNotebook(address, app, base string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	dir := "/tree/"
	if app == "jupyterlab" {
		dir = "/lab/tree/"
	}
	q := u.Query()
	q.Set("redirect", dir+url.PathEscape(base))
	u.RawQuery = q.Encode()
	return u.String()
}

// notebookApp chooses what opens notebooks.
func notebookApp(info api.SessionInfo, list []api.App) (api.App, error) {
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = a.Name
	}
	for _, want := range notebookApps {
		if i := slices.Index(names, want); i >= 0 && list[i].State != api.AppMissing {
			return list[i], nil
		}
	}
	return api.App{}, frame.Hint(
		fmt.Errorf("the image of session %s has no Jupyter: %w", info.Name, errors.New("its apps are "+frame.Names(names))),
		"choose another --image with another --name; berth session rm %s ends this one", info.Name,
	)
}
