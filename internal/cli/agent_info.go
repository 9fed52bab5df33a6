package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type agentInfoOptions struct {
	app  *app
	json bool
}

func (a *app) newAgentInfo() *cobra.Command {
	o := &agentInfoOptions{app: a}
	cmd := &cobra.Command{
		Use:     "info AGENT",
		Short:   "Describe a worker host",
		Long:    "Describe a worker host.",
		Example: "  berth agent info i-worker1 --json",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *agentInfoOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, id string) error {
	a, err := c.Agent(ctx, id)
	if err != nil {
		if api.IsNotFound(err) {
			return hint(err, "berth agent list")
		}
		return err
	}
	if o.json {
		return printJSON(cmd.OutOrStdout(), a)
	}
	var f fields
	f.add("id", a.ID)
	f.add("status", agentStatus(a.Status, a.Schedulable))
	f.add("schedulable", strconv.FormatBool(a.Schedulable))
	f.add("architecture", a.Architecture)
	f.add("resource group", a.ResourceGroup)
	f.add("address", deref(a.Addr))
	f.add("version", deref(a.Version))
	f.add("has", slots(a.Available))
	f.add("taken", slots(a.Occupied))
	f.add("cpu use", percent(a.CPUPercent))
	if a.MemBytes != nil {
		f.add("memory use", bytesText(*a.MemBytes))
	}
	f.add("first contact", a.FirstContact)
	f.add("lost at", deref(a.LostAt))
	return f.write(cmd.OutOrStdout(), o.app.colour(cmd.OutOrStdout()))
}
