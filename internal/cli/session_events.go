package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/follow"
	"berth.dev/berth/internal/cli/frame"
)

type sessionEventsOptions struct {
	app    *verbs
	follow bool
	json   bool
	scope  string
}

func (a *verbs) newSessionEvents() *cobra.Command {
	o := &sessionEventsOptions{app: a}
	cmd := &cobra.Command{
		Use:     "events [SESSION]",
		Short:   "Show what happened to sessions",
		Long:    "Show what happened to a session, or to all that you may see. With --json each line is one object.",
		Example: "  berth session events -f mylab",
		Args:    frame.Args(cobra.MaximumNArgs(1)),
		RunE:    a.Run(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what happens from now, also when the manager restarts meanwhile")
	f.StringVar(&o.scope, "scope", "*", "session, kernel or * for both")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *sessionEventsOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	switch o.scope {
	case "*", "session", "kernel":
	default:
		return frame.Usage(frame.Hint(fmt.Errorf("--scope %q is not session, kernel or *", o.scope), "%s --help", cmd.CommandPath()))
	}
	session := ""
	if len(args) > 0 {
		session = args[0]
	}
	return orEnded(ctx, c, session, func(session string) error {
		if o.follow && session != "" {
			// A name is lost when its session ends, the id is not.
			if info, err := c.SessionInfo(ctx, session); err != nil {
				return err
			} else if info.ID != "" {
				session = info.ID
			}
		}
		f := api.EventFilter{Session: session, Scope: o.scope, After: "0", Once: !o.follow}
		for e, err := range follow.Events(ctx, c, f, o.app.Outage(cmd.ErrOrStderr())) {
			if err != nil {
				return err
			}
			if err := o.print(cmd, e); err != nil {
				return err
			}
		}
		return nil
	})
}

func (o *sessionEventsOptions) print(cmd *cobra.Command, e api.Event) error {
	if o.json {
		b, err := json.Marshal(e)
		if err == nil {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", b)
		}
		return err
	}
	s, err := e.Session()
	if err != nil {
		return err
	}
	words := []string{s.At, s.SessionName, e.Name}
	if s.At == "" {
		words = words[1:]
	}
	if role := frame.Deref(s.ClusterRole); role != "" {
		words = append(words, role+strconv.Itoa(frame.Deref(s.ClusterIdx)))
	}
	if s.Reason != "" {
		words = append(words, s.Reason)
	}
	if s.ExitCode != nil {
		words = append(words, "exit "+strconv.Itoa(*s.ExitCode))
	}
	if s.Detail != "" {
		words = append(words, s.Detail)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(words, "  "))
	return err
}
