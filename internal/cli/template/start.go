package template

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/template"
	"berth.dev/berth/internal/cli/frame"
)

func (v *verbs) newStart() *cobra.Command {
	var ofCluster, detach, quiet, json bool
	var name string
	cmd := &cobra.Command{
		Use:   "start TEMPLATE",
		Short: "Start a session from a template",
		Long: "Create a session from a template, wait until it runs and print its id. A live session of the same name and image " +
			"is used again.",
		Example: "  berth template start train --name train-2",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			s, err := template.CreateSession(ctx, c, kind(ofCluster), template.Start{TemplateID: args[0], Name: name, EnqueueOnly: true})
			if err != nil {
				return frame.Hint(err, "berth template list --all")
			}
			if !detach {
				p := &frame.Progress{Out: cmd.ErrOrStderr(), Name: s.Name, TTY: frame.IsTerminal(cmd.ErrOrStderr()), Quiet: quiet}
				info, err := v.Watch(ctx, c, s.ID, frame.GoalRunning, p)
				if err != nil {
					return frame.Hint(err, "berth session info %s", s.ID)
				}
				s.Status = info.Status
			}
			if json {
				return frame.PrintJSON(cmd.OutOrStdout(), s)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), s.ID)
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "name of the session (default: the template's)")
	f.BoolVarP(&detach, "detach", "d", false, "return as soon as the session is queued")
	f.BoolVarP(&quiet, "quiet", "q", false, "print no progress")
	kindFlag(cmd, &ofCluster)
	frame.JSONFlag(cmd, &json)
	return cmd
}
