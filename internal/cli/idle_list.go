package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type idleListOptions struct {
	app  *verbs
	json bool
}

func (a *verbs) newIdleList() *cobra.Command {
	o := &idleListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List idle checkers",
		Long:    "List the rules by which sessions count as idle. Administrators only.",
		Example: "  berth idle list",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *idleListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.IdleCheckers(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	if len(list) == 0 {
		frame.Say(cmd, "there are no idle checkers; the limits of keypair policies hold all the same")
		return nil
	}
	t := frame.Table{Titles: []string{"NAME", "TYPE", "RULE", "OF", "WARNS", "WHERE", "STATE"}}
	for _, k := range list {
		state := "on"
		if k.DryRun {
			state = "dry run"
		}
		if !k.Enabled {
			state = "off"
		}
		t.Rows = append(
			t.Rows,
			[]string{
				k.Name, k.Type, idleRule(k.Spec), strings.Join(k.Targets, ", "), seconds(frame.Deref(k.WarnBefore)) + " before",
				idlePlaces(k.Bindings), state,
			},
		)
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

// idleRule prints a specification in a few words.
func idleRule(s api.IdleSpec) string {
	switch {
	case s.MaxLifetime > 0:
		return "runs for " + seconds(float64(s.MaxLifetime))
	case s.MaxNetworkInactivity > 0:
		return "unused for " + seconds(float64(s.MaxNetworkInactivity))
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.Thresholds)) {
		parts = append(parts, fmt.Sprintf("%s < %g %%", name, s.Thresholds[name]))
	}
	return strings.Join(parts, " "+s.Operator+" ") + " over " + seconds(float64(s.Window))
}

func idlePlaces(list []api.IdleBinding) string {
	if len(list) == 0 {
		return "nowhere"
	}
	var out []string
	for _, b := range list {
		switch {
		case b.Domain != "":
			out = append(out, "domain "+b.Domain)
		case b.Project != "":
			name := b.ProjectName
			if name == "" {
				name = b.Project
			}
			out = append(out, "project "+name)
		case b.ResourceGroup != "":
			out = append(out, "resource group "+b.ResourceGroup)
		default:
			out = append(out, "everywhere")
		}
	}
	return strings.Join(out, ", ")
}

// seconds prints a number of seconds as a duration without parts that are zero.
func seconds(n float64) string {
	text := (time.Duration(n) * time.Second).String()
	text = strings.TrimSuffix(text, "0s")
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	if text == "" || !strings.ContainsAny(text[len(text)-1:], "smh") {
		text += "0s"
	}
	return text
}
