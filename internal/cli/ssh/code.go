package ssh

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/app"
	"berth.dev/berth/internal/cli/frame"
)

// webEditors are apps that are an editor in the browser, best first.
var webEditors = []string{"vscode", "code-server"}

type codeOptions struct {
	app.Opener
	verbs *verbs
}

func (a *verbs) newCode() *cobra.Command {
	o := &codeOptions{Opener: app.Opener{Frame: a.Frame}, verbs: a}
	cmd := &cobra.Command{
		Use:   "code SESSION [PATH]",
		Short: "Open VS Code in a session",
		Long: `Open a directory of a running session in the VS Code of this machine, through its SSH extension. PATH is below
/home/work or absolute. Where this machine has no VS Code, the session's own is opened in the browser, when its image
has one; else the address is printed that a VS Code elsewhere takes.`,
		Example:           "  berth code mylab\n  berth code mylab project",
		Args:              frame.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: a.CompleteSessions(nil),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			dir := home
			if len(args) == 2 {
				if dir = path.Clean(args[1]); !path.IsAbs(dir) {
					dir = path.Join(home, dir)
				}
			}
			return o.run(ctx, cmd, c, args[0], dir)
		}),
	}
	frame.KernelFlag(cmd, &o.Kernel)
	cmd.Flags().BoolVar(&o.NoBrowser, "no-browser", false, "start nothing, only print the address")
	return cmd
}

func (o *codeOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session, dir string) error {
	info, err := frame.RunningSession(ctx, c, session)
	if err != nil {
		return err
	}
	host := info.Name + suffix
	if o.Kernel != "" {
		host = o.Kernel + "." + host
	}
	if program, err := o.Programs.LookPath("code"); err == nil && !o.NoBrowser {
		if err := o.verbs.configured(ctx, cmd, c, host); err != nil {
			return err
		}
		return o.Programs.Start(program, "--folder-uri", "vscode-remote://ssh-remote+"+host+(&url.URL{Path: dir}).EscapedPath())
	}
	list, err := c.Apps(ctx, frame.InKernel(info.ID, o.Kernel))
	if err != nil {
		return err
	}
	for _, name := range webEditors {
		for _, a := range list {
			if a.Name != name || a.State == api.AppMissing || o.NoBrowser {
				continue
			}
			out, err := o.Publish(ctx, cmd, c, info, a)
			if err != nil {
				return err
			}
			return o.Show(cmd, info, a, out)
		}
	}
	if err := o.verbs.configured(ctx, cmd, c, host); err != nil {
		return err
	}
	address := "vscode://vscode-remote/ssh-remote+" + host + strings.TrimSuffix((&url.URL{Path: dir}).EscapedPath(), "/") + "/"
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), address); err != nil {
		return err
	}
	if o.NoBrowser || !o.Browse(address) {
		frame.Say(cmd, "follow the address on a machine with VS Code and its extension Remote - SSH")
	}
	return nil
}
