package app

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newClose() *cobra.Command {
	kernel := ""
	cmd := &cobra.Command{
		Use:   "close SESSION [APP]",
		Short: "Take the address of an app away",
		Long: `Take the address of an app away, or those of all apps of a session or of one of its kernels. Whoever uses it is
disconnected at once, and the address is never used for the same again. The program goes on; berth app stop ends it.`,
		Example:           "  berth app close mylab jupyter",
		Args:              frame.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: a.complete(),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			app := ""
			if len(args) == 2 {
				app = args[1]
			}
			list, err := published(ctx, c, args[0], kernel, app)
			if err != nil {
				return err
			}
			for _, k := range list {
				// One that is gone already is what was wanted.
				if err := c.CloseCircuit(ctx, k.ID); err != nil && !api.IsNotFound(err) {
					return err
				}
				frame.Say(cmd, "%s is closed (app %s)", k.URL, k.App)
			}
			return nil
		}),
	}
	frame.KernelFlag(cmd, &kernel)
	return cmd
}
