package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionWaitOptions struct {
	app     *verbs
	what    string
	timeout time.Duration
	quiet   bool
	json    bool
}

func (a *verbs) newSessionWait() *cobra.Command {
	o := &sessionWaitOptions{app: a}
	cmd := &cobra.Command{
		Use:   "wait SESSION",
		Short: "Wait until a session runs or has ended",
		Long: `Wait until a session runs or, with --for ended, has ended, and print its status.

A batch session that has ended passes its exit code through. A manager that does not
answer is asked again for two minutes.`,
		Example: "  berth session wait train --for ended --timeout 2h",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.what, "for", "running", "running or ended")
	f.DurationVar(&o.timeout, "timeout", 0, "give up after this time, such as 90s (default: never)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not tell how it goes")
	frame.JSONFlag(cmd, &o.json)
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"running", "ended"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *sessionWaitOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	g, ok := map[string]frame.Goal{"running": frame.GoalRunning, "ended": frame.GoalEnded}[o.what]
	if !ok {
		return frame.Usage(frame.Hint(fmt.Errorf("--for %q is not running or ended", o.what), "%s --help", cmd.CommandPath()))
	}
	ctx, cancel := frame.Within(ctx, o.timeout)
	defer cancel()
	var info api.SessionInfo
	err := orEnded(ctx, c, session, func(session string) (err error) {
		// A name is lost when its session ends, the id is not.
		err = o.app.Patiently(ctx, cmd.ErrOrStderr(), func() error { info, err = c.SessionInfo(ctx, session); return err })
		if err != nil {
			return err
		}
		id := session
		if info.ID != "" {
			id = info.ID
		}
		p := &frame.Progress{Out: cmd.ErrOrStderr(), Name: session, TTY: frame.IsTerminal(cmd.ErrOrStderr()), Quiet: o.quiet}
		info, err = o.app.Watch(ctx, c, id, g, p)
		return err
	})
	if err != nil {
		return err
	}
	if o.json {
		err = frame.PrintJSON(cmd.OutOrStdout(), info)
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), info.Status)
	}
	if err == nil && g == frame.GoalEnded && info.Type == api.TypeBatch {
		return batchExit(session, info)
	}
	return err
}
