package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionRmOptions struct {
	force     bool
	recursive bool
	yes       bool
}

func (a *verbs) newSessionRm() *cobra.Command {
	o := &sessionRmOptions{}
	cmd := &cobra.Command{
		Use:     "rm SESSION...",
		Aliases: []string{"destroy"},
		Short:   "End sessions",
		Long:    "End sessions and remove their containers. What was written outside folders is lost.",
		Example: "  berth session rm mylab\n  berth session rm -f --yes stuck",
		Args:    frame.Args(cobra.MinimumNArgs(1)),
		RunE:    a.Run(o.run),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.force, "force", "f", false, "also end sessions that are just starting, ending or in error")
	f.BoolVar(&o.recursive, "recursive", false, "also end the sessions that depend on these")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	return cmd
}

func (o *sessionRmOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	if err := frame.Confirm(cmd, o.yes, "End "+strings.Join(args, ", ")+"?"); err != nil {
		return err
	}
	var failed []error
	for _, s := range args {
		if _, err := c.DestroySession(ctx, s, api.DestroyOptions{Forced: o.force, Recursive: o.recursive, NoWait: true}); err != nil {
			if len(args) > 1 {
				err = fmt.Errorf("end session %s: %w", s, err)
			}
			if api.IsDenied(err) && !o.force {
				err = frame.Hint(err, "berth session rm -f %s", s)
			}
			failed = append(failed, sessionHint(err))
			continue
		}
		fmt.Fprintln(cmd.OutOrStdout(), s)
	}
	if len(failed) == 0 {
		return nil
	}
	for _, err := range failed[:len(failed)-1] {
		frame.PrintError(cmd.ErrOrStderr(), err)
	}
	return failed[len(failed)-1]
}
