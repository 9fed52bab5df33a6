package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type idleSetOptions struct {
	description, operator              string
	lifetime, inactivity, window, warn time.Duration
	grace, newUserGrace                time.Duration
	thresholds, targets                []string
	domains, projects, groups          []string
	everywhere, dryRun, disabled       bool
}

func (a *verbs) newIdleSet() *cobra.Command {
	o := &idleSetOptions{}
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Make or replace an idle checker",
		Long: `Make a rule by which sessions count as idle, or replace the one of that name as a whole.
Administrators only. Name one of --max-lifetime, --max-inactivity and --below, and where
it applies. Sessions are warned before they end; what is not measured is not idle.`,
		Example: `  berth idle set week --max-lifetime 168h --everywhere
  berth idle set unused --max-inactivity 4h --project research --warn-before 30m
  berth idle set gpu --below cuda_util=5 --below cpu_util=10 --window 2h --resource-group gpus --dry-run`,
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.DurationVar(&o.lifetime, "max-lifetime", 0, "end sessions that run for so long")
	f.DurationVar(&o.inactivity, "max-inactivity", 0, "end interactive sessions that nobody used for so long")
	f.StringArrayVar(
		&o.thresholds, "below", nil,
		"end sessions whose mean use is below, RESOURCE=PERCENT of cpu_util, mem, cuda_util, cuda_mem (repeatable)",
	)
	f.DurationVar(&o.window, "window", time.Hour, "time over which --below takes the mean")
	f.StringVar(&o.operator, "operator", "and", "and: every resource is below; or: one is enough")
	f.DurationVar(&o.warn, "warn-before", 5*time.Minute, "tell sessions so long before they end; 0 does not")
	f.DurationVar(&o.grace, "grace", 0, "do not look at sessions in their first time")
	f.DurationVar(&o.newUserGrace, "new-user-grace", 0, "do not look at sessions of users in their first time")
	f.StringArrayVar(&o.targets, "type", nil, "type of sessions: interactive, batch or system (repeatable; interactive and batch)")
	f.StringArrayVar(&o.domains, "domain", nil, "apply to a domain (repeatable)")
	f.StringArrayVar(&o.projects, "project", nil, "apply to a project (repeatable)")
	f.StringArrayVar(&o.groups, "resource-group", nil, "apply to a resource group (repeatable)")
	f.BoolVar(&o.everywhere, "everywhere", false, "apply to the whole cluster")
	f.BoolVar(&o.dryRun, "dry-run", false, "only report; warn and end nobody")
	f.BoolVar(&o.disabled, "disabled", false, "keep the rule without looking")
	f.StringVar(&o.description, "description", "", "words for people")
	return cmd
}

func (o *idleSetOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, name string) error {
	k, err := o.checker(name)
	if err != nil {
		return frame.Usage(frame.Hint(err, "%s --help", cmd.CommandPath()))
	}
	if err := c.SetIdleChecker(ctx, k); err != nil {
		return err
	}
	switch {
	case len(k.Bindings) == 0:
		frame.Say(cmd, "idle checker %s is kept, but applies nowhere; name --everywhere, --domain, --project or --resource-group", name)
	case k.DryRun:
		frame.Say(cmd, "idle checker %s reports on %s; see berth idle report", name, idlePlaces(k.Bindings))
	default:
		frame.Say(cmd, "idle checker %s applies to %s", name, idlePlaces(k.Bindings))
	}
	return nil
}

func (o *idleSetOptions) checker(name string) (api.IdleChecker, error) {
	warn := o.warn.Seconds()
	k := api.IdleChecker{
		Name: name, Description: o.description, Targets: o.targets, InitialGrace: o.grace.Seconds(), NewUserGrace: o.newUserGrace.Seconds(),
		WarnBefore: &warn, DryRun: o.dryRun, Enabled: !o.disabled, Bindings: []api.IdleBinding{},
	}
	rules := 0
	if o.lifetime > 0 {
		rules++
		k.Type, k.Spec = "session_lifetime", api.IdleSpec{MaxLifetime: int64(o.lifetime.Seconds())}
	}
	if o.inactivity > 0 {
		rules++
		k.Type, k.Spec = "network_timeout", api.IdleSpec{MaxNetworkInactivity: int64(o.inactivity.Seconds())}
	}
	if len(o.thresholds) > 0 {
		rules++
		below, err := pairs("--below", o.thresholds, nil)
		if err != nil {
			return k, err
		}
		k.Type, k.Spec = "utilization", api.IdleSpec{
			Window: int64(o.window.Seconds()), Operator: o.operator, Thresholds: map[string]float64{},
		}
		for resource, text := range below {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return k, fmt.Errorf("--below %s=%s is not a percentage", resource, text)
			}
			k.Spec.Thresholds[resource] = v
		}
	}
	if rules != 1 {
		return k, errors.New("name one of --max-lifetime, --max-inactivity and --below")
	}
	for _, d := range o.domains {
		k.Bindings = append(k.Bindings, api.IdleBinding{Domain: d})
	}
	for _, p := range o.projects {
		k.Bindings = append(k.Bindings, api.IdleBinding{Project: p})
	}
	for _, g := range o.groups {
		k.Bindings = append(k.Bindings, api.IdleBinding{ResourceGroup: g})
	}
	if o.everywhere {
		k.Bindings = append(k.Bindings, api.IdleBinding{})
	}
	return k, nil
}
