package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type schedulerStatusOptions struct {
	app  *verbs
	json bool
}

func (a *verbs) newSchedulerStatus() *cobra.Command {
	o := &schedulerStatusOptions{app: a}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the queues of all resource groups",
		Long: `Show for every resource group how it is served, what waits and why, what runs, and how much of
its agents is used.`,
		Example: "  berth scheduler status",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *schedulerStatusOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	st, err := c.SchedulerStatus(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), st)
	}
	slots := frame.SlotsOf(ctx, c)
	t := frame.Table{Titles: []string{"GROUP", "ORDER", "PLACEMENT", "WAITING", "RUNNING", "AGENTS", "USED"}}
	for _, g := range st.Groups {
		name := g.Name
		if !g.Active {
			name += " (inactive)"
		}
		t.Rows = append(
			t.Rows, []string{name, g.Scheduler, g.Placement, waitingText(g), fmt.Sprint(g.Running), agentsText(g), usedText(slots, g)},
		)
	}
	if err := t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout())); err != nil {
		return err
	}
	who := "manager " + st.Manager + " answers from a copy; another one decides"
	if st.Leader {
		who = "manager " + st.Manager + " decides"
	}
	if age := frame.Age(st.LastPass, o.app.Now()); age != "" {
		who += "; it last looked " + age + " ago"
	}
	frame.Say(cmd, "%s", who)
	if st.Drift > 0 {
		frame.Say(cmd, "full comparisons corrected %s of the scheduler's memory; please report this", frame.Count(st.Drift, "difference"))
	}
	for _, g := range st.Groups {
		if g.Warning != "" {
			frame.Say(cmd, "resource group %s: %s\n  next: berth scheduler policy %s", g.Name, g.Warning, g.Name)
		}
	}
	return nil
}

// waitingText is the depth of a queue by reason, the most frequent first: "3 (2 capacity, 1 quota)".
func waitingText(g api.GroupStatus) string {
	if g.Pending == 0 || len(g.Reasons) == 0 {
		return fmt.Sprint(g.Pending)
	}
	reasons := slices.Sorted(maps.Keys(g.Reasons))
	slices.SortStableFunc(reasons, func(a, b string) int { return g.Reasons[b] - g.Reasons[a] })
	var parts []string
	for _, r := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", g.Reasons[r], r))
	}
	return fmt.Sprintf("%d (%s)", g.Pending, strings.Join(parts, ", "))
}

func agentsText(g api.GroupStatus) string {
	text := fmt.Sprint(g.AgentsAlive)
	if g.AgentsCordoned > 0 {
		text += fmt.Sprintf(", %d cordoned", g.AgentsCordoned)
	}
	if g.AgentsLost > 0 {
		text += fmt.Sprintf(", %d lost", g.AgentsLost)
	}
	return text
}

// usedText compares what is taken with what there is: "cpu 2 of 8, mem 1 GiB of 16 GiB".
func usedText(slots frame.Slots, g api.GroupStatus) string {
	var parts []string
	for _, slot := range slices.Sorted(maps.Keys(g.Capacity)) {
		used := g.Occupied[slot]
		if used == "" {
			used = "0"
		}
		parts = append(parts, slot+" "+slots.Amount(slot, used)+" of "+slots.Amount(slot, g.Capacity[slot]))
	}
	return strings.Join(parts, ", ")
}
