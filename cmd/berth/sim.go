package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/sim"
)

// simulation is what the flags of berth sim say.
type simulation struct {
	nodes, pods, history, workload string
	order, placement, placements   string
	options                        []string
	inOrder, asJSON                bool
	seed                           uint64
	until                          time.Duration
}

func newSim() *cobra.Command {
	var s simulation
	c := &cobra.Command{
		Use: "sim", Short: "Run the scheduler on a recorded workload in virtual time", Args: cobra.NoArgs,
		Long: "Run the production scheduler on a workload in virtual time and report allocation, fragmentation,\n" +
			"waiting times, fairness and pass times. A workload is either two CSV lists (--nodes, --pods) or a\n" +
			"YAML file with arrivals and departures (--workload). The same input and seed give the same result.",
		Example: "  berth sim --nodes nodes.csv --pods order.csv --in-order --history list.csv --placements out.csv\n" +
			"  berth sim --workload week.yaml --order fair-share --policy pack --json",
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.OutOrStdout()) },
	}
	f := c.Flags()
	f.StringVar(&s.nodes, "nodes", "", "CSV `file` of machines: sn, cpu_milli, memory_mib, gpu, model")
	f.StringVar(&s.pods, "pods", "", "CSV `file` of requests: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec")
	f.StringVar(&s.workload, "workload", "", "YAML `file` of agents, quotas and jobs (instead of the lists)")
	f.BoolVar(&s.inOrder, "in-order", false, "take --pods one at a time in their order; each is placed or refused at once and nothing ends")
	f.StringVar(&s.history, "history", "", "CSV `file` of requests from which typical ones are learnt before the first arrival")
	f.StringVar(&s.placement, "policy", "", "placement policy: "+strings.Join(scheduler.Placements(), ", "))
	f.StringVar(&s.order, "order", "", "order policy: "+strings.Join(scheduler.Orders(), ", "))
	f.StringArrayVar(&s.options, "option", nil, "an option of the scheduler as `key=JSON` (repeat)")
	f.Uint64Var(&s.seed, "seed", 0, "seed of the order of arrival (lists without --in-order) and of random gaps (YAML)")
	f.DurationVar(&s.until, "until", 0, "end at this virtual time")
	f.StringVar(&s.placements, "placements", "", "write name,node,gpu-gpu-… per request to `file` (- for standard output)")
	f.BoolVar(&s.asJSON, "json", false, "print the report as JSON")
	c.MarkFlagsMutuallyExclusive("workload", "pods")
	c.MarkFlagsMutuallyExclusive("workload", "nodes")
	c.MarkFlagsMutuallyExclusive("workload", "in-order")
	return c
}

func (s *simulation) run(out io.Writer) error {
	w, err := s.read()
	if err != nil {
		return err
	}
	opt := sim.Options{InOrder: s.inOrder, Until: s.until, Stopwatch: time.Now}
	if s.history != "" {
		if opt.History, err = fromFile(s.history, sim.ReadPods); err != nil {
			return err
		}
	}
	report, err := sim.Run(w, opt)
	if err != nil {
		return err
	}
	switch s.placements {
	case "":
	case "-":
		_, err = io.WriteString(out, report.Placements())
		return err
	default:
		if err := os.WriteFile(s.placements, []byte(report.Placements()), 0o644); err != nil {
			return fmt.Errorf("write placements: %w", err)
		}
	}
	if s.asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	}
	return printReport(out, report)
}

func (s *simulation) read() (*sim.Workload, error) {
	var w *sim.Workload
	var err error
	switch {
	case s.workload != "":
		machines := func(file string) ([]sim.Accelerator, string, error) {
			if !filepath.IsAbs(file) {
				file = filepath.Join(filepath.Dir(s.workload), file)
			}
			return readMachine(file)
		}
		w, err = fromFile(s.workload, func(r io.Reader, what string) (*sim.Workload, error) {
			return sim.ReadWorkload(r, what, s.seed, machines)
		})
		if err != nil {
			return nil, err
		}
	case s.nodes == "" || s.pods == "":
		return nil, fault.Invalidf("there is no workload").WithNext("give --nodes and --pods, or --workload")
	default:
		w = &sim.Workload{}
		if w.Nodes, err = fromFile(s.nodes, sim.ReadNodes); err != nil {
			return nil, err
		}
		if w.Jobs, err = fromFile(s.pods, sim.ReadPods); err != nil {
			return nil, err
		}
		if !s.inOrder {
			sim.Shuffle(w.Jobs, s.seed)
		}
		// Recorded lists exist to judge packing.
		w.Group.Placement = "least-fragmentation"
	}
	opts := map[string]any{}
	for _, o := range s.options {
		key, value, ok := strings.Cut(o, "=")
		if !ok {
			return nil, fault.Invalidf("option %q has no value", o).WithNext("write it as key=value")
		}
		var v any = value
		if json.Valid([]byte(value)) {
			if err := json.Unmarshal([]byte(value), &v); err != nil {
				return nil, fmt.Errorf("read option %s: %w", key, err)
			}
		}
		opts[key] = v
	}
	if s.placement != "" && !slices.Contains(scheduler.Placements(), s.placement) {
		return nil, fault.Invalidf("the placement policy %q does not exist", s.placement).
			WithNext("use one of %s", strings.Join(scheduler.Placements(), ", "))
	}
	if len(opts) > 0 || s.order != "" {
		if s.workload != "" && len(opts) > 0 {
			return nil, fault.Invalidf("options stand in the workload file").
				WithNext("leave --option out or change scheduler_opts in %s", s.workload)
		}
		keep := w.Group
		if w.Group, err = scheduler.ParseGroup("sim", cmp.Or(s.order, keep.Order), opts); err != nil {
			return nil, err
		}
		if len(opts) == 0 {
			order := w.Group.Order
			w.Group = keep
			w.Group.Order = order
		} else if w.Group.Placement == "" {
			w.Group.Placement = keep.Placement
		}
	}
	if s.placement != "" {
		w.Group.Placement = s.placement
	}
	return w, nil
}

// readMachine reads the accelerators of a file of mock devices. Instances of cards are left out: a simulation gives out cards and parts of
// cards.
func readMachine(file string) (out []sim.Accelerator, model string, err error) {
	m, err := mock.Read(file)
	if err != nil {
		return nil, "", err
	}
	d, err := mock.New(m, time.Now)
	if err != nil {
		return nil, "", err
	}
	found, err := d.Discover(context.Background())
	if err != nil {
		return nil, "", err
	}
	at := map[string]int{}
	var cards []device.Device
	for _, x := range found {
		if _, twice := at[x.ID]; twice || m.Slots[x.Slot] != cluster.SlotCount {
			continue
		}
		if at[x.ID] = len(cards); model == "" {
			model = x.Model
		}
		if x.Model != model {
			return nil, "", fault.Invalidf("%s has cards of two models, %s and %s", file, model, x.Model).
				WithNext("describe them as two kinds of agents, each with a file of its own")
		}
		cards = append(cards, x)
	}
	for _, x := range cards {
		a := sim.Accelerator{NUMA: x.NUMA, PCI: x.PCI, Links: map[int]int{}}
		for other, class := range x.Links {
			if i, ok := at[other]; ok {
				a.Links[i] = class
			}
		}
		out = append(out, a)
	}
	return out, model, nil
}

func fromFile[T any](path string, read func(io.Reader, string) (T, error)) (T, error) {
	f, err := os.Open(path)
	if err != nil {
		var none T
		return none, fault.Invalidf("open workload: %v", err).WithNext("check the path")
	}
	defer f.Close()
	return read(f, path)
}

func printReport(out io.Writer, r *sim.Report) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "jobs\t%d\nstarted\t%d\nended\t%d\nrefused\t%d\nwaiting\t%d\npreempted\t%d\n", r.Jobs, r.Started, r.Ended, r.Refused,
		r.Waiting, r.Preempted)
	fmt.Fprintf(w, "allocation\t%.2f %%\nfragmentation\t%.2f %% of what is free\n", 100*r.Allocation, 100*r.Fragmentation)
	if len(r.Offered) > 0 {
		fmt.Fprint(w, "\nOFFERED\tALLOCATED\tUNUSABLE OF FREE\n")
		for _, p := range r.Offered {
			fmt.Fprintf(w, "%d %%\t%.2f %%\t%.2f %%\n", p.Percent, p.Allocated, 100*p.Unusable)
		}
	}
	if len(r.Refusals) > 0 {
		fmt.Fprint(w, "\nCLASS\tARRIVED\tREFUSED\tFIRST AT\n")
		for _, c := range r.Refusals {
			first := "-"
			if c.Refused > 0 {
				first = fmt.Sprintf("%.1f %%", c.First)
			}
			fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", c.Class, c.Arrived, c.Refused, first)
		}
	}
	if len(r.Waits) > 0 {
		fmt.Fprint(w, "\nCLASS\tJOBS\tMEAN WAIT\tHALF\t95 %\tLONGEST\n")
		for _, x := range r.Waits {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", x.Class, x.Jobs, seconds(x.Mean), seconds(x.P50), seconds(x.P95), seconds(x.Max))
		}
	}
	if len(r.Users) > 1 {
		fmt.Fprintf(w, "\nfairness (Jain)\t%.4f\n\nUSER\tRECEIVED h\tPRESENT h\tMEAN WAIT\n", r.Fairness)
		for _, u := range r.Users {
			fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%s\n", u.Name, u.Received, u.Present, seconds(u.MeanWait))
		}
	}
	fmt.Fprintf(w, "\npasses\t%d\nmean pass\t%.4f ms\n99 %% of passes\t%.4f ms\nlongest pass\t%.4f ms\nper job\t%.4f ms\ntrace\t%s\n",
		r.Passes.Count, r.Passes.Mean, r.Passes.P99, r.Passes.Max, r.Passes.PerJob, r.Trace)
	return w.Flush()
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}
