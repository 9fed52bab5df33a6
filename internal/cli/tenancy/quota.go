package tenancy

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newQuota() *cobra.Command {
	return frame.Group("quota", "Share out what a domain has among projects and users",
		"Say what domains, projects, sub-projects and users in a project are guaranteed and may have at most. A level is named by its path:\n"+
			"domain, domain/project, domain/project/sub-project, and /user:EMAIL behind a project for one user in it. What is guaranteed and\n"+
			"not used is lent to others until its owner waits for it. Superadmins set what domains have, administrators of a domain what is\n"+
			"in it, administrators of a project what lies in the project.",
		a.newQuotaTree(), a.newQuotaInfo(), a.newQuotaSet(), a.newQuotaUnset())
}

// quotaRows lays levels out, a line for each slot.
func quotaRows(all []admin.Quota) [][]string {
	var rows [][]string
	for _, q := range all {
		group, weight := cmp.Or(q.ResourceGroup, "(all)"), ""
		if q.Weight != nil {
			weight = strconv.FormatFloat(*q.Weight, 'g', -1, 64)
		}
		if len(q.Slots) == 0 {
			rows = append(rows, []string{q.Path, group, "", "", "", "", "", "", weight})
		}
		for _, s := range q.Slots {
			limit := s.Limit
			if s.Effective != "" && s.EffectiveBy != q.Path {
				limit = strings.TrimSpace(fmt.Sprintf("%s (%s by %s)", s.Limit, s.Effective, s.EffectiveBy))
			}
			rows = append(rows, []string{q.Path, group, s.Slot, s.Guaranteed, limit, s.Used, s.Waiting, s.Borrowed, weight})
		}
	}
	return rows
}

var quotaTitles = []string{"PATH", "RESOURCE GROUP", "SLOT", "GUARANTEED", "LIMIT", "IN USE", "WAITING", "BORROWED", "WEIGHT"}

func (a *verbs) showQuotas(cmd *cobra.Command, all []admin.Quota, asJSON bool) error {
	if asJSON {
		return frame.PrintJSON(cmd.OutOrStdout(), all)
	}
	for _, q := range all {
		for _, p := range q.Problems {
			frame.Say(cmd, "%s: %s", q.Path, p)
		}
	}
	t := frame.Table{Titles: quotaTitles, Rows: quotaRows(all)}
	return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
}

func (a *verbs) newQuotaTree() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "tree [PATH]", Short: "List the levels that you administer", Args: frame.Args(cobra.MaximumNArgs(1)),
		Long:    "List the levels that you administer with what is guaranteed, allowed, used and waited for: all, or one and those below it.",
		Example: "  berth quota tree\n  berth quota tree physics/lasers --json",
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			all, err := admin.QuotaTree(ctx, c, strings.Join(args, ""))
			if err != nil {
				return err
			}
			if len(all) == 0 && !asJSON {
				frame.Say(cmd, "no quota is set; berth quota set sets one")
				return nil
			}
			return a.showQuotas(cmd, all, asJSON)
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newQuotaInfo() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "info PATH", Short: "Show one level", Args: frame.Args(cobra.ExactArgs(1)),
		Long:    "Show one level, in all resource groups.",
		Example: "  berth quota info physics/lasers/user:ada@example.org",
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			all, err := admin.QuotaTree(ctx, c, args[0])
			if err != nil {
				return err
			}
			own := []admin.Quota{}
			for _, q := range all {
				if q.Path == args[0] {
					own = append(own, q)
				}
			}
			if len(own) == 0 && !asJSON {
				frame.Say(cmd, "%s has no quota; berth quota set sets one", args[0])
				return nil
			}
			return a.showQuotas(cmd, own, asJSON)
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// amounts reads SLOT=AMOUNT; an empty amount takes a slot's away.
func amounts(flag string, list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range list {
		slot, amount, ok := strings.Cut(text, "=")
		if _, twice := out[slot]; !ok || slot == "" || twice {
			return nil, frame.Usage(fmt.Errorf("%s: %q is not SLOT=AMOUNT of a slot that is named once", flag, text))
		}
		out[slot] = amount
	}
	return out, nil
}

// groupFlag adds --resource-group to a command.
func groupFlag(f *pflag.FlagSet, group *string) {
	f.StringVar(group, "resource-group", "", "what holds in this resource group alone; by default all together")
}

func (a *verbs) newQuotaSet() *cobra.Command {
	var group string
	var guaranteed, limit []string
	var weight float64
	var dryRun, asJSON bool
	cmd := &cobra.Command{
		Use: "set PATH", Short: "Say what a level is guaranteed and may have", Args: frame.Args(cobra.ExactArgs(1)),
		Long: "Say what a level is guaranteed and may have at most. Slots that are not named stay as they are; an empty amount such as cpu=\n" +
			"takes one away. It ends no session: where more is used, new ones wait. What is guaranteed to levels beside each other is at most\n" +
			"what the level above is guaranteed and may have.",
		Example: "  berth quota set physics --limit cuda.device=8\n  berth quota set physics/lasers --guaranteed cuda.device=4 --weight 2\n" +
			"  berth quota set physics/lasers/user:ada@example.org --limit cuda.device=2 --dry-run",
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change := admin.QuotaChange{Path: args[0], ResourceGroup: group, DryRun: dryRun}
			var err error
			if change.Guaranteed, err = amounts("--guaranteed", guaranteed); err != nil {
				return err
			}
			if change.Limit, err = amounts("--limit", limit); err != nil {
				return err
			}
			if cmd.Flags().Changed("weight") {
				change.Weight = &weight
			}
			now, err := admin.SetQuota(ctx, c, change)
			if err != nil {
				return err
			}
			if dryRun {
				frame.Say(cmd, "nothing was changed; it would be")
			}
			return a.showQuotas(cmd, []admin.Quota{now}, asJSON)
		}),
	}
	f := cmd.Flags()
	f.StringArrayVar(&guaranteed, "guaranteed", nil, "an amount such as cuda.device=4 that it always gets back; may be repeated")
	f.StringArrayVar(&limit, "limit", nil, "an amount such as cuda.device=8 that it never exceeds; may be repeated")
	f.Float64Var(&weight, "weight", 0, "its part of the fair share among what lies beside it; 1 is usual, 0 takes it away")
	f.BoolVar(&dryRun, "dry-run", false, "check and show, change nothing")
	groupFlag(f, &group)
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newQuotaUnset() *cobra.Command {
	group := ""
	cmd := &cobra.Command{
		Use: "unset PATH", Short: "Take the quota of a level away", Args: frame.Args(cobra.ExactArgs(1)),
		Long:    "Take away what a level was given. The levels below it keep theirs.",
		Example: "  berth quota unset physics/lasers --resource-group h200",
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := admin.UnsetQuota(ctx, c, args[0], group); err != nil {
				return err
			}
			frame.Say(cmd, "%s has no quota of its own any more", args[0])
			return nil
		}),
	}
	groupFlag(cmd.Flags(), &group)
	return cmd
}

func (a *verbs) newProjectMove() *cobra.Command {
	return &cobra.Command{
		Use: "move PROJECT [PARENT]", Short: "Put a project under another one", Args: frame.Args(cobra.RangeArgs(1, 2)),
		Long: "Put a project under another one of its domain; without PARENT it lies directly in the domain again. Members, totals and\n" +
			"folders stay its own. Whoever administers a project administers what lies in it.",
		Example: "  berth project move lasers physics\n  berth project move lasers",
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			place := admin.ProjectPlace{Project: args[0]}
			where := "its domain"
			if len(args) > 1 {
				place.Parent, where = args[1], "project "+args[1]
			}
			if err := admin.PlaceProject(ctx, c, place); err != nil {
				return err
			}
			frame.Say(cmd, "project %s lies in %s", args[0], where)
			return nil
		}),
	}
}
