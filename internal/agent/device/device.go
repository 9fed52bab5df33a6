// Package device is the contract between the agent and whatever gives containers parts of this host: cores, memory,
// accelerators. Every kind of device has a driver: packages cpu and mem, and mock, which reads a machine from a file. All
// pass the conformance suite in device/conformance.
//
// An Inventory holds the drivers of one agent: it looks at the host again and again, knows which devices may be given out,
// and turns an allocation into what a container needs. It starts nothing by itself and keeps nothing on disk. Package
// alloc chooses devices, package keeper asks for grants, package meter for measurements.
package device

import (
	"context"
	"maps"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Driver finds the devices of some slots, gives them to containers and measures them. All methods may be called at the
// same time. Discover and Sample return soon after their context has ended.
type Driver interface {
	// Name is one word for logs and warnings; no two drivers of an agent share it.
	Name() string
	// Kinds are the slots that this driver's devices fill, with how their amounts are counted. They never change.
	Kinds() map[cluster.SlotName]cluster.SlotKind
	// Discover looks at the host and returns every device that is there, broken ones too. While nothing changes on the
	// host the answer is the same, in the same order.
	Discover(ctx context.Context) ([]Device, error)
	// Grant says what a container needs to use its devices. It looks at this driver's slots alone, has no side effects, and
	// the same allocation always gives the same grant while the devices are there.
	Grant(a alloc.Allocation) (Grant, error)
	// Sample measures the devices. held is what running kernels have of all drivers. What cannot be measured is absent.
	Sample(ctx context.Context, held map[cluster.KernelID]alloc.Allocation) (Usage, error)
}

// Device is one device of one slot as the allocator knows it, with what only the agent needs. Its ID is the UUID where
// the hardware has one. Hardware that can fill several slots is one Device for each of them, with the same ID.
type Device struct {
	alloc.Device
	// Memory is the device's own memory in bytes; 0 when it has none or it is unknown.
	Memory int64
	// Problem says in words why the device is not healthy; "" when it is.
	Problem string
}

// Equal reports whether two looks saw the same.
func (d Device) Equal(e Device) bool {
	return d.Slot == e.Slot && d.ID == e.ID && d.NUMA == e.NUMA && d.PCI == e.PCI && d.Model == e.Model && d.Capacity == e.Capacity &&
		d.Healthy == e.Healthy && d.Isolation == e.Isolation && d.Memory == e.Memory && d.Problem == e.Problem && maps.Equal(d.Links, e.Links)
}

// Ref names one device of an agent.
type Ref struct {
	Slot cluster.SlotName
	ID   string
}

// Usage is one measurement under the names of node.MetricCPUUsed and its siblings: of the host as a whole, of each device,
// and of each kernel. Totals since the start of something are better than rates: their reader knows the time between two looks.
type Usage struct {
	Node    map[string]float64
	Devices map[Ref]map[string]float64
	Kernels map[cluster.KernelID]map[string]float64
}

// NewUsage returns a measurement of nothing.
func NewUsage() Usage {
	return Usage{Node: map[string]float64{}, Devices: map[Ref]map[string]float64{}, Kernels: map[cluster.KernelID]map[string]float64{}}
}

// add takes over what another driver measured.
func (u Usage) add(other Usage) {
	maps.Copy(u.Node, other.Node)
	maps.Copy(u.Devices, other.Devices)
	for id, values := range other.Kernels {
		if u.Kernels[id] == nil {
			u.Kernels[id] = map[string]float64{}
		}
		maps.Copy(u.Kernels[id], values)
	}
}
