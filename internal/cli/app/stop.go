package app

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newStop() *cobra.Command {
	kernel := ""
	cmd := &cobra.Command{
		Use:   "stop SESSION APP",
		Short: "Stop an app inside a session",
		Long: `Stop the program of an app inside a session. Its address stays and answers again once the app is opened anew; berth app
close takes the address away instead and lets the program go on.`,
		Example:           "  berth app stop mylab jupyter",
		Args:              frame.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: a.complete(),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			info, err := frame.RunningSession(ctx, c, args[0])
			if err != nil {
				return err
			}
			at := place{info, kernel}
			list, err := c.Apps(ctx, at.ref())
			if err != nil {
				return err
			}
			app, err := find(at, list, args[1])
			if err != nil {
				return err
			}
			if app.Origin == api.AppIntrinsic {
				return frame.Hint(
					fmt.Errorf("app %s belongs to every session and cannot be stopped", app.Name),
					"berth app close %s %s takes its address away", at.operand(), app.Name,
				)
			}
			if err := c.StopApp(ctx, at.ref(), app.Name); err != nil {
				return fmt.Errorf("stop app %s of %s: %w", app.Name, at.text(), err)
			}
			frame.Say(cmd, "app %s of %s is stopped", app.Name, at.text())
			return nil
		}),
	}
	frame.KernelFlag(cmd, &kernel)
	return cmd
}
