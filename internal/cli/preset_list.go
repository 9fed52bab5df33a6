package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type presetListOptions struct {
	app   *verbs
	group string
	json  bool
}

func (a *verbs) newPresetList() *cobra.Command {
	o := &presetListOptions{app: a}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List presets and whether they fit now",
		Long: "List presets, and whether a session of each would fit now: within your limits, your project's and your " +
			"domain's, and on one agent.",
		Example: "  berth preset list --resource-group gpus",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	cmd.Flags().StringVar(&o.group, "resource-group", "", "look at one resource group; without it at all that you may use")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *presetListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	check, err := c.CheckPresets(ctx, c.Config().Group, o.group)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), check.Presets)
	}
	if len(check.Presets) == 0 {
		frame.Say(cmd, "there are no presets")
		return nil
	}
	slots := frame.SlotsOf(ctx, c)
	t := frame.Table{Titles: []string{"NAME", "SLOTS", "SHARED MEMORY", "RESOURCE GROUP", "FITS NOW"}}
	for _, p := range check.Presets {
		fits := "no"
		if frame.Deref(p.Allocatable) {
			fits = "yes"
		}
		shm := ""
		if p.SharedMemory != nil {
			shm = frame.BytesOf(*p.SharedMemory)
		}
		t.Rows = append(t.Rows, []string{p.Name, slots.Amounts(p.Slots), shm, p.ResourceGroup, fits})
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
