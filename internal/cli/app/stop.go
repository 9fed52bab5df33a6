package app

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newStop() *cobra.Command {
	return &cobra.Command{
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
			list, err := c.Apps(ctx, info.ID)
			if err != nil {
				return err
			}
			app, err := find(info, list, args[1])
			if err != nil {
				return err
			}
			if app.Origin == api.AppIntrinsic {
				return frame.Hint(
					fmt.Errorf("app %s belongs to every session and cannot be stopped", app.Name),
					"berth app close %s %s takes its address away", info.Name, app.Name,
				)
			}
			if err := c.StopApp(ctx, info.ID, app.Name); err != nil {
				return fmt.Errorf("stop app %s of session %s: %w", app.Name, info.Name, err)
			}
			frame.Say(cmd, "app %s of session %s is stopped", app.Name, info.Name)
			return nil
		}),
	}
}
