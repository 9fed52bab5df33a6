package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type openOptions struct {
	Opener
	arguments []string
	envs      []string
	json      bool
}

// Opener publishes an app and opens it.
type Opener struct {
	*frame.Frame
	Kernel    string // of a session with several; "" is the main one
	NoBrowser bool
	Public    bool
	Allow     []string
	Mode      string
	Port      int    // of the app proxy
	Label     string // of the subdomain
	// Arguments and Envs are how the app is started; see api.StartApp.
	Arguments map[string]any
	Envs      map[string]string
}

func (a *verbs) newOpen() *cobra.Command {
	o := &openOptions{Opener: Opener{Frame: a.Frame}}
	cmd := &cobra.Command{
		Use:   "open SESSION [APP]",
		Short: "Start an app and open it in the browser",
		Long: `Start an app of a running session, publish it at an address of its own, print the address and open it in the browser of
the desktop. The address lets you in, once and for a few minutes; the browser stays in afterwards.

Only you can use the app, unless it is published to the public here or shared later with berth app share. Apps that
speak no HTTP get a port that is open to the address of this machine.

Well-known apps (jupyter, jupyterlab, vscode, tensorboard) need no declaration by the image: install one in the session
and open it.`,
		Example: `  berth app open mylab jupyter
  berth app open mylab tensorboard --arg --logdir=/home/work/runs
  berth app open mylab 8000 --no-browser --public --allow 10.0.0.0/8`,
		Args:              frame.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: a.complete(),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args)
		}),
	}
	frame.KernelFlag(cmd, &o.Kernel)
	f := cmd.Flags()
	f.BoolVar(&o.NoBrowser, "no-browser", false, "only print the address")
	f.BoolVar(&o.Public, "public", false, "let everybody in, without a login")
	f.StringSliceVar(&o.Allow, "allow", nil, "addresses and prefixes that may visit, such as 10.0.0.0/8,192.0.2.7 (default: all)")
	f.StringVar(&o.Mode, "mode", "", "address by port or by subdomain (default: the app proxy's)")
	f.IntVar(&o.Port, "proxy-port", 0, "port of the app proxy to ask for")
	f.StringVar(&o.Label, "subdomain", "", "name of the subdomain to ask for")
	f.StringArrayVar(&o.arguments, "arg", nil, "argument NAME[=VALUE] that the app takes, such as --logdir=/home/work/runs (repeatable)")
	f.StringArrayVar(&o.envs, "env", nil, "environment variable NAME=VALUE that the app takes (repeatable)")
	frame.JSONFlag(cmd, &o.json)
	_ = cmd.RegisterFlagCompletionFunc(
		"mode", cobra.FixedCompletions([]string{api.CircuitPort, api.CircuitSubdomain}, cobra.ShellCompDirectiveNoFileComp),
	)
	return cmd
}

func (o *openOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	if err := o.Check(cmd); err != nil {
		return err
	}
	if err := o.start(cmd); err != nil {
		return err
	}
	session, name := args[0], ""
	if len(args) == 2 {
		name = args[1]
	}
	info, err := frame.RunningSession(ctx, c, session)
	if api.IsNotFound(err) {
		if done, enterErr := o.enter(ctx, cmd, c, session, name); done {
			return enterErr
		}
	}
	if err != nil {
		return err
	}
	at := place{info, o.Kernel}
	list, err := c.Apps(ctx, at.ref())
	if err != nil {
		return err
	}
	var app api.App
	if name == "" {
		app, err = only(at, list)
	} else if app, err = find(at, list, name); err != nil {
		err = couldBe(ctx, c, at, name, err)
	}
	if err != nil {
		return err
	}
	if (app.State == api.AppReady || app.State == api.AppStarting) && len(o.Arguments)+len(o.Envs) > 0 {
		return frame.Hint(
			fmt.Errorf("app %s of %s runs already, so it takes no arguments", app.Name, at.text()),
			"berth app stop %s %s, then open it again", at.operand(), app.Name,
		)
	}
	out, err := o.Publish(ctx, cmd, c, info, app)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), map[string]any{
			"session": info.ID, "app": app.Name, "protocol": app.Protocol, "url": out.URL, "gateway": out.Gateway, "reuse": out.Reuse,
		})
	}
	return o.Show(cmd, info, app, out)
}

// enter opens an app of somebody else's session that is shared with the caller.
func (o *openOptions) enter(ctx context.Context, cmd *cobra.Command, c *api.Client, session, app string) (bool, error) {
	list, err := c.Circuits(ctx, "")
	if err != nil {
		return false, nil
	}
	for _, k := range list {
		if k.SessionName != session && k.SessionID != session || app != "" && k.App != app || o.Kernel != "" && k.Kernel != o.Kernel {
			continue
		}
		address, err := c.EnterCircuit(ctx, k.ID)
		if err != nil {
			return true, err
		}
		if o.json {
			return true, frame.PrintJSON(
				cmd.OutOrStdout(),
				map[string]any{"session": k.SessionID, "app": k.App, "protocol": k.Protocol, "url": address, "reuse": true},
			)
		}
		return true, o.show(cmd, address)
	}
	return false, nil
}

// start reads how the app is to be started.
func (o *openOptions) start(cmd *cobra.Command) error {
	for _, text := range o.arguments {
		name, value, has := strings.Cut(text, "=")
		if name == "" {
			return frame.Usage(frame.Hint(fmt.Errorf("--arg %q names no argument", text), "write it as --arg --logdir=/home/work/runs"))
		}
		if o.Arguments == nil {
			o.Arguments = map[string]any{}
		}
		switch words, again := o.Arguments[name].([]string); {
		case has:
			o.Arguments[name] = append(words, value)
		case !again:
			o.Arguments[name] = nil
		}
	}
	for _, text := range o.envs {
		name, value, has := strings.Cut(text, "=")
		if name == "" || !has {
			return frame.Usage(frame.Hint(fmt.Errorf("--env %q is not NAME=VALUE", text), "%s --help", cmd.CommandPath()))
		}
		if o.Envs == nil {
			o.Envs = map[string]string{}
		}
		o.Envs[name] = value
	}
	return nil
}

// couldBe asks how an app that is not listed may be had; unlisted is the answer when the session does not know either.
func couldBe(ctx context.Context, c *api.Client, at place, name string, unlisted error) error {
	if _, err := strconv.ParseUint(name, 10, 16); err == nil {
		return unlisted
	}
	if _, err := c.StartApp(ctx, at.ref(), api.StartApp{App: name}); api.HasCode(err, api.CodeAppMissing) {
		return fmt.Errorf("open app %s of %s: %w", name, at.text(), err)
	}
	return unlisted
}

// Check refuses flags that cannot be meant.
func (o *Opener) Check(cmd *cobra.Command) error {
	if o.Mode != "" && o.Mode != api.CircuitPort && o.Mode != api.CircuitSubdomain {
		return frame.Usage(
			frame.Hint(
				fmt.Errorf("--mode is %s or %s, not %q", api.CircuitPort, api.CircuitSubdomain, o.Mode), "%s --help", cmd.CommandPath(),
			),
		)
	}
	if o.Label != "" && (o.Port != 0 || o.Mode == api.CircuitPort) {
		return frame.Usage(frame.Hint(errors.New("--subdomain does not go with a port"), "%s --help", cmd.CommandPath()))
	}
	return checkAllowed(o.Allow)
}

func checkAllowed(list []string) error {
	for _, text := range list {
		_, err := netip.ParsePrefix(text)
		if err != nil {
			_, err = netip.ParseAddr(text)
		}
		if err != nil {
			return frame.Usage(
				frame.Hint(
					fmt.Errorf("--allow %q is no address and no prefix", text), "write it as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32",
				),
			)
		}
	}
	return nil
}

// Publish starts an app and publishes it.
func (o *Opener) Publish(ctx context.Context, cmd *cobra.Command, c *api.Client, info api.SessionInfo, app api.App) (api.Published, error) {
	at := place{info, o.Kernel}
	if app.State == api.AppMissing {
		return api.Published{}, frame.Hint(
			fmt.Errorf("app %s of %s cannot be started: %s", app.Name, at.text(), detailOf(app)), "berth app list %s", at.operand(),
		)
	}
	signals, stopSignals := o.Interrupts()
	defer stopSignals()
	ctx, stop := frame.UntilSignal(ctx, signals)
	defer stop()
	p := &frame.Progress{Out: cmd.ErrOrStderr(), Name: app.Name, TTY: frame.IsTerminal(cmd.ErrOrStderr())}
	defer p.Clear()
	if app.State == api.AppStopped || app.State == api.AppFailed {
		p.Say("starting")
	}
	launch, err := c.StartApp(ctx, at.ref(), api.StartApp{App: app.Name, Envs: o.Envs, Arguments: o.Arguments})
	if err != nil {
		if api.HasCode(err, api.CodeNoAppProxy) {
			return api.Published{}, frame.Hint(err, "berth port-forward %s %s reaches it without one", at.operand(), app.Name)
		}
		return api.Published{}, fmt.Errorf("start app %s of %s: %w", app.Name, at.text(), err)
	}
	if app.Origin == api.AppNoticed && !app.HTTP() {
		// A program that was busy is known better now that it was opened.
		if list, err := c.Apps(ctx, at.ref()); err == nil {
			if again, err := find(at, list, app.Name); err == nil {
				app = again
			}
		}
	}
	out, err := c.PublishApp(ctx, launch, info.ID, api.Publish{
		App: app.Name, Protocol: app.Protocol, Public: o.Public, Allowed: o.Allow, Mode: o.Mode, ProxyPort: o.Port, Label: o.Label,
	})
	if api.IsProxyUnreachable(err) {
		err = frame.Hint(err, "berth port-forward %s %s reaches the app through the manager", at.operand(), app.Name)
	}
	return out, err
}

// Show prints where the app is and opens it.
func (o *Opener) Show(cmd *cobra.Command, info api.SessionInfo, app api.App, out api.Published) error {
	if out.Gateway != "" {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), out.Gateway); err != nil {
			return err
		}
		frame.Say(
			cmd, "app %s speaks %s; connect to it from here, or berth port-forward %s %s", app.Name, app.Protocol,
			place{info, o.Kernel}.operand(), app.Name,
		)
		return nil
	}
	return o.show(cmd, out.URL)
}

func (o *Opener) show(cmd *cobra.Command, address string) error {
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), address); err != nil {
		return err
	}
	if !strings.HasPrefix(address, "http://") && !strings.HasPrefix(address, "https://") {
		return fmt.Errorf("the app proxy answered %q, which is no address of a page", address)
	}
	if !o.NoBrowser && o.Browse(address) {
		frame.Say(cmd, "opened in the browser")
	}
	return nil
}

func detailOf(app api.App) string {
	if app.Detail != "" {
		return app.Detail
	}
	return "it is " + app.State
}
