package tenancy

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newLimits() *cobra.Command {
	var asJSON bool
	var user, project, group string
	cmd := &cobra.Command{
		Use: "limits", Short: "What may be started now, and which limit binds",
		Long: "Show for each slot and count what is left for a user (you) in a project, and the level that leaves least: keypair, user,\n" +
			"project, domain or resource group, with its policy.",
		Example: "  berth limits --resource-group gpus\n  berth limits --user ada@example.org --project physics",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			if project == "" {
				project = c.Config().Group
			}
			l, err := admin.GetLimits(ctx, c, user, project, group)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), l)
			}
			t := frame.Table{Titles: []string{"WHAT", "LEFT", "USED", "LIMIT", "BOUND BY"}}
			for _, one := range l.Limits {
				t.Rows = append(t.Rows, limitRow(one))
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "email address of somebody whom you may see (default: yourself)")
	cmd.Flags().StringVar(&project, "project", "", "a project (default: that of your configuration)")
	cmd.Flags().StringVar(&group, "resource-group", "", "one resource group; without it all that may be used")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// limitRow is one thing with the level that binds.
func limitRow(l admin.Limit) []string {
	what := l.What
	switch l.Kind {
	case "waiting":
		if !strings.HasPrefix(what, "waiting") {
			what += " of waiting sessions"
		}
	case "session":
		what += " of a session"
	}
	for _, v := range l.Levels {
		if !v.Binds {
			continue
		}
		by := strings.TrimSpace(v.Level + " " + v.Name)
		if v.Policy != "" {
			by += ", policy " + v.Policy
		}
		used := v.Used
		if l.Kind == "session" {
			used = "-"
		}
		return []string{what, v.Left, used, v.Limit, by}
	}
	return []string{what, "no limit", "-", "-", ""}
}

func (a *verbs) newWhy() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "why USER ACTION OBJECT", Short: "Why somebody may do something, or not",
		Long: "Explain by which rule somebody may do something with an object, or may not. OBJECT is a kind and a name, such as user:EMAIL,\n" +
			"project:NAME, session:NAME, folder:ID or resource-group:NAME; ACTION is a word of docs/authorisation.md. USER \"-\" is yourself.",
		Example: "  berth why ada@example.org change project:physics\n  berth why - use resource-group:gpus",
		Args:    frame.Args(cobra.ExactArgs(3)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if args[0] == "-" {
				args[0] = ""
			}
			w, err := admin.GetWhy(ctx, c, args[0], args[1], args[2])
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), w)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), whyWords(w))
			return err
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func whyWords(w admin.Why) string {
	head := fmt.Sprintf("%s may %s %s", w.User, w.Action, w.Object)
	if !w.Allowed {
		head = fmt.Sprintf("%s may not %s %s", w.User, w.Action, w.Object)
	}
	switch {
	case w.Inactive:
		return head + ": the user, their domain or their keypair is not active"
	case w.ReadsOnly:
		return head + ": monitors change nothing"
	case w.Allowed:
		return head + ", being " + strings.Join(w.Because, "; ")
	}
	return head + ": this needs " + strings.Join(w.Needs, ", or ")
}
