package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

type presetCreateOptions struct {
	resources  []string
	shm, group string
}

func (a *verbs) newPresetCreate() *cobra.Command {
	o := &presetCreateOptions{}
	cmd := &cobra.Command{
		Use:     "create NAME",
		Short:   "Make a preset",
		Long:    "Make a preset. Administrators only.",
		Example: "  berth preset create large -r cpu=8 -r mem=32g -r gpu=0.5 --shmem 1g",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			slots, err := pairs("--resource", o.resources, nil)
			if err != nil {
				return frame.Usage(frame.Hint(err, "%s --help", cmd.CommandPath()))
			}
			if slots == nil {
				slots = map[string]string{}
			}
			if err := admin.CreatePreset(ctx, c, args[0], slots, o.shm, o.group); err != nil {
				return err
			}
			frame.Say(cmd, "preset %s is there", args[0])
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.resources, "resource", "r", nil, "amount of a slot, such as cpu=1, mem=512m, gpu=0.5 (repeatable)")
	f.StringVar(&o.shm, "shmem", "", "shared memory, part of mem, such as 1g")
	f.StringVar(&o.group, "resource-group", "", "offer it in one resource group only")
	return cmd
}
