package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type sessionWaitOptions struct {
	app     *app
	what    string
	timeout time.Duration
	quiet   bool
	json    bool
}

func (a *app) newSessionWait() *cobra.Command {
	o := &sessionWaitOptions{app: a}
	cmd := &cobra.Command{
		Use:   "wait SESSION",
		Short: "Wait until a session runs or has ended",
		Long: `Wait until a session runs or, with --for ended, has ended, and print its status.

A batch session that has ended passes its exit code through.`,
		Example: "  berth session wait train --for ended --timeout 2h",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.what, "for", "running", "running or ended")
	f.DurationVar(&o.timeout, "timeout", 0, "give up after this time, such as 90s (default: never)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not tell how it goes")
	jsonFlag(cmd, &o.json)
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"running", "ended"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *sessionWaitOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	g, ok := map[string]goal{"running": goalRunning, "ended": goalEnded}[o.what]
	if !ok {
		return usage(hint(fmt.Errorf("--for %q is not running or ended", o.what), "%s --help", cmd.CommandPath()))
	}
	ctx, cancel := within(ctx, o.timeout)
	defer cancel()
	var info api.SessionInfo
	err := orEnded(ctx, c, session, func(session string) (err error) {
		// A name is lost when its session ends, the id is not.
		if info, err = c.SessionInfo(ctx, session); err != nil {
			return err
		}
		id := session
		if info.ID != "" {
			id = info.ID
		}
		p := &progress{w: cmd.ErrOrStderr(), name: session, tty: isTerminal(cmd.ErrOrStderr()), quiet: o.quiet}
		info, err = o.app.watch(ctx, c, id, g, p)
		return err
	})
	if err != nil {
		return err
	}
	if o.json {
		err = printJSON(cmd.OutOrStdout(), info)
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), info.Status)
	}
	if err == nil && g == goalEnded && info.Type == api.TypeBatch {
		return batchExit(session, info)
	}
	return err
}
