package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionKeepAliveOptions struct {
	duration, reason string
	off              bool
}

func (a *verbs) newSessionKeepAlive() *cobra.Command {
	o := &sessionKeepAliveOptions{}
	cmd := &cobra.Command{
		Use:   "keep-alive SESSION",
		Short: "Keep a session from ending as idle",
		Long: `Keep a session from ending as idle for some time from now. Owners may ask for as long
as their keypair policy allows, and not beyond the session's lifetime; what an
administrator grants holds against the lifetime too.`,
		Example: "  berth session keep-alive mylab --for 2h\n  berth session keep-alive mylab --off",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.duration, "for", "", "how long, such as 90m, 2h or 1d")
	f.StringVar(&o.reason, "reason", "", "words for administrators")
	f.BoolVar(&o.off, "off", false, "take the grant back")
	return cmd
}

func (o *sessionKeepAliveOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	if (o.duration == "") != o.off {
		return frame.Usage(frame.Hint(errors.New("name --for or --off"), "%s --help", cmd.CommandPath()))
	}
	if o.off {
		if err := c.EndKeepAlive(ctx, session); err != nil {
			return sessionHint(err)
		}
		frame.Say(cmd, "session %s may end as idle again", session)
		return nil
	}
	until, err := c.KeepAlive(ctx, session, o.duration, o.reason)
	if err != nil {
		return sessionHint(err)
	}
	frame.Say(cmd, "session %s is kept alive until %s", session, until)
	return nil
}
