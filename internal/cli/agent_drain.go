package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

const (
	// drainNamed is how many of the sessions that are left are named.
	drainNamed = 5
	// drainPatience is how many looks in a row may fail because nobody answers.
	drainPatience = 60
	// drainEnding bounds the wait for sessions that were told to end; the manager's own deadlines are shorter.
	drainEnding = 10 * time.Minute
)

type agentDrainOptions struct {
	app     *verbs
	timeout time.Duration
	force   bool
	yes     bool
	quiet   bool
}

func (a *verbs) newAgentDrain() *cobra.Command {
	o := &agentDrainOptions{app: a}
	cmd := &cobra.Command{
		Use:   "drain AGENT",
		Short: "Empty a worker host, for maintenance",
		Long: `Cordon a worker host and wait until its sessions have ended.

With --timeout the wait is bounded. With --force what then is left is ended; without
a timeout at once. Ctrl-C ends the wait alone: the host stays cordoned and its sessions go on.`,
		Example: `  berth agent drain i-worker1 --timeout 1h
  berth agent drain i-worker1 --force --timeout 10m`,
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.DurationVar(&o.timeout, "timeout", 0, "wait for sessions to end at most this long, such as 1h (default: for ever)")
	f.BoolVarP(&o.force, "force", "f", false, "end the sessions that are left after the --timeout")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not tell how it goes")
	return cmd
}

func (o *agentDrainOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, agent string) error {
	if o.force {
		if err := frame.Confirm(cmd, o.yes, "End the sessions of "+agent+"?"); err != nil {
			return err
		}
	}
	w, err := c.SetSchedulable(ctx, agent, false)
	if err != nil {
		return agentHint(err)
	}
	signals, stop := o.app.Interrupts()
	defer stop()
	waiting, stopWaiting := frame.UntilSignal(ctx, signals)
	defer stopWaiting()
	p := &frame.Progress{Out: cmd.ErrOrStderr(), Name: agent, TTY: frame.IsTerminal(cmd.ErrOrStderr()), Quiet: o.quiet}
	defer p.Clear()

	if !o.force || o.timeout > 0 {
		patient, cancel := frame.Within(waiting, o.timeout)
		w, err = o.wait(patient, c, w, p, "left", func(api.AgentWork) error { return nil })
		cancel()
		if err != nil && !(o.force && errors.Is(err, frame.ErrTimeout)) {
			return o.unfinished(w, err)
		}
	}
	if w.SessionCount > 0 {
		bounded, cancel := frame.Within(waiting, drainEnding)
		w, err = o.wait(bounded, c, w, p, "ending", o.ender(bounded, cmd, c))
		cancel()
		if err != nil {
			return o.unfinished(w, err)
		}
	}
	p.Clear()
	frame.Say(cmd, "agent %s is drained: it holds nothing and takes nothing new; berth agent uncordon %s takes it back", agent, agent)
	_, err = fmt.Fprintln(cmd.OutOrStdout(), agent)
	return err
}

// wait looks at the agent until it holds nothing and does with each look what is to be done. It returns the last look
// also with an error.
func (o *agentDrainOptions) wait(
	ctx context.Context, c *api.Client, w api.AgentWork, p *frame.Progress, word string, each func(api.AgentWork) error,
) (api.AgentWork, error) {
	silent := 0
	for w.SessionCount > 0 {
		if err := each(w); err != nil {
			return w, err
		}
		p.Say(frame.Count(w.SessionCount, "session") + " " + word + ": " + names(w.Sessions, w.SessionCount))
		select {
		case <-ctx.Done():
			return w, context.Cause(ctx)
		case <-time.After(o.app.Look):
		}
		now, err := c.AgentWork(ctx, w.ID)
		switch {
		case err != nil && ctx.Err() != nil:
			return w, context.Cause(ctx)
		case err != nil && frame.ExitCode(err) == frame.ExitUnavailable && silent < drainPatience:
			silent++ // it may be restarting
			p.Say("the manager does not answer; looking again")
			continue
		case err != nil:
			return w, err
		}
		silent = 0
		if w = now; w.Schedulable {
			return w, frame.Hint(fmt.Errorf("somebody uncordoned agent %s meanwhile", w.ID), "berth agent drain %s", w.ID)
		}
	}
	return w, nil
}

// ender ends sessions, each once. A placement that was on its way when the agent was cordoned comes up in a later look.
func (o *agentDrainOptions) ender(ctx context.Context, cmd *cobra.Command, c *api.Client) func(api.AgentWork) error {
	told := map[string]bool{}
	return func(w api.AgentWork) error {
		for _, s := range w.Sessions {
			if told[s.ID] || s.Status == api.StatusTerminating {
				continue
			}
			told[s.ID] = true
			_, err := c.DestroySession(ctx, s.ID, api.DestroyOptions{Forced: s.Status != api.StatusRunning, NoWait: true})
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil && !api.IsNotFound(err) {
				frame.PrintError(cmd.ErrOrStderr(), fmt.Errorf("end session %s: %w", s.Name, err))
			}
		}
		return nil
	}
}

// unfinished says what is left when a drain ends early.
func (o *agentDrainOptions) unfinished(w api.AgentWork, err error) error {
	next := fmt.Sprintf("berth agent drain %s goes on waiting, --force ends them, berth agent uncordon %s takes the agent back", w.ID, w.ID)
	return frame.Hint(
		fmt.Errorf(
			"agent %s stays cordoned with %s left (%s): %w", w.ID, frame.Count(w.SessionCount, "session"),
			names(w.Sessions, w.SessionCount), err,
		),
		"%s",
		next,
	)
}

// names lists the first sessions with whose they are.
func names(sessions []api.AgentSession, total int) string {
	var parts []string
	for _, s := range sessions[:min(drainNamed, len(sessions))] {
		text := s.Name + " of " + s.User
		if s.Status != api.StatusRunning {
			text += " (" + strings.ToLower(s.Status) + ")"
		}
		parts = append(parts, text)
	}
	if more := total - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}
