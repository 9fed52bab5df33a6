package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionCreateOptions struct {
	createFlags
	app      *verbs
	callback string
	detach   bool
	noReuse  bool
	json     bool
}

func (a *verbs) newSessionCreate() *cobra.Command {
	o := &sessionCreateOptions{app: a}
	cmd := &cobra.Command{
		Use:   "create IMAGE",
		Short: "Create a session and wait until it runs",
		Long: `Create a session, wait until it runs and print its id.

A live session of the same name and image is used again. With --batch the session runs
one command and ends; with --detach nothing is waited for. A --timeout ends the
waiting, not the session.`,
		Example: `  berth session create python --name mylab -r cpu=2 -r mem=4g -v data:/home/work/data
  berth session create python --batch 'python3 job.py' --starts-at 10m --detach
  berth session create python --cluster-size 4 -r cpu=2 --dry-run
  berth session create python --cluster-mode multi-node -r cpu=1 --role worker=3,image=pytorch,cpu=4,cuda.device=1`,
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	o.add(cmd)
	f := cmd.Flags()
	f.StringVar(&o.callback, "callback-url", "", "URL that is told of each step")
	f.BoolVarP(&o.detach, "detach", "d", false, "return as soon as the session is queued")
	f.BoolVar(&o.noReuse, "no-reuse", false, "refuse when a session of the name lives already")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *sessionCreateOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, image string) error {
	req, err := o.request(ctx, o.app, c, image)
	if err != nil {
		return err
	}
	if req.Name == "" {
		req.Name = randomName("session")
	}
	req.CallbackURL, req.ReuseIfExists = o.callback, !o.noReuse
	if o.dryRun {
		return o.plan(ctx, o.app, cmd, c, req, o.json)
	}
	ctx, cancel := frame.Within(ctx, o.timeout)
	defer cancel()
	s, err := c.CreateSession(ctx, req)
	if err != nil {
		return o.hint(err)
	}
	if !s.Created && !o.quiet {
		frame.Say(cmd, "session %s lives already and is used again", s.Name)
	}
	if !o.detach {
		p := &frame.Progress{Out: cmd.ErrOrStderr(), Name: s.Name, TTY: frame.IsTerminal(cmd.ErrOrStderr()), Quiet: o.quiet}
		info, err := o.app.Watch(ctx, c, s.ID, frame.GoalRunning, p)
		if err != nil {
			return frame.Hint(err, "berth session info %s", s.ID)
		}
		s.Status = info.Status
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), s)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), s.ID)
	return err
}
