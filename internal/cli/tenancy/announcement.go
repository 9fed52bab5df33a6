package tenancy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

// sortedNames are the keys of a map.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (a *verbs) newAnnouncement() *cobra.Command {
	return frame.Group("announcement", "A text that all clients show",
		"Show the cluster's announcement, set it, and take it away. Everybody reads it, superadmins write it.",
		a.newAnnouncementInfo(), a.newAnnouncementSet(), a.newAnnouncementRemove())
}

func (a *verbs) newAnnouncementInfo() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "info", Short: "Show the announcement",
		Long: "Show the announcement, nothing when there is none.", Example: "  berth announcement info",
		Args: frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			is, err := admin.GetAnnouncement(ctx, c)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), is)
			}
			if is.Enabled {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), is.Message)
			}
			return err
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newAnnouncementSet() *cobra.Command {
	return &cobra.Command{
		Use: "set TEXT", Short: "Announce a text",
		Long: "Announce a text in the place of the one before.", Example: "  berth announcement set 'Maintenance on Friday from 18:00 on'",
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if args[0] == "" {
				return frame.Usage(errors.New("the text is empty; \"berth announcement rm\" takes an announcement away"))
			}
			if err := admin.SetAnnouncement(ctx, c, args[0]); err != nil {
				return err
			}
			frame.Say(cmd, "it is announced")
			return nil
		}),
	}
}

func (a *verbs) newAnnouncementRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm", Short: "Take the announcement away",
		Long: "Take the announcement away.", Example: "  berth announcement rm",
		Args: frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			if err := admin.SetAnnouncement(ctx, c, ""); err != nil {
				return err
			}
			frame.Say(cmd, "nothing is announced any more")
			return nil
		}),
	}
}
