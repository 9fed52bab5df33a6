package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newSchedulerPolicies() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "policies",
		Short: "List the scheduling policies that the manager knows",
		Long: `List the scheduling policies that the manager knows, the default first. The order says which
waiting session is next, the placement which agent it gets.`,
		Example: "  berth scheduler policies",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			p, err := c.SchedulingPolicies(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), p)
			}
			var f frame.Fields
			f.Add("orders", strings.Join(p.Orders, ", "))
			f.Add("placements", strings.Join(p.Placements, ", "))
			return f.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// completePolicies offers one of the lists of policies that the manager knows.
func (a *verbs) completePolicies(of func(api.SchedulingPolicies) []string) cobra.CompletionFunc {
	return a.Complete(func(ctx context.Context, c *api.Client, _ []string) []string {
		p, err := c.SchedulingPolicies(ctx)
		if err != nil {
			return nil
		}
		return of(p)
	})
}
