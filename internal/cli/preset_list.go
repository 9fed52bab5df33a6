package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type presetListOptions struct {
	app   *app
	group string
	json  bool
}

func (a *app) newPresetList() *cobra.Command {
	o := &presetListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List presets and whether they fit now",
		Long:    "List presets, and whether a session of each would fit now: within your limits, your project's and your domain's, and on one agent.",
		Example: "  berth preset list --resource-group gpus",
		Args:    args(cobra.NoArgs),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	cmd.Flags().StringVar(&o.group, "resource-group", "", "look at one resource group; without it at all that you may use")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *presetListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	check, err := c.CheckPresets(ctx, c.Config().Group, o.group)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(cmd.OutOrStdout(), check.Presets)
	}
	if len(check.Presets) == 0 {
		say(cmd, "there are no presets")
		return nil
	}
	t := table{titles: []string{"NAME", "SLOTS", "SHARED MEMORY", "RESOURCE GROUP", "FITS NOW"}}
	for _, p := range check.Presets {
		fits := "no"
		if deref(p.Allocatable) {
			fits = "yes"
		}
		shm := ""
		if p.SharedMemory != nil {
			shm = slotAmount("mem", *p.SharedMemory)
		}
		t.rows = append(t.rows, []string{p.Name, slotsOf(p.Slots), shm, p.ResourceGroup, fits})
	}
	return t.write(cmd.OutOrStdout(), o.app.colour(cmd.OutOrStdout()))
}
