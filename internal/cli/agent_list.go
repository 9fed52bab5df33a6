package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type agentListOptions struct {
	app    *app
	status string
	json   bool
}

func (a *app) newAgentList() *cobra.Command {
	o := &agentListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List worker hosts",
		Long:    "List worker hosts with what they have and what is taken.",
		Example: "  berth agent list --status LOST",
		Args:    args(cobra.NoArgs),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	cmd.Flags().StringVar(&o.status, "status", "ALIVE", "ALIVE, LOST, RESTARTING or TERMINATED")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *agentListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.Agents(ctx, strings.ToUpper(o.status))
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(cmd.OutOrStdout(), list)
	}
	if len(list) == 0 {
		say(cmd, "no agents are %s; berth status tells about this machine", strings.ToUpper(o.status))
		return nil
	}
	t := table{titles: []string{"ID", "STATUS", "ARCH", "RESOURCE GROUP", "HAS", "TAKEN", "CPU", "VERSION"}}
	for _, a := range list {
		t.rows = append(t.rows, []string{a.ID, agentStatus(a.Status, a.Schedulable), a.Architecture, a.ResourceGroup, slots(a.Available), slots(a.Occupied), percent(a.CPUPercent), deref(a.Version)})
	}
	return t.write(cmd.OutOrStdout(), o.app.colour(cmd.OutOrStdout()))
}

func percent(p *float64) string {
	if p == nil {
		return ""
	}
	return strconv.FormatFloat(*p, 'f', 0, 64) + " %"
}
