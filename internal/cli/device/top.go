package device

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/device"
	"berth.dev/berth/internal/cli/frame"
)

const (
	// topEvery is the pause between two looks.
	topEvery = 2 * time.Second
	// topRows bounds what one look prints.
	topRows = 200
	// topFailures is how many looks in a row may fail.
	topFailures = 5
)

type top struct {
	frame           *frame.Frame
	once, all, json bool
}

// NewTop makes berth session top.
func NewTop(f *frame.Frame) *cobra.Command {
	o := &top{frame: f}
	cmd := &cobra.Command{
		Use:   "top [SESSION]",
		Short: "Watch what sessions and their devices do",
		Long: "Watch what running sessions use: a line for each container, and one for each accelerator that it holds. It looks again every\n" +
			"two seconds until Ctrl-C. Without a terminal, with --once and with --json it looks once.\n\n" +
			"What is not known is left empty. The use of an accelerator is shown where one container alone holds it; what a container uses\n" +
			"of shared ones stands in its own line.",
		Example: "  berth session top\n  berth session top mylab --once --json",
		Args:    frame.Args(cobra.MaximumNArgs(1)),
		RunE: f.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			look := func(ctx context.Context) (device.Top, error) { return device.OfSessions(ctx, c, o.all) }
			if len(args) == 1 {
				look = func(ctx context.Context) (device.Top, error) {
					s, err := device.OfSession(ctx, c, args[0])
					return device.Top{Sessions: []device.Session{s}, Total: 1, AsOf: api.TimeText(f.Now())}, err
				}
			}
			return o.run(ctx, cmd, look)
		}),
	}
	cmd.Flags().BoolVar(&o.once, "once", false, "look once and end")
	cmd.Flags().BoolVar(&o.all, "all", false, "sessions of everybody that may be seen, not only one's own")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *top) run(ctx context.Context, cmd *cobra.Command, look func(context.Context) (device.Top, error)) error {
	out := cmd.OutOrStdout()
	colour := o.frame.Colour(out)
	now, err := look(ctx)
	switch {
	case err != nil && api.IsNotFound(err):
		return frame.Hint(err, "berth session list")
	case err != nil:
		return err
	case o.json:
		return frame.PrintJSON(out, now)
	case o.once || !frame.IsTerminal(out):
		if len(now.Sessions) == 0 {
			frame.Say(cmd, "no session runs")
			return nil
		}
		return table(now, nil, o.all).Write(out, colour)
	}
	interrupts, stop := o.frame.Interrupts()
	defer stop()
	tick := time.NewTicker(topEvery)
	defer tick.Stop()
	return watch(ctx, out, colour, o.all, now, look, tick.C, interrupts)
}

// watch shows one look after the other until somebody interrupts.
func watch[I any](ctx context.Context, out io.Writer, colour, all bool, now device.Top, look func(context.Context) (device.Top, error),
	tick <-chan time.Time, interrupts <-chan I) error {
	began, failed := time.Time{}, 0
	var before *reading
	for {
		if failed == 0 {
			var b strings.Builder
			if err := table(now, before, all).Write(&b, colour); err != nil {
				return err
			}
			_, err := fmt.Fprintf(out, "\x1b[H\x1b[2J%s", b.String())
			if err != nil {
				return err
			}
			before = readingOf(now, began)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-interrupts:
			return nil
		case began = <-tick:
		}
		next, err := look(ctx)
		switch {
		case err == nil:
			now, failed = next, 0
		case api.IsNotFound(err) || failed+1 == topFailures:
			return err
		default:
			failed++
			if _, err := fmt.Fprintf(out, "%s\n", clean(err.Error())); err != nil {
				return err
			}
		}
	}
}

// reading is what counters showed at a time, by kernel.
type reading struct {
	at   time.Time
	read map[string]map[string]float64
}

func readingOf(t device.Top, at time.Time) *reading {
	if told, err := time.Parse(time.RFC3339Nano, t.AsOf); err == nil {
		at = told
	}
	if at.IsZero() {
		return nil
	}
	r := &reading{at: at, read: map[string]map[string]float64{}}
	for _, s := range t.Sessions {
		for _, k := range s.Kernels {
			r.read[k.ID] = k.Use
		}
	}
	return r
}

// rate is a counter's growth in a second as text; "" is not known.
func (r *reading) rate(now *reading, k device.Kernel, name string) string {
	if r == nil || now == nil {
		return ""
	}
	passed := now.at.Sub(r.at).Seconds()
	from, ok1 := r.read[k.ID][name]
	to, ok2 := k.Use[name]
	if !ok1 || !ok2 || passed <= 0 || to < from {
		return ""
	}
	return frame.BytesText((to-from)/passed) + "/s"
}

// table is one look as text. before is the look before it, for rates; nil where there is none.
func table(t device.Top, before *reading, all bool) frame.Table {
	out := frame.Table{Titles: []string{"SESSION", "KERNEL", "DEVICE", "CPU", "MEMORY", "UTIL", "DEVICE MEMORY", "POWER", "TEMP", "READ",
		"WRITE"}}
	if all {
		out.Titles[0] = "SESSION (USER)"
	}
	now := readingOf(t, time.Time{})
	left := 0
	add := func(row ...string) {
		if len(out.Rows) < topRows {
			out.Rows = append(out.Rows, row)
		} else {
			left++
		}
	}
	for _, s := range t.Sessions {
		name := s.Name
		if all && s.User != "" {
			name += " (" + s.User + ")"
		}
		if len(s.Kernels) == 0 || s.Status != api.StatusRunning {
			add(name, "", s.Status, "", "", "", "", "", "", "", "")
			continue
		}
		for _, k := range s.Kernels {
			add(name, k.Hostname, held(k.Slots), percent(k.Use, "cpu_util"), bytesOf(k.Use, mem, k.Slots[mem]), ofAll(k.Use, "_util", percentText),
				ofAll(k.Use, "_mem", frame.BytesText), ofAll(k.Use, "_power", watts), ofAll(k.Use, "_temperature", celsius),
				before.rate(now, k, "io_read"), before.rate(now, k, "io_write"))
			for _, d := range k.Devices {
				if d.Slot == cpu || d.Slot == mem {
					continue
				}
				family, _, _ := strings.Cut(d.Slot, ".")
				what := strings.TrimSpace("  " + d.ID + " " + d.Model)
				if d.Healthy != nil && !*d.Healthy {
					what += " (broken)"
				}
				add("", "", "  "+what, "", "", percent(d.Use, family+"_util"), bytesOf(d.Use, family+"_mem", total(d.Use, family+"_mem_total")),
					one(d.Use, family+"_power", watts), one(d.Use, family+"_temperature", celsius), "", "")
			}
		}
	}
	if more := t.Total - len(t.Sessions); more > 0 {
		out.Rows = append(out.Rows, []string{"and " + strconv.Itoa(more) + " sessions more", "", "", "", "", "", "", "", "", "", ""})
	}
	if left > 0 {
		out.Rows = append(out.Rows, []string{"and " + strconv.Itoa(left) + " lines more", "", "", "", "", "", "", "", "", "", ""})
	}
	return out
}

// held is what a container holds of accelerators.
func held(slots map[string]string) string {
	all := map[string]string{}
	for slot, v := range slots {
		if slot != cpu && slot != mem {
			all[slot] = v
		}
	}
	return frame.Slots(nil).Amounts(all)
}

func percentText(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) + " %" }
func watts(v float64) string       { return strconv.FormatFloat(v, 'f', 0, 64) + " W" }
func celsius(v float64) string     { return strconv.FormatFloat(v, 'f', 0, 64) + " °C" }

// one is a measurement as text; "" is not known.
func one(use map[string]float64, name string, text func(float64) string) string {
	v, ok := use[name]
	if !ok {
		return ""
	}
	return text(v)
}

func percent(use map[string]float64, name string) string { return one(use, name, percentText) }

// bytesOf is a number of bytes of how many there are.
func bytesOf(use map[string]float64, name, of string) string {
	text := one(use, name, frame.BytesText)
	if text == "" || of == "" {
		return text
	}
	return text + " of " + frame.BytesOf(of)
}

func total(use map[string]float64, name string) string {
	return one(use, name, func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) })
}

// ofAll is a measurement of a container's accelerators together; "" where none or several families were measured.
func ofAll(use map[string]float64, end string, text func(float64) string) string {
	out, n := "", 0
	for name, v := range use {
		if family, ok := strings.CutSuffix(name, end); ok && family != "" && family != cpu && !strings.Contains(family, "@") {
			out, n = text(v), n+1
		}
	}
	if n != 1 {
		return ""
	}
	return out
}
