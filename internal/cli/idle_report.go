package cli

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type idleReportOptions struct {
	app  *verbs
	json bool
}

func (a *verbs) newIdleReport() *cobra.Command {
	o := &idleReportOptions{app: a}
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Show which sessions will end as idle",
		Long: "Show how running sessions stand with idle checks, those that end first. You see your own sessions, " +
			"administrators those they administrate.",
		Example: "  berth idle report",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *idleReportOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, total, err := c.IdleReport(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	if len(list) == 0 {
		frame.Say(cmd, "no sessions run")
		return nil
	}
	t := frame.Table{Titles: []string{"SESSION", "USER", "CHECK", "STATE", "ENDS IN", "WHY"}}
	for _, r := range list {
		for _, typ := range slices.Sorted(maps.Keys(r.Checks)) {
			k := r.Checks[typ]
			name, left := k.Checker, ""
			if k.DryRun {
				name += " (dry run)"
			}
			if k.Remaining != nil && k.Kind == "expire_after" {
				if left = "now"; *k.Remaining > 0 {
					left = seconds(float64(*k.Remaining))
				}
			}
			t.Rows = append(t.Rows, []string{r.SessionName, r.UserEmail, name, k.Phase, left, k.Why})
		}
	}
	if err := t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout())); err != nil {
		return err
	}
	if total > len(list) {
		frame.Say(cmd, "%d sessions run; these end first", total)
	}
	return nil
}

// idleLine is when and why a session ends as idle, "" when nothing says so.
func idleLine(text api.JSONText) string {
	var checks map[string]api.IdleCheck
	if json.Unmarshal([]byte(text), &checks) != nil {
		return ""
	}
	line, first := "", int64(-2)
	for _, typ := range slices.Sorted(maps.Keys(checks)) {
		k := checks[typ]
		if k.DryRun || k.Remaining == nil || k.Kind != "expire_after" || first != -2 && *k.Remaining >= first {
			continue
		}
		first = *k.Remaining
		left := "ends now"
		if first > 0 {
			left = "ends in " + seconds(float64(first))
		}
		line = left + " by " + k.Checker + ": " + k.Why
	}
	return line
}
