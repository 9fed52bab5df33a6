package login

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newLoginList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List your logins, the newest first",
		Long:    "List your logins by password, the newest first: where they came from, by which program, when they end.",
		Example: "  berth login list",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			list, err := c.Logins(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), list)
			}
			if len(list) == 0 {
				frame.Say(cmd, "nobody is logged in as you")
				return nil
			}
			at := func(t time.Time) string { return t.Local().Format(time.DateTime) }
			t := frame.Table{Titles: []string{"ID", "FROM", "PROGRAM", "SINCE", "LAST USED", "ENDS"}}
			for _, l := range list {
				t.Rows = append(t.Rows, []string{l.ID, l.Address, l.Agent, at(l.Created), at(l.Seen), at(l.Expires)})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newLoginEnd() *cobra.Command {
	return &cobra.Command{
		Use:     "end ID|all",
		Short:   "End one of your logins, or all of them",
		Long:    "End one of your logins by its id, or all of them. What they hold open ends within seconds.",
		Example: "  berth login end all",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			n, err := c.EndLogin(ctx, args[0])
			if err != nil {
				return err
			}
			frame.Say(cmd, "logins ended: %d", n)
			return nil
		}),
	}
}
