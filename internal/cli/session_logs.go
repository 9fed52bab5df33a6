package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/follow"
	"berth.dev/berth/internal/cli/frame"
)

type sessionLogsOptions struct {
	app    *verbs
	follow bool
	kernel string
	json   bool
}

func (a *verbs) newSessionLogs() *cobra.Command {
	o := &sessionLogsOptions{app: a}
	cmd := &cobra.Command{
		Use:     "logs SESSION",
		Short:   "Print the console output of a session",
		Long:    "Print the console output of a session, also after its end.",
		Example: "  berth session logs -f train",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on until the session ends, also when the manager restarts meanwhile")
	f.StringVar(&o.kernel, "kernel", "", "one kernel of the session by its name, such as sub1, or its id")
	frame.JSONFlag(cmd, &o.json)
	cmd.MarkFlagsMutuallyExclusive("follow", "json")
	return cmd
}

func (o *sessionLogsOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	return orEnded(ctx, c, session, func(session string) error {
		if o.follow {
			// A name is lost when its session ends, the id is not.
			if info, err := c.SessionInfo(ctx, session); err != nil {
				return err
			} else if info.ID != "" {
				session = info.ID
			}
			return follow.Logs(ctx, c, session, o.kernel, cmd.OutOrStdout(), o.app.Outage(cmd.ErrOrStderr()))
		}
		text, err := c.Logs(ctx, session, o.kernel)
		if err != nil {
			return err
		}
		if o.json {
			return frame.PrintJSON(cmd.OutOrStdout(), map[string]string{"logs": text})
		}
		_, err = io.WriteString(cmd.OutOrStdout(), text)
		return err
	})
}
