package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newAudit() *cobra.Command {
	return frame.Group("audit", "See what was done to the cluster and what was denied",
		"See what was done to the cluster and what was denied: who, on whose behalf, what, from where, and the rows before and after.\n"+
			"Administrators of a domain see what its users did, superadmins and monitors everything.", a.newAuditList(), a.newAuditExport())
}

type auditOptions struct {
	app                  *verbs
	user, action, filter string
	since, until         string
	denied, json         bool
	limit                int
	after                int64
}

func (o *auditOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.user, "user", "", "what this user did, by email")
	f.StringVar(&o.action, "action", "", "an action such as user.modify, or a kind of object such as user")
	f.StringVar(&o.since, "since", "", "not before this time (RFC 3339, or a date)")
	f.StringVar(&o.until, "until", "", "before this time (RFC 3339, or a date)")
	f.BoolVar(&o.denied, "denied", false, "only what was denied")
	f.StringVar(&o.filter, "filter", "", `another condition, such as 'address == "10.0.0.7"'`)
}

// conditions are the flags in the language of lists.
func (o *auditOptions) conditions() (string, error) {
	var all []string
	add := func(name, op, value string) {
		all = append(all, "("+name+" "+op+" "+strconv.Quote(value)+")")
	}
	if o.user != "" {
		add("email", "==", o.user)
	}
	if o.action != "" {
		if strings.Contains(o.action, ".") {
			add("action", "==", o.action)
		} else {
			add("action", "ilike", o.action+".%")
		}
	}
	for _, bound := range []struct{ flag, op, text string }{{"--since", ">=", o.since}, {"--until", "<", o.until}} {
		if bound.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, bound.text)
		if err != nil {
			at, err = time.ParseInLocation(time.DateOnly, bound.text, time.Local)
		}
		if err != nil {
			return "", frame.Usage(fmt.Errorf("%s: %q is neither a date nor a time such as 2026-01-31T08:00:00Z", bound.flag, bound.text))
		}
		add("at", bound.op, at.UTC().Format(time.RFC3339))
	}
	if o.denied {
		add("result", "==", "denied")
	}
	if o.filter != "" {
		all = append(all, "("+o.filter+")")
	}
	return strings.Join(all, " & "), nil
}

func (a *verbs) newAuditList() *cobra.Command {
	o := &auditOptions{app: a}
	cmd := &cobra.Command{
		Use: "list", Short: "List what was done, the newest first",
		Long:    "List what was done and what was denied, the newest first. ROWS is how many rows changed; --json shows them.",
		Example: "  berth audit list --user ada@example.org --since 2026-01-31\n  berth audit list --action folder --denied",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.list(ctx, cmd, c)
		}),
	}
	o.flags(cmd)
	cmd.Flags().IntVar(&o.limit, "limit", 20, "how many (100 at most)")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *auditOptions) list(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	filter, err := o.conditions()
	if err != nil {
		return err
	}
	page, err := admin.AuditLog(ctx, c, admin.AuditQuery{Filter: filter, Limit: o.limit})
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), page.Items)
	}
	if len(page.Items) == 0 {
		frame.Say(cmd, "nothing of that kind is recorded, or none that you may see")
		return nil
	}
	t := frame.Table{Titles: []string{"ID", "TIME", "WHO", "ACTION", "OBJECT", "RESULT", "ROWS", "FROM"}}
	for _, e := range page.Items {
		who := e.Email
		if e.ActingFor != "" {
			who += " for " + e.ActingFor
		}
		if e.Email == "" && e.Means != "" {
			who = "somebody by " + e.Means
		}
		result := e.Result
		if e.Attempts > 1 {
			result = fmt.Sprintf("%s %d times", result, e.Attempts)
		}
		at := e.At
		if parsed, err := time.Parse(time.RFC3339, e.At); err == nil {
			at = parsed.Local().Format(time.DateTime)
		}
		t.Rows = append(t.Rows, []string{strconv.FormatInt(e.ID, 10), at, who, e.Action, e.Object, result, strconv.Itoa(e.ChangeCount),
			e.Address})
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

// exportPage is how many entries one request of an export asks for.
const exportPage = 100

func (a *verbs) newAuditExport() *cobra.Command {
	o := &auditOptions{app: a}
	cmd := &cobra.Command{
		Use: "export", Short: "Write entries as JSON lines, the oldest first",
		Long: "Write entries as JSON lines, the oldest first. The next export goes on with --after and the id of the last line; ids grow,\n" +
			"but a long transaction may be recorded under an id that is smaller than those before it.",
		Example: "  berth audit export --since 2026-01-01 > audit.jsonl\n  berth audit export --after 4711 >> audit.jsonl",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.export(ctx, cmd, c)
		}),
	}
	o.flags(cmd)
	cmd.Flags().Int64Var(&o.after, "after", 0, "only entries with a larger id")
	return cmd
}

func (o *auditOptions) export(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	filter, err := o.conditions()
	if err != nil {
		return err
	}
	out := json.NewEncoder(cmd.OutOrStdout())
	for after := o.after; ; {
		page, err := admin.AuditLog(ctx, c, admin.AuditQuery{Filter: filter, Limit: exportPage, After: &after})
		if err != nil {
			return err
		}
		for _, e := range page.Items {
			if err := out.Encode(e); err != nil {
				return fmt.Errorf("write entry %d: %w", e.ID, err)
			}
			after = e.ID
		}
		if len(page.Items) < exportPage {
			return nil
		}
	}
}
