// Package sim runs the production scheduler on recorded or made-up workloads in virtual
// time: an event heap of arrivals, ends and wake-ups drives scheduler.Cluster exactly as a
// leader does, and a ledger of its own checks every decision. The same workload and options
// always give the same trace.
package sim

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
)

// Bounds of what is read, so that a wrong file is an error and not the end of memory.
const (
	maxRows    = 5_000_000
	maxGPUs    = 64
	maxKernels = 10_000
)

// SlotGPU is the slot of all accelerators in a simulation: parts of devices, 1000 each.
const SlotGPU cluster.SlotName = "cuda.shares"

// Node is one machine.
type Node struct {
	Name         string
	CPU          int64 // thousandths of a core
	Mem          int64 // MiB
	GPUs         int
	Model        string
	Architecture string
	// Accelerators say where each of the GPUs is, when that is known: as many as there are GPUs, or none.
	Accelerators []Accelerator
}

// Accelerator is where one accelerator of a machine is.
type Accelerator struct {
	NUMA int // -1: unknown
	PCI  string
	// Links are the distance classes (alloc.Distance...) to others of the machine, by their indexes.
	Links map[int]int
}

// Job is one session to come.
type Job struct {
	Name                  string
	User, Project, Domain string
	Priority              int
	// Arrives is when it is submitted, Runs how long it runs (negative: for ever), Declares
	// the lifetime that the scheduler is told (0: none).
	Arrives, Runs, Declares time.Duration
	// Kernels is the size of the gang; each asks for CPU thousandths, Mem MiB and GPUs devices
	// of Milli thousandths each.
	Kernels     int
	SingleNode  bool
	Preemptible bool
	CPU, Mem    int64
	GPUs        int
	Milli       int64
	Models      []string
	// After names jobs that must have ended before this one may start.
	After []string
}

func (j *Job) gpuMilli() int64 { return int64(j.GPUs) * j.Milli * int64(max(j.Kernels, 1)) }

// class groups jobs in reports.
func (j *Job) class() string {
	switch {
	case j.GPUs == 0:
		return "cpu-only"
	case j.GPUs > 1:
		return strconv.Itoa(j.GPUs) + "-gpu"
	case j.Milli < cluster.Milli:
		return "share"
	}
	return "1-gpu"
}

// Workload is a cluster and what is asked of it.
type Workload struct {
	Nodes []Node
	Jobs  []Job
	Group scheduler.Group
	// Quotas limit owners.
	Quotas map[scheduler.Scope]scheduler.Quota
}

// table reads a CSV with a header; fields are found by name, more columns are ignored.
type table struct {
	r    *csv.Reader
	what string
	at   map[string]int
	row  []string
	line int
	err  error
}

func openTable(r io.Reader, what string, need ...string) (*table, error) {
	t := &table{r: csv.NewReader(r), what: what, at: map[string]int{}}
	t.r.FieldsPerRecord, t.r.ReuseRecord = -1, true
	head, err := t.r.Read()
	if err != nil {
		return nil, fault.Invalidf("%s: no header line: %v", what, err).WithNext("give a CSV file with the columns %s", strings.Join(need, ", "))
	}
	for i, name := range head {
		t.at[strings.TrimSpace(name)] = i
	}
	for _, name := range need {
		if _, ok := t.at[name]; !ok {
			return nil, fault.Invalidf("%s: there is no column %q", what, name).WithNext("give the columns %s", strings.Join(need, ", "))
		}
	}
	return t, nil
}

func (t *table) next() bool {
	if t.err != nil {
		return false
	}
	row, err := t.r.Read()
	if err != nil {
		if !errors.Is(err, io.EOF) {
			t.err = fault.Invalidf("%s: %v", t.what, err)
		}
		return false
	}
	t.line++
	if t.line > maxRows {
		t.err = fault.Invalidf("%s has more than %d rows", t.what, maxRows).WithNext("split it")
		return false
	}
	t.row = row
	return true
}

func (t *table) text(name string) string {
	if i, ok := t.at[name]; ok && i < len(t.row) {
		return strings.TrimSpace(t.row[i])
	}
	return ""
}

// number reads a non-negative whole number up to top; an empty cell is 0. Recorded lists write some as "4000.0".
func (t *table) number(name string, top int64) int64 {
	s := t.text(name)
	if s == "" {
		return 0
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= float64(top)) {
		if t.err == nil {
			t.err = fault.Invalidf("%s: row %d: %s is %q", t.what, t.line, name, s).WithNext("give a number from 0 to %d", top)
		}
		return 0
	}
	return int64(f)
}

// ReadNodes reads sn, cpu_milli, memory_mib, gpu (count) and model.
func ReadNodes(r io.Reader, what string) ([]Node, error) {
	t, err := openTable(r, what, "sn", "cpu_milli", "memory_mib", "gpu", "model")
	if err != nil {
		return nil, err
	}
	var out []Node
	seen := map[string]bool{}
	for t.next() {
		n := Node{
			Name:  t.text("sn"),
			CPU:   t.number("cpu_milli", 1e9),
			Mem:   t.number("memory_mib", 1e9),
			GPUs:  int(t.number("gpu", maxGPUs)),
			Model: t.text("model"),
		}
		if n.Name == "" || seen[n.Name] {
			return nil, fault.Invalidf("%s: row %d: the name %q is empty or was there before", what, t.line, n.Name)
		}
		seen[n.Name] = true
		out = append(out, n)
	}
	if t.err != nil {
		return nil, t.err
	}
	if len(out) == 0 {
		return nil, fault.Invalidf("%s has no nodes", what)
	}
	return out, nil
}

// ReadPods reads name, cpu_milli, memory_mib, num_gpu, gpu_milli and, where it is there,
// gpu_spec (models separated by "|"), in the order of the file. They arrive one second apart
// and never end.
func ReadPods(r io.Reader, what string) ([]Job, error) {
	t, err := openTable(r, what, "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
	if err != nil {
		return nil, err
	}
	var out []Job
	for t.next() {
		j := Job{Name: t.text("name"), Kernels: 1, Runs: -1, Arrives: time.Duration(len(out)) * time.Second,
			CPU: t.number("cpu_milli", 1e9), Mem: t.number("memory_mib", 1e9), GPUs: int(t.number("num_gpu", maxGPUs))}
		if j.GPUs > 0 {
			j.Milli = min(t.number("gpu_milli", 1e9), cluster.Milli)
			if spec := t.text("gpu_spec"); spec != "" {
				j.Models = strings.Split(spec, "|")
			}
			if j.Milli == 0 || j.GPUs > 1 && j.Milli != cluster.Milli {
				return nil, fault.Invalidf("%s: row %d: pod %s asks for %d GPUs of %d thousandths each", what, t.line, j.Name, j.GPUs, j.Milli).
					WithNext("give one GPU in part or several whole ones")
			}
		}
		out = append(out, j)
	}
	return out, t.err
}

// session is the job as the scheduler sees it; index makes its ids.
func (j *Job) session(index int, epoch time.Time) scheduler.Session {
	s := scheduler.Session{
		ID: sessionID(index), Name: j.Name, Type: cluster.Batch, Priority: j.Priority, EnqueuedAt: epoch.Add(j.Arrives), Lifetime: j.Declares,
		Owner: scheduler.Owner{
			AccessKey: cluster.AccessKey(j.User),
			User:      cluster.UserID(j.User),
			Project:   cluster.ProjectID(j.Project),
			Domain:    j.Domain,
		},
		SingleNode: j.SingleNode, Preemptible: j.Preemptible,
	}
	slots := cluster.Slots{}
	if j.CPU > 0 {
		slots[cluster.SlotCPU] = cluster.Amount(j.CPU)
	}
	if j.Mem > 0 {
		slots[cluster.SlotMem] = cluster.Whole(j.Mem << 20)
	}
	if j.GPUs > 0 {
		slots[SlotGPU] = cluster.Amount(int64(j.GPUs) * j.Milli)
	}
	for k := range max(j.Kernels, 1) {
		s.Kernels = append(s.Kernels, scheduler.Kernel{
			ID: cluster.KernelID(fmt.Sprintf("%s-%d", s.ID, k)), Slots: slots, Models: j.Models,
		})
	}
	return s
}

func sessionID(index int) cluster.SessionID { return cluster.SessionID(fmt.Sprintf("%08d", index)) }
