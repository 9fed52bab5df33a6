package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type agentListOptions struct {
	app    *verbs
	status string
	json   bool
}

func (a *verbs) newAgentList() *cobra.Command {
	o := &agentListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List worker hosts",
		Long:    "List worker hosts with what they have and what is taken.",
		Example: "  berth agent list --status LOST",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	cmd.Flags().StringVar(&o.status, "status", "ALIVE", "ALIVE, LOST, RESTARTING or TERMINATED")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *agentListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.Agents(ctx, strings.ToUpper(o.status))
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	if len(list) == 0 {
		frame.Say(cmd, "no agents are %s; berth status tells about this machine", strings.ToUpper(o.status))
		return nil
	}
	slots := frame.SlotsOf(ctx, c)
	t := frame.Table{Titles: []string{"ID", "STATUS", "ARCH", "RESOURCE GROUP", "HAS", "TAKEN", "CPU", "VERSION"}}
	for _, a := range list {
		t.Rows = append(
			t.Rows,
			[]string{
				a.ID, agentState(a), a.Architecture, a.ResourceGroup, slots.Text(a.Available),
				slots.Text(a.Occupied), percent(a.CPUPercent), frame.Deref(a.Version),
			},
		)
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

// agentState is an agent's status with what hinders it.
func agentState(a api.Agent) string {
	text := agentStatus(a.Status, a.Schedulable)
	if since := frame.Deref(a.NotDeliveredSince); since != "" {
		text += ", not delivered since " + since
	}
	return text
}

func percent(p *float64) string {
	if p == nil {
		return ""
	}
	return strconv.FormatFloat(*p, 'f', 0, 64) + " %"
}
