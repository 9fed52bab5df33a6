package tenancy

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newUsage() *cobra.Command {
	return frame.Group("usage", "See what was used, and what it would cost",
		"See what was used, and what it would cost. Superadmins and monitors see everything, administrators of a domain what was used in it,\n"+
			"others what they used themselves.", a.newUsageReport(), a.newUsageExport(), a.newUsagePrice())
}

type usageOptions struct {
	app                     *verbs
	month, since, until, by string
	json                    bool
}

func (o *usageOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.month, "month", "", "a month of UTC, such as 2026-01; the present one by default")
	f.StringVar(&o.since, "since", "", "from this time on, instead of a month (RFC 3339, or a date)")
	f.StringVar(&o.until, "until", "", "until this time; now by default")
	f.StringVar(&o.by, "by", "project", "add up by project, user, domain or resource-group")
}

// instant reads a time or a date; a date is the begin of the day here.
func instant(flag, text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.ParseInLocation(time.DateOnly, text, time.Local)
	}
	if err != nil {
		return at, frame.Usage(fmt.Errorf("%s: %q is neither a date nor a time such as 2026-01-31T08:00:00Z", flag, text))
	}
	return at.UTC(), nil
}

// query is what the flags ask for.
func (o *usageOptions) query(now time.Time) (admin.UsageQuery, error) {
	q := admin.UsageQuery{By: o.by}
	switch {
	case o.month != "" && o.since+o.until != "":
		return q, frame.Usage(fmt.Errorf("--month goes with neither --since nor --until"))
	case o.until != "" && o.since == "":
		return q, frame.Usage(fmt.Errorf("--until needs --since"))
	case o.since != "":
		since, err := instant("--since", o.since)
		if err != nil {
			return q, err
		}
		until := now.UTC()
		if o.until != "" {
			if until, err = instant("--until", o.until); err != nil {
				return q, err
			}
		}
		q.Since, q.Until = since.Format(time.RFC3339), until.Format(time.RFC3339)
		return q, nil
	}
	at, err := time.Parse("2006-01", cmp.Or(o.month, now.UTC().Format("2006-01")))
	if err != nil {
		return q, frame.Usage(fmt.Errorf("--month: %q is no month such as 2026-01", o.month))
	}
	q.Month = at.Format("200601")
	return q, nil
}

// table lays a report out: a line for each row, a column for the hours of each slot.
func table(r admin.UsageReport) (titles []string, rows [][]string) {
	var slots []string
	for _, row := range r.Rows {
		for _, s := range row.Slots {
			if !slices.Contains(slots, s.Slot) {
				slots = append(slots, s.Slot)
			}
		}
	}
	slices.Sort(slots)
	titles = []string{strings.ToUpper(r.By), "DOMAIN"}
	for _, s := range slots {
		unit := " HOURS"
		if s == "mem" {
			unit = " GIB-HOURS"
		}
		titles = append(titles, strings.ToUpper(s)+unit)
	}
	titles = append(titles, "COST")
	for _, row := range r.Rows {
		line := []string{row.Name, row.Domain}
		for _, slot := range slots {
			hours := ""
			for _, s := range row.Slots {
				if s.Slot == slot {
					hours = s.Hours
				}
			}
			line = append(line, hours)
		}
		rows = append(rows, append(line, text(row.Cost)))
	}
	return titles, rows
}

func text(v *string) string {
	if v == nil {
		return ""
	}
	return *v
}

func (a *verbs) newUsageReport() *cobra.Command {
	o := &usageOptions{app: a}
	cmd := &cobra.Command{
		Use: "report", Short: "Add up what was used in a month or a period",
		Long: "Add up what was used in a month or a period. What began before or ends after it counts with the part that lies within;\n" +
			"what is held counts until now. COST is empty where nothing has a price.",
		Example: "  berth usage report --month 2026-01\n  berth usage report --since 2026-01-15 --by user",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			r, err := o.read(ctx, c)
			if err != nil {
				return err
			}
			if o.json {
				return frame.PrintJSON(cmd.OutOrStdout(), r)
			}
			if len(r.Rows) == 0 {
				frame.Say(cmd, "nothing was used in that time, or nothing that you may see")
				return nil
			}
			titles, rows := table(r)
			t := frame.Table{Titles: titles, Rows: rows}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	o.flags(cmd)
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *usageOptions) read(ctx context.Context, c *api.Client) (admin.UsageReport, error) {
	q, err := o.query(time.Now())
	if err != nil {
		return admin.UsageReport{}, err
	}
	return admin.Usage(ctx, c, q)
}

func (a *verbs) newUsageExport() *cobra.Command {
	o := &usageOptions{app: a}
	cmd := &cobra.Command{
		Use: "export", Short: "Write a report as CSV",
		Long: "Write a report as CSV: a line for each slot of each project, user, domain or resource group. AMOUNT is exact, in thousandths\n" +
			"of the slot's unit times microseconds. A cell that a spreadsheet would take for a formula begins with an apostrophe.",
		Example: "  berth usage export --month 2026-01 --by user > usage.csv",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			r, err := o.read(ctx, c)
			if err != nil {
				return err
			}
			out := csv.NewWriter(cmd.OutOrStdout())
			lines := [][]string{{"since", "until", "by", "key", "name", "domain", "slot", "amount", "hours", "cost"}}
			for _, row := range r.Rows {
				for _, s := range row.Slots {
					lines = append(lines, []string{r.Since, r.Until, r.By, row.Key, row.Name, row.Domain, s.Slot, s.Amount, s.Hours, text(s.Cost)})
				}
			}
			for _, line := range lines {
				for i, cell := range line {
					line[i] = harmless(cell)
				}
			}
			if err := out.WriteAll(lines); err != nil {
				return fmt.Errorf("write the report: %w", err)
			}
			return nil
		}),
	}
	o.flags(cmd)
	return cmd
}

// harmless is a cell that no spreadsheet takes for a formula.
func harmless(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}

func (a *verbs) newUsagePrice() *cobra.Command {
	return frame.Group("price", "Set what things cost",
		"Set what an hour of a core, a device or a GiB of memory costs, for reports alone: nothing is charged.",
		a.newUsagePriceList(), a.newUsagePriceSet(), a.newUsagePriceRemove())
}

func (a *verbs) newUsagePriceList() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "list", Short: "List all prices", Args: frame.Args(cobra.NoArgs),
		Long: "List all prices, those that were replaced and those that do not hold yet too.", Example: "  berth usage price list",
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			prices, err := admin.Prices(ctx, c)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), prices)
			}
			if len(prices) == 0 {
				frame.Say(cmd, "nothing has a price; berth usage price set sets one")
				return nil
			}
			t := frame.Table{Titles: []string{"SLOT", "RESOURCE GROUP", "PER HOUR", "FROM", "ID"}}
			for _, p := range prices {
				t.Rows = append(t.Rows, []string{p.Slot, cmp.Or(p.ResourceGroup, "(others)"), p.PerHour, p.ValidFrom, p.ID})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newUsagePriceSet() *cobra.Command {
	var group, from string
	cmd := &cobra.Command{
		Use: "set SLOT PRICE", Short: "Set what an hour of a slot costs from a time on",
		Long: "Set what an hour of one unit of a slot costs: of a core, a device, a GiB of memory. The price holds until the next one of\n" +
			"the same slot and group begins. Reports of the past change when it begins in the past.",
		Example: "  berth usage price set cpu 0.05\n  berth usage price set cuda.device 1.20 --resource-group h200 --from 2026-01-01",
		Args:    frame.Args(cobra.ExactArgs(2)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			at := time.Now().UTC()
			if from != "" {
				var err error
				if at, err = instant("--from", from); err != nil {
					return err
				}
			}
			p, err := admin.SetPrice(ctx, c, admin.UsagePrice{Slot: args[0], PerHour: args[1], ResourceGroup: group,
				ValidFrom: at.Format(time.RFC3339)})
			if err != nil {
				return err
			}
			frame.Say(cmd, "an hour of %s costs %s from %s on (%s)", p.Slot, p.PerHour, p.ValidFrom, p.ID)
			return nil
		}),
	}
	cmd.Flags().StringVar(&group, "resource-group", "", "the group that it is for; by default those without a price of their own")
	cmd.Flags().StringVar(&from, "from", "", "when it begins (RFC 3339, or a date); now by default")
	return cmd
}

func (a *verbs) newUsagePriceRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID", Short: "Forget a price, as if it had never been", Args: frame.Args(cobra.ExactArgs(1)),
		Long:    "Forget a price, as if it had never been: reports of the past change. Superadmins only.",
		Example: "  berth usage price rm 0198c5a2-7d1e-7cc3-9d3f-5b8f3f6c2a11",
		RunE: a.Run(func(ctx context.Context, _ *cobra.Command, c *api.Client, args []string) error {
			return admin.RemovePrice(ctx, c, args[0])
		}),
	}
}
