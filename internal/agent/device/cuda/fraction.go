package cuda

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// The rungs, best first; docs/devices.md says more.
const (
	// Hard is MIG: the hardware gives every instance memory and processors of its own.
	Hard = cluster.IsolationHard
	// ByDriver: the driver limits the memory of the container's control group; processors as under Cooperative.
	ByDriver = cluster.IsolationDriver
	// Cooperative: MPS limits the memory and the processors of every process; a container of several processes gets more, and one program's
	// fault ends the others on the card.
	Cooperative = cluster.IsolationCooperative
	// None: programs take turns, and each may take all of the memory.
	None = cluster.IsolationNone
)

// Probe is what a host has for sharing cards.
type Probe struct {
	// Driver is the version of NVIDIA's driver, Capabilities the compute capabilities of the cards that are not cut by MIG.
	Driver       string
	Capabilities []string
	// MIG: at least one card is cut, and none is left whole.
	MIG bool
	// MPS says in words why NVIDIA's MPS cannot be used; "" when it can.
	MPS string
	// CgroupV2 is the engine's, Limits says that NVIDIA's toolkit sets memory limits of containers.
	CgroupV2, Limits bool
}

// The first of NVIDIA's drivers that limits the memory of control groups, and the first processors whose shares MPS limits (Volta).
const (
	limitsDriver = 615
	mpsMajor     = 7
)

// Rung decides which isolation shares have on a host. It is pure.
func Rung(p Probe) cluster.Isolation {
	switch {
	case p.MIG:
		return Hard
	case p.MPS != "" || len(p.Capabilities) == 0 || slices.ContainsFunc(p.Capabilities, func(c string) bool { return major(c) < mpsMajor }):
		return None
	case major(p.Driver) >= limitsDriver && p.CgroupV2 && p.Limits:
		return ByDriver
	}
	return Cooperative
}

// major is the first number of a version; 0 when there is none.
func major(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// probe describes this host to Rung.
func (d *Driver) probe(m machine, how method) Probe {
	p := Probe{Driver: m.driver, CgroupV2: how.cgroup2, Limits: how.limits, MIG: len(m.cards) > 0, MPS: "nothing here runs it"}
	for _, g := range m.cards {
		if !g.MIG {
			p.MIG = false
			if g.Problem == "" { // what is known of a broken card says nothing about the others
				p.Capabilities = append(p.Capabilities, g.Capability)
			}
		}
	}
	slices.Sort(p.Capabilities)
	if d.o.Shares != nil {
		p.MPS = ""
		if err := d.o.Shares.Ready(); err != nil {
			p.MPS = err.Error()
		}
	}
	return p
}

// sharesProblem says why shares of cards are not given out; "" when they are. It is pure.
func sharesProblem(c Config, p Probe) string {
	rung := Rung(p)
	switch {
	case !rung.AtLeast(cluster.Isolation(c.Isolation)):
		words := fmt.Sprintf("its shares have isolation %q here, and agent.cuda.isolation asks for %q", rung, c.Isolation)
		if p.MPS != "" {
			words += "; MPS cannot be used: " + p.MPS
		}
		return words
	case rung == None && !c.AllowTimeSlicing:
		return "nothing would hold the limits of its shares, and agent.cuda.allow_time_slicing is not set"
	}
	return ""
}

// Limit is a share of a card: the pair that is held, whatever unit the slot counts in.
type Limit struct {
	// MemoryMiB is in units of 2^20 bytes, Compute in thousandths of the card's processors.
	MemoryMiB int64
	Compute   int64
}

// limitOf is what an amount of cuda.shares of a card means.
func limitOf(memory, reserve int64, amount cluster.Amount) Limit {
	return Limit{MemoryMiB: max(memory-reserve, 0) >> 20 * int64(amount) / cluster.Milli, Compute: int64(amount)}
}

// Percent is the compute part as MPS takes it, never less than one.
func (l Limit) Percent() int64 { return max((l.Compute+9)/10, 1) }
