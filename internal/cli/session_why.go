package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionWhyOptions struct {
	app  *verbs
	json bool
}

func (a *verbs) newSessionWhy() *cobra.Command {
	o := &sessionWhyOptions{app: a}
	cmd := &cobra.Command{
		Use:   "why SESSION",
		Short: "Say why a session waits",
		Long: `Say why a session waits: what holds it back, what is short, which agents refused it,
its place in the queue, when it starts at the latest, and what would let it start now.`,
		Example: "  berth session why mylab",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *sessionWhyOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, session string) error {
	var e api.Explanation
	err := orEnded(ctx, c, session, func(session string) (err error) {
		e, err = c.ExplainSession(ctx, session)
		return err
	})
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), e)
	}
	return o.app.printExplanation(cmd.OutOrStdout(), frame.SlotsOf(ctx, c), e)
}

// printExplanation tells an explanation to people: the sentence first, then what it rests on.
func (a *verbs) printExplanation(w io.Writer, slots frame.Slots, e api.Explanation) error {
	name := e.Name
	if name == "" {
		name = e.Session
	}
	msg := strings.TrimRight(e.Msg, ".")
	var head string
	switch {
	case e.DryRun && e.Session != "":
		head = msg
	case e.DryRun && e.Waits:
		head = fmt.Sprintf("%s would wait: %s", name, msg)
	case e.DryRun:
		head = name + " would start at once"
	case e.Waits:
		head = fmt.Sprintf("%s waits: %s", name, msg)
	case e.Status == api.StatusPending:
		head = name + " is about to start"
	default:
		head = fmt.Sprintf("%s does not wait: %s", name, msg)
	}
	if _, err := fmt.Fprintln(w, head+"."); err != nil {
		return err
	}
	f := a.explanationFields(slots, e)
	if len(f) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return f.Write(w, a.Colour(w))
}

// explanationFields are the numbers behind an explanation.
func (a *verbs) explanationFields(slots frame.Slots, e api.Explanation) frame.Fields {
	var f frame.Fields
	f.Add("reason", e.Reason)
	f.Add("short of", slots.Amounts(e.Shortfall))
	f.Add("agents", rejectedText(e.Rejected))
	if e.Position > 0 {
		place := strconv.Itoa(e.Position)
		if e.Queue >= e.Position { // a dry run may come behind all of them
			place += " of " + strconv.Itoa(e.Queue)
		}
		if e.ResourceGroup != "" {
			place += " in resource group " + e.ResourceGroup
		}
		f.Add("place", place)
	} else {
		f.Add("resource group", e.ResourceGroup)
	}
	if e.Estimate != nil {
		f.Add("starts by", a.moment(*e.Estimate))
	}
	for i, r := range e.Remedies {
		f.Add(map[bool]string{true: "what helps", false: " "}[i == 0], r)
	}
	for i, p := range e.Placements {
		f.Add(map[bool]string{true: "would run on", false: " "}[i == 0], p.Agent+": "+devicesText(slots, p.Devices))
	}
	f.Add("folders", foldersText(e.Mounts))
	return f
}

// foldersText prints what a session mounts: "data/sub:/home/work/data:ro".
func foldersText(mounts []api.SessionMount) string {
	var out []string
	for _, m := range mounts {
		name := m.Name
		if m.Subpath != "." {
			name += "/" + m.Subpath
		}
		out = append(out, name+":"+m.Target+":"+m.Permission)
	}
	return strings.Join(out, ", ")
}

// moment prints a time with its distance from now.
func (a *verbs) moment(iso string) string {
	t, ok := frame.ParseTime(iso)
	if !ok {
		return iso
	}
	d := t.Sub(a.Now()).Round(time.Second)
	if d <= 0 {
		return t.UTC().Format("2006-01-02 15:04:05 MST")
	}
	return fmt.Sprintf("%s (in %s)", t.UTC().Format("2006-01-02 15:04:05 MST"), d)
}

// rejections words what a filter of the scheduler says about the agents it refused.
var rejections = map[string]string{
	"architecture":    "of another architecture",
	"not-schedulable": "cordoned",
	"lost":            "lost",
	"designated":      "not among the chosen ones",
	"containers":      "with all the containers they may run",
	"devices":         "without devices that fit together",
	"models":          "without the wanted accelerators",
	"isolation":       "whose accelerators do not isolate sessions as demanded",
	"companions":      "ruled out by related sessions",
	"reserved":        "kept for an earlier session",
}

// rejectedText counts agents by what speaks against them: "2 short of cpu, 1 cordoned".
func rejectedText(counts map[string]int) string {
	var parts []string
	names := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(names, func(a, b string) int { return counts[b] - counts[a] })
	for _, filter := range names {
		words, ok := rejections[filter]
		if !ok {
			words = "short of " + filter
		}
		parts = append(parts, fmt.Sprintf("%d %s", counts[filter], words))
	}
	return strings.Join(parts, ", ")
}

// devicesText prints chosen devices: "cpu 2 (of 0, 1), cuda.shares 0.5 (of gpu-1)".
func devicesText(slots frame.Slots, devices map[string]map[string]string) string {
	var parts []string
	for _, slot := range slices.Sorted(maps.Keys(devices)) {
		var each []string
		for _, id := range slices.Sorted(maps.Keys(devices[slot])) {
			each = append(each, id+"="+slots.Amount(slot, devices[slot][id]))
		}
		parts = append(parts, slot+" "+strings.Join(each, " "))
	}
	return strings.Join(parts, ", ")
}
