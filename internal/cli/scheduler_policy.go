package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// The names of the wire in scheduler_opts.
const (
	optPlacement        = "agent_selection_strategy"
	optPlacementOptions = "agent_selector_config"
	optOrderOptions     = "config"
	optPreemption       = "preemption"
	optPendingTimeout   = "pending_timeout"
)

type schedulerPolicyOptions struct {
	app              *verbs
	order            string
	placement        string
	options          []string
	orderOptions     []string
	placementOptions []string
	pendingTimeout   time.Duration
	preemption       string
	minRuntime       time.Duration
	victims          string
	victimOrder      string
	victimFate       string
	json             bool
}

func (a *verbs) newSchedulerPolicy() *cobra.Command {
	o := &schedulerPolicyOptions{app: a}
	cmd := &cobra.Command{
		Use:   "policy GROUP",
		Short: "Show or change how a resource group is served",
		Long: `Show how a resource group is served, or change it with flags. A change holds from the
next scheduling pass on; nothing restarts, and sessions that run or wait stay.

berth scheduler policies lists the orders and placements. The manager checks every name
and value and says which it knows. An empty value removes an option; options of an order
or placement that the new one does not know go with the old one.`,
		Example: `  berth scheduler policy default
  berth scheduler policy default --order fair-share --order-option half_life_days=3
  berth scheduler policy gpus --placement least-fragmentation --preemption on --victims project`,
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.order, "order", "", "which waiting session goes first; berth scheduler policies lists the orders")
	f.StringVar(&o.placement, "placement", "", "which agent a session gets; berth scheduler policies lists the placements")
	f.StringArrayVar(&o.orderOptions, "order-option", nil, "option of the order, NAME=VALUE (repeatable)")
	f.StringArrayVar(&o.placementOptions, "placement-option", nil, "option of the placement, NAME=VALUE (repeatable)")
	f.StringArrayVar(&o.options, "option", nil, "any member of scheduler_opts, such as backfill.enabled=false (repeatable)")
	f.DurationVar(&o.pendingTimeout, "pending-timeout", 0, "cancel sessions that have waited so long; 0 is never")
	f.StringVar(&o.preemption, "preemption", "", "on or off: may sessions of lower priority end for waiting ones")
	f.DurationVar(&o.minRuntime, "min-runtime", 0, "what every session may run before it can be ended")
	f.StringVar(&o.victims, "victims", "", "whose sessions may be ended: user, project, domain or resource-group")
	f.StringVar(&o.victimOrder, "victim-order", "", "which go first: oldest, newest, fewest-sessions or smallest-resources")
	f.StringVar(&o.victimFate, "victim-fate", "", "terminate or reschedule")
	frame.JSONFlag(cmd, &o.json)
	_ = cmd.RegisterFlagCompletionFunc("order", a.completePolicies(func(p api.SchedulingPolicies) []string { return p.Orders }))
	_ = cmd.RegisterFlagCompletionFunc("placement", a.completePolicies(func(p api.SchedulingPolicies) []string { return p.Placements }))
	return cmd
}

func (o *schedulerPolicyOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, group string) error {
	patch, err := o.patch(cmd)
	if err != nil {
		return err
	}
	var p api.SchedulerPolicy
	if o.order == "" && len(patch) == 0 {
		p, err = c.SchedulerPolicy(ctx, group)
	} else {
		p, err = c.SetSchedulerPolicy(ctx, group, o.order, patch)
	}
	if err != nil {
		if api.IsNotFound(err) {
			return frame.Hint(err, "berth scheduler status")
		}
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), p)
	}
	var opts map[string]any
	if err := json.Unmarshal(p.Options, &opts); err != nil {
		return fmt.Errorf("read the options of resource group %s: %w", group, err)
	}
	var f frame.Fields
	f.Add("resource group", p.ResourceGroup)
	if !p.Active {
		f.Add("state", "inactive: nothing starts")
	}
	f.Add("order", p.Scheduler)
	f.Add("placement", p.Placement)
	delete(opts, optPlacement)
	flat := map[string]string{}
	flatten("", opts, flat)
	for _, k := range slices.Sorted(maps.Keys(flat)) {
		f.Add(k, flat[k])
	}
	return f.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

// patch gathers the flags into a merge patch of scheduler_opts.
func (o *schedulerPolicyOptions) patch(cmd *cobra.Command) (map[string]any, error) {
	patch := map[string]any{}
	put := func(path string, v any) error {
		m := patch
		parts := strings.Split(path, ".")
		for _, p := range parts[:len(parts)-1] {
			inner, ok := m[p].(map[string]any)
			if !ok {
				inner = map[string]any{}
				m[p] = inner
			}
			m = inner
		}
		last := parts[len(parts)-1]
		if _, twice := m[last]; twice {
			return frame.Usage(frame.Hint(fmt.Errorf("the option %s is named twice", path), "%s --help", cmd.CommandPath()))
		}
		m[last] = v
		return nil
	}
	var failed []error
	texts := func(flag, under string, list []string) {
		for _, item := range list {
			k, v, ok := strings.Cut(item, "=")
			if !ok || strings.Trim(k, ".") != k || k == "" || strings.Contains(k, "..") {
				failed = append(
					failed,
					frame.Usage(
						frame.Hint(fmt.Errorf("--%s %q is not of the form NAME=VALUE", flag, item), "%s --help", cmd.CommandPath()),
					),
				)
				continue
			}
			failed = append(failed, put(under+k, optionValue(v)))
		}
	}
	texts("option", "", o.options)
	texts("order-option", optOrderOptions+".", o.orderOptions)
	texts("placement-option", optPlacementOptions+".", o.placementOptions)
	set := func(flag, path string, v any) {
		if cmd.Flags().Changed(flag) {
			failed = append(failed, put(path, v))
		}
	}
	set("placement", optPlacement, o.placement)
	set("pending-timeout", optPendingTimeout, o.pendingTimeout.Seconds())
	set("min-runtime", optPreemption+".preemption_min_runtime", o.minRuntime.Seconds())
	set("victims", optPreemption+".victim_scope", o.victims)
	set("victim-order", optPreemption+".order", o.victimOrder)
	set("victim-fate", optPreemption+".mode", o.victimFate)
	switch o.preemption {
	case "on", "off":
		set("preemption", optPreemption+".enabled", o.preemption == "on")
	default:
		if cmd.Flags().Changed("preemption") {
			failed = append(
				failed,
				frame.Usage(frame.Hint(fmt.Errorf("--preemption is on or off, not %q", o.preemption), "%s --help", cmd.CommandPath())),
			)
		}
	}
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	return patch, nil
}

// optionValue reads the text of an option: JSON where it is, else a word; the empty text removes the option.
func optionValue(text string) any {
	if text == "" {
		return nil
	}
	var v any
	if json.Unmarshal([]byte(text), &v) == nil {
		return v
	}
	return text
}

// flatten names the leaves of nested options: preemption.enabled = true.
func flatten(prefix string, v any, into map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			name := k
			if prefix != "" {
				name = prefix + "." + k
			}
			flatten(name, inner, into)
		}
	case string:
		into[prefix] = v
	default:
		b, err := json.Marshal(v)
		if err != nil {
			b = fmt.Append(nil, v)
		}
		into[prefix] = string(b)
	}
}
