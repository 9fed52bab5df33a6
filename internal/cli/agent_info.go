package cli

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type agentInfoOptions struct {
	app  *verbs
	json bool
}

func (a *verbs) newAgentInfo() *cobra.Command {
	o := &agentInfoOptions{app: a}
	cmd := &cobra.Command{
		Use:     "info AGENT",
		Short:   "Describe a worker host",
		Long:    "Describe a worker host.",
		Example: "  berth agent info i-worker1 --json",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *agentInfoOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, id string) error {
	a, err := c.Agent(ctx, id)
	if err != nil {
		if api.IsNotFound(err) {
			return frame.Hint(err, "berth agent list")
		}
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), a)
	}
	slots := frame.SlotsOf(ctx, c)
	var f frame.Fields
	f.Add("id", a.ID)
	f.Add("status", agentStatus(a.Agent))
	f.Add("schedulable", strconv.FormatBool(a.Schedulable))
	f.Add("architecture", a.Architecture)
	f.Add("resource group", a.ResourceGroup)
	f.Add("address", frame.Deref(a.Addr))
	f.Add("version", frame.Deref(a.Version))
	f.Add("has", slots.Text(a.Available))
	f.Add("taken", slots.Text(a.Occupied))
	f.Add("cpu use", percent(a.CPUPercent))
	if a.MemBytes != nil {
		f.Add("memory use", frame.BytesText(*a.MemBytes))
	}
	f.Add("first contact", a.FirstContact)
	var engine struct {
		Engine   string   `json:"engine"`
		OK       bool     `json:"engine_ok"`
		Problem  string   `json:"engine_error"`
		Warnings []string `json:"warnings"`
	}
	if json.Unmarshal(a.Hardware, &engine) == nil { // an older manager may tell nothing
		f.Add("engine", engine.Engine)
		if !engine.OK && len(a.AgentConditions()) == 0 {
			f.Add("takes no sessions", engine.Problem)
		}
		for _, w := range engine.Warnings {
			f.Add("warning", w)
		}
	}
	for _, c := range a.AgentConditions() {
		f.Add("condition", conditionText(c))
	}
	f.Add("lost at", frame.Deref(a.LostAt))
	return f.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
