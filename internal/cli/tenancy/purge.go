package tenancy

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

// newPurge is the verb "purge" of a kind: user, project or domain.
func (a *verbs) newPurge(kind string) *cobra.Command {
	var o admin.PurgeOptions
	var dry, pending, asJSON bool
	domain := ""
	long := "Forget a " + kind + " with all that they own: sessions, folders with their files, keypairs. It goes on in the background,\n" +
		"also when managers stop, and cannot be undone. " +
		"It is refused while sessions are live. --dry-run prints what would happen and changes nothing. --pending lists the purges\n" +
		"that go on, and what they wait for."
	cmd := &cobra.Command{
		Use: "purge [" + strings.ToUpper(kind) + "]", Short: "Forget a " + kind + " with all that they own", Long: long,
		Example: "  berth " + kind + " purge NAME --dry-run\n  berth " + kind + " purge NAME --end-sessions\n  berth " +
			kind + " purge --pending",
		Args: frame.Args(func(cmd *cobra.Command, args []string) error {
			if pending {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		}),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if pending {
				return a.pendingPurges(ctx, cmd, c, asJSON)
			}
			ref := args[0]
			if kind == "project" {
				p, err := admin.GetProject(ctx, c, ref, domain)
				if err != nil {
					return err
				}
				ref = p.ID
			}
			if !dry {
				if err := admin.Purge(ctx, c, kind, ref, o); err != nil {
					return err
				}
				frame.Say(cmd, "%s %s is being purged", kind, args[0])
				return nil
			}
			plan, err := admin.PreviewPurge(ctx, c, kind, ref, o)
			return a.printPlan(cmd, plan, err, asJSON)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&dry, "dry-run", false, "print what would happen, and change nothing")
	f.BoolVar(&pending, "pending", false, "list the purges of users, projects and domains that are not done")
	f.BoolVar(&o.EndSessions, "end-sessions", false, "end live sessions first")
	switch kind {
	case "user":
		f.BoolVar(&o.Shared, "shared-folders", false, "remove folders that others have a share of, too (without it they become yours)")
	case "domain":
		f.BoolVar(&o.Contents, "contents", false, "purge its users and projects first")
	case "project":
		domainFlag(cmd, &domain, domainHelp)
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// printPlan prints what would happen; what would be refused is an error.
func (a *verbs) printPlan(cmd *cobra.Command, plan admin.PurgePlan, err error, asJSON bool) error {
	if err != nil {
		return err
	}
	if asJSON {
		return frame.PrintJSON(cmd.OutOrStdout(), plan)
	}
	t := frame.Table{Titles: []string{"WHAT", "COUNT", "THEY", "SUCH AS"}}
	for _, i := range plan.Items {
		t.Rows = append(t.Rows, []string{i.What, strconv.Itoa(i.Count), i.Fate, strings.Join(i.Names, ", ")})
	}
	if err := t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout())); err != nil {
		return err
	}
	if plan.Refusal != "" {
		return errors.New("this would be refused: " + plan.Refusal)
	}
	return nil
}

// previewFlags add --dry-run and --json to a verb that makes somebody inactive.
func previewFlags(cmd *cobra.Command, dry, asJSON *bool) *cobra.Command {
	cmd.Flags().BoolVar(dry, "dry-run", false, "print what would become of sessions, folders, keys and shares, and change nothing")
	frame.JSONFlag(cmd, asJSON)
	return cmd
}

// previewed prints what becomes of what somebody has when they are made inactive, where only that was asked for.
func (a *verbs) previewed(
	ctx context.Context, cmd *cobra.Command, c *api.Client, kind, ref string, dry, asJSON bool,
) (done bool, err error) {
	switch {
	case !dry && asJSON:
		return true, frame.Usage(errors.New("--json says what would happen as JSON: use it with --dry-run"))
	case !dry:
		return false, nil
	}
	plan, err := admin.PreviewEnd(ctx, c, admin.Inactive, kind, ref, admin.PurgeOptions{})
	return true, a.printPlan(cmd, plan, err, asJSON)
}

// pendingPurges lists the purges that are not done, of every kind.
func (a *verbs) pendingPurges(ctx context.Context, cmd *cobra.Command, c *api.Client, asJSON bool) error {
	purges, err := admin.Purges(ctx, c)
	if err != nil {
		return err
	}
	if asJSON {
		return frame.PrintJSON(cmd.OutOrStdout(), purges)
	}
	t := frame.Table{Titles: []string{"KIND", "NAME", "DOMAIN", "STEPS", "NOW"}}
	for _, p := range purges {
		t.Rows = append(t.Rows, []string{p.Kind, p.Name, p.Domain, strconv.FormatInt(p.Done, 10), p.Message})
	}
	return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
}
