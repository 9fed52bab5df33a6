package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionListOptions struct {
	app    *verbs
	all    bool
	status string
	limit  int
	quiet  bool
	json   bool
}

func (a *verbs) newSessionList() *cobra.Command {
	o := &sessionListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ps"},
		Short:   "List sessions",
		Long:    "List the sessions that you may see, the newest first. Ended ones only with --all or --status.",
		Example: "  berth session list --all --json",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "also sessions that have ended")
	f.StringVar(&o.status, "status", "", "only these statuses, separated by commas")
	f.IntVarP(&o.limit, "limit", "n", 0, "at most this many (default: all)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	frame.JSONFlag(cmd, &o.json)
	cmd.MarkFlagsMutuallyExclusive("all", "status")
	return cmd
}

func (o *sessionListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	f := api.SessionFilter{Limit: o.limit}
	switch {
	case o.all:
		f.Statuses = slices.Concat(api.LiveStatuses, api.EndedStatuses)
	case o.status != "":
		f.Statuses = strings.Split(strings.ToUpper(o.status), ",")
	}
	list, err := c.Sessions(ctx, f)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	if o.quiet {
		for _, s := range list {
			fmt.Fprintln(cmd.OutOrStdout(), s.ID)
		}
		return nil
	}
	if len(list) == 0 {
		frame.Say(cmd, "no sessions; berth run or berth session create makes one")
		return nil
	}
	slots := frame.SlotsOf(ctx, c)
	t := frame.Table{Titles: []string{"ID", "NAME", "TYPE", "STATUS", "IMAGE", "SLOTS", "AGE", "RESULT", "INFO"}}
	for _, s := range list {
		result := s.Result
		if result == api.ResultUndefined {
			result = ""
		}
		t.Rows = append(
			t.Rows,
			[]string{
				s.ID, s.Name, strings.ToLower(s.Type), s.Status, s.Image, slots.Text(s.Slots), frame.Age(s.CreatedAt, o.app.Now()), result,
				s.StatusInfo,
			},
		)
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
