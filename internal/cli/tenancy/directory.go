package tenancy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newDirectory() *cobra.Command {
	return frame.Group("directory", "Compare the directory of users with the accounts here",
		"Compare the LDAP directory with the accounts here, and say how many accounts directories and identity providers may deactivate.",
		a.newDirectoryStatus(), a.newDirectorySync(), a.newAllowRemovals())
}

func (a *verbs) newDirectoryStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show the directory and its newest syncs",
		Long: "Show the directory and its newest syncs. A sync that is stopped would have taken access from too many users: it waits " +
			"for\n" +
			"your word (berth directory sync --allow-removals).",
		Example: "  berth directory status",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			d, err := admin.GetDirectory(ctx, c)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), d)
			}
			every := "every " + d.SyncEvery
			if d.SyncEvery == "0s" {
				every = "when administrators ask"
			}
			frame.Say(cmd, "directory %s, domain %s, compared %s; a sync may take access from %d users and %d %% of them", d.Name,
				d.Domain, every,
				d.MostRemoved, d.MostRemovedPercent)
			t := frame.Table{Titles: []string{"ID", "ASKED", "BY", "STATUS", "PEOPLE", "NEW", "CHANGED", "DEACTIVATED", "REFUSED"}}
			for i := range d.Syncs {
				s := &d.Syncs[i]
				by, status := s.AskedBy, s.Status
				if by == "" {
					by = "schedule"
				}
				if s.DryRun {
					status += " (dry run)"
				}
				t.Rows = append(t.Rows, []string{s.ID, s.AskedAt.Local().Format(time.DateTime), by, status, strconv.Itoa(s.People),
					strconv.Itoa(s.Created), strconv.Itoa(s.Changed), strconv.Itoa(s.Removed), strconv.Itoa(s.Refused)})
			}
			if err := t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout())); err != nil {
				return err
			}
			if len(d.Syncs) > 0 && d.Syncs[0].Message != "" {
				frame.Say(cmd, "the newest one: %s", d.Syncs[0].Message)
			}
			return nil
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newDirectorySync() *cobra.Command {
	var dry, asJSON bool
	allow := 0
	cmd := &cobra.Command{
		Use: "sync", Short: "Compare the directory with the accounts here now",
		Long: "Compare the directory with the accounts here now, and print who changes: + is new, ~ changes, - is deactivated, ! is " +
			"refused.\n" +
			"--dry-run changes nothing. A sync that would take access from too many users stops; --allow-removals N is your word " +
			"that N are meant.",
		Example: "  berth directory sync --dry-run\n  berth directory sync --allow-removals 40",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			s, err := admin.SyncDirectory(ctx, c, dry, allow)
			for err == nil && !s.Ended() {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(a.Look):
				}
				s, err = admin.GetDirectorySync(ctx, c, s.ID)
			}
			if err != nil {
				return err
			}
			if asJSON {
				if err := frame.PrintJSON(cmd.OutOrStdout(), s); err != nil {
					return err
				}
			} else {
				for _, line := range s.Diff {
					if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
						return err
					}
				}
				frame.Say(cmd, "%s: of %d people %d are new, %d change, %d are deactivated, %d are refused", s.Status, s.People,
					s.Created, s.Changed,
					s.Removed, s.Refused)
			}
			if s.Status != "done" {
				return errors.New(s.Message)
			}
			if s.Message != "" && !asJSON {
				frame.Say(cmd, "%s", s.Message)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would happen, and change nothing")
	cmd.Flags().IntVar(&allow, "allow-removals", 0, "let it take access from this many users")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newAllowRemovals() *cobra.Command {
	return &cobra.Command{
		Use: "allow-removals PROVIDER COUNT", Short: "Let an identity provider deactivate more users by SCIM",
		Long: "Let an identity provider take access from so many users by SCIM within the hour that begins now. Without your word it " +
			"is stopped at\n" +
			"its limit (manager.scim.PROVIDER.most_removals), so that a mistake there does not close everybody out. 0 takes the word back.",
		Example: "  berth directory allow-removals okta 200",
		Args:    frame.Args(cobra.ExactArgs(2)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return frame.Usage(fmt.Errorf("%q is no number of users", args[1]))
			}
			if err := admin.AllowRemovals(ctx, c, args[0], n); err != nil {
				return err
			}
			frame.Say(cmd, "%s may take access from %d users within an hour", args[0], n)
			return nil
		}),
	}
}
