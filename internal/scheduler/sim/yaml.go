package sim

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
)

// maxDocument bounds a workload file, maxJobs what its counts multiply to.
const (
	maxDocument = 16 << 20
	maxJobs     = 2_000_000
)

// document is the YAML of a workload. Unknown fields are errors.
type document struct {
	Scheduler string         `yaml:"scheduler"`
	Options   map[string]any `yaml:"scheduler_opts"`
	Agents    []agentEntry   `yaml:"agents"`
	Quotas    []quotaEntry   `yaml:"quotas"`
	Jobs      []jobEntry     `yaml:"jobs"`
}

// agentEntry is count equal machines; mem is a number with a unit.
type agentEntry struct {
	Name         string  `yaml:"name"`
	Count        int     `yaml:"count"`
	CPU          float64 `yaml:"cpu"`
	Mem          string  `yaml:"mem"`
	GPUs         int     `yaml:"gpus"`
	Model        string  `yaml:"model"`
	Architecture string  `yaml:"architecture"`
	// Devices is a file that describes the accelerators of a machine, in the place of gpus and model.
	Devices string `yaml:"devices"`
}

// Machines reads the file of a machine's accelerators that a workload names, and says what model they are.
type Machines func(file string) (accelerators []Accelerator, model string, err error)

// quotaEntry limits exactly one of user, project and domain.
type quotaEntry struct {
	User     string            `yaml:"user"`
	Project  string            `yaml:"project"`
	Domain   string            `yaml:"domain"`
	Slots    map[string]string `yaml:"slots"`
	Sessions *int              `yaml:"sessions"`
}

// jobEntry is count equal jobs, the first at arrives, the others every so often; random makes the gaps exponential with
// that mean.
type jobEntry struct {
	Name        string        `yaml:"name"`
	User        string        `yaml:"user"`
	Project     string        `yaml:"project"`
	Domain      string        `yaml:"domain"`
	Count       int           `yaml:"count"`
	Arrives     time.Duration `yaml:"arrives"`
	Every       time.Duration `yaml:"every"`
	Random      bool          `yaml:"random"`
	Runs        time.Duration `yaml:"runs"` // absent: for ever
	Declares    time.Duration `yaml:"declares"`
	Priority    *int          `yaml:"priority"`
	Kernels     int           `yaml:"kernels"`
	SingleNode  bool          `yaml:"single_node"`
	Preemptible bool          `yaml:"preemptible"`
	CPU         float64       `yaml:"cpu"`
	Mem         string        `yaml:"mem"`
	GPUs        float64       `yaml:"gpus"` // a part of one, or whole ones
	Models      []string      `yaml:"models"`
	After       []string      `yaml:"after"`
}

// ReadWorkload reads our own YAML. seed decides the random gaps between arrivals. The error is
// Invalid and names the entry. With machines nil no entry may name a file.
func ReadWorkload(r io.Reader, what string, seed uint64, machines Machines) (*Workload, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	if len(raw) > maxDocument {
		return nil, fault.Invalidf("%s is larger than %d MiB", what, maxDocument>>20)
	}
	var doc document
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil {
		return nil, fault.Invalidf("%s: %v", what, err).WithNext("see docs/simulator.md for the fields")
	}
	w := &Workload{Quotas: map[scheduler.Scope]scheduler.Quota{}}
	if w.Group, err = scheduler.ParseGroup(groupName, doc.Scheduler, doc.Options); err != nil {
		return nil, err
	}
	for i, a := range doc.Agents {
		if err := a.add(w, machines); err != nil {
			return nil, fault.Invalidf("%s: agent entry %d (%s): %v", what, i+1, a.Name, err)
		}
	}
	for i, q := range doc.Quotas {
		if err := q.add(w); err != nil {
			return nil, fault.Invalidf("%s: quota entry %d: %v", what, i+1, err)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	for i, j := range doc.Jobs {
		if err := j.add(w, rng); err != nil {
			return nil, fault.Invalidf("%s: job entry %d (%s): %v", what, i+1, j.Name, err)
		}
	}
	slices.SortStableFunc(w.Jobs, func(a, b Job) int { return int(min(max(a.Arrives-b.Arrives, -1), 1)) })
	return w, nil
}

func (a agentEntry) add(w *Workload, machines Machines) error {
	mem, err := mebibytes(a.Mem)
	if err != nil {
		return err
	}
	var accelerators []Accelerator
	if a.Devices != "" {
		switch {
		case machines == nil:
			return fmt.Errorf("files of devices are not read here")
		case a.GPUs != 0 || a.Model != "":
			return fmt.Errorf("gpus and model stand in %s", a.Devices)
		}
		if accelerators, a.Model, err = machines(a.Devices); err != nil {
			return err
		}
		a.GPUs = len(accelerators)
	}
	if a.Name == "" || a.CPU < 0 || a.CPU > 1e6 || a.GPUs < 0 || a.GPUs > maxGPUs || a.Count < 0 || a.Count > 100_000 {
		return fmt.Errorf("give a name, up to 1000000 cores, %d gpus and a count of up to 100000", maxGPUs)
	}
	for n := range max(a.Count, 1) {
		w.Nodes = append(
			w.Nodes,
			Node{Name: numbered(a.Name, a.Count, n), CPU: milli(a.CPU), Mem: mem, GPUs: a.GPUs, Model: a.Model, Architecture: a.Architecture,
				Accelerators: accelerators},
		)
	}
	return nil
}

func (q quotaEntry) add(w *Workload) error {
	var scopes []scheduler.Scope
	for _, s := range []scheduler.Scope{
		{Kind: scheduler.ScopeUser, ID: q.User},
		{Kind: scheduler.ScopeProject, ID: q.Project},
		{Kind: scheduler.ScopeDomain, ID: q.Domain},
	} {
		if s.ID != "" {
			scopes = append(scopes, s)
		}
	}
	if len(scopes) != 1 {
		return fmt.Errorf("name one user, project or domain")
	}
	out := scheduler.Quota{Name: string(scopes[0].Kind) + " " + scopes[0].ID, Slots: cluster.Slots{}, Sessions: -1, Private: -1}
	if q.Sessions != nil {
		out.Sessions = *q.Sessions
	}
	for name, text := range q.Slots {
		kind := cluster.SlotCount
		slot := cluster.SlotName(name)
		switch slot {
		case "gpus":
			slot = SlotGPU
		case cluster.SlotMem:
			kind = cluster.SlotBytes
		case cluster.SlotCPU:
		default:
			return fmt.Errorf("slot %q: use cpu, mem or gpus", name)
		}
		v, err := cluster.ParseAmount(kind, text)
		if err != nil {
			return fmt.Errorf("slot %s: %w", name, err)
		}
		out.Slots[slot] = v
	}
	w.Quotas[scopes[0]] = out
	return nil
}

func (j jobEntry) add(w *Workload, rng *rand.Rand) error {
	mem, err := mebibytes(j.Mem)
	if err != nil {
		return err
	}
	switch {
	case j.Name == "" || j.CPU < 0 || j.CPU > 1e6 || j.Count < 0 || j.Kernels < 0 || j.Kernels > maxKernels:
		return fmt.Errorf("give a name, up to 1000000 cores and %d kernels", maxKernels)
	case j.Arrives < 0 || j.Every < 0 || j.Runs < 0 || j.Declares < 0:
		return fmt.Errorf("a time is below zero")
	case len(w.Jobs)+j.Count > maxJobs:
		return fmt.Errorf("more than %d jobs", maxJobs)
	case j.GPUs < 0 || j.GPUs > maxGPUs || j.GPUs > 1 && j.GPUs != math.Trunc(j.GPUs):
		return fmt.Errorf("gpus is %v: give a part of one or up to %d whole ones", j.GPUs, maxGPUs)
	}
	one := Job{
		Name:     j.Name,
		User:     j.User,
		Project:  j.Project,
		Domain:   j.Domain,
		Priority: 10,
		Arrives:  j.Arrives,
		Runs:     j.Runs,
		Declares: j.Declares,
		Kernels: max(
			j.Kernels,
			1,
		),
		SingleNode:  j.SingleNode,
		Preemptible: j.Preemptible,
		CPU:         milli(j.CPU),
		Mem:         mem,
		Models:      j.Models,
		After:       j.After,
	}
	if j.Runs == 0 {
		one.Runs = -1
	}
	if j.Priority != nil {
		if one.Priority = *j.Priority; one.Priority < 0 || one.Priority > 100 {
			return fmt.Errorf("priority is %d: choose 0 to 100", one.Priority)
		}
	}
	if j.GPUs >= 1 {
		one.GPUs, one.Milli = int(j.GPUs), cluster.Milli
	} else if j.GPUs > 0 {
		one.GPUs, one.Milli = 1, milli(j.GPUs)
	}
	for n := range max(j.Count, 1) {
		next := one
		next.Name = numbered(j.Name, j.Count, n)
		w.Jobs = append(w.Jobs, next)
		gap := j.Every
		if j.Random {
			gap = time.Duration(rng.ExpFloat64() * float64(j.Every))
		}
		one.Arrives += gap
	}
	return nil
}

func numbered(name string, count, n int) string {
	if count <= 1 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, n+1)
}

func milli(x float64) int64 { return int64(math.Round(x * 1000)) }

// mebibytes reads "64GiB", "64g" or "512MiB".
func mebibytes(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	bytes, err := cluster.ParseBytes(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("mem: %w", err)
	}
	if bytes < 0 || bytes%(1<<20) != 0 {
		return 0, fmt.Errorf("mem is %s: give whole MiB", text)
	}
	return bytes >> 20, nil
}

// Shuffle puts the jobs into a random order of arrival, one second apart.
func Shuffle(jobs []Job, seed uint64) {
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
	for i := range jobs {
		jobs[i].Arrives = time.Duration(i) * time.Second
	}
}
