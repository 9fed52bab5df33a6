//go:build cgo

package nvmlhelper

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
)

// card is one GPU that answers.
type card struct {
	device nvml.Device
	gpu    nvmlwire.GPU
	bus    bus
}

// bus is where a card is on PCI.
type bus struct{ domain, bus, device uint32 }

// Look returns the GPUs of this host. A card that fails a question is there with its problem.
func (l *library) Look() (nvmlwire.Facts, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ready(); err != nil {
		return nvmlwire.Facts{}, err
	}
	facts := nvmlwire.Facts{GPUs: []nvmlwire.GPU{}}
	var ret nvml.Return
	if facts.Driver, ret = l.nvml.SystemGetDriverVersion(); ret != nvml.SUCCESS {
		return nvmlwire.Facts{}, l.lost("read the version of the driver", ret)
	}
	newest, ret := l.nvml.SystemGetCudaDriverVersion()
	if ret != nvml.SUCCESS {
		return nvmlwire.Facts{}, l.lost("read the version of CUDA", ret)
	}
	facts.CUDA = fmt.Sprintf("%d.%d", newest/1000, newest%1000/10)
	devices, why, err := l.devices()
	if err != nil {
		return nvmlwire.Facts{}, err
	}
	cards := make([]*card, len(devices)) // by index; nil: it cannot be named
	broken := map[int]nvml.Return{}
	for i, d := range devices {
		if d == nil {
			broken[i] = why[i]
			continue
		}
		uuid, ret := d.GetUUID()
		if ret != nvml.SUCCESS {
			broken[i] = ret
			continue
		}
		var problems []string
		cards[i], problems = l.card(d, uuid)
		facts.Problems = append(facts.Problems, problems...)
	}
	l.link(cards)
	for i := range devices {
		if cards[i] != nil {
			facts.GPUs = append(facts.GPUs, cards[i].gpu)
			if cards[i].gpu.Problem == "" {
				l.seen[i] = cards[i].gpu
			}
			continue
		}
		problem := text(failure(broken[i]))
		named := func(c *card) bool { return c != nil && c.gpu.UUID == l.seen[i].UUID }
		if known, ok := l.seen[i]; ok && !slices.ContainsFunc(cards, named) {
			known.Problem = problem
			facts.GPUs = append(facts.GPUs, known)
			continue
		}
		facts.Problems = append(facts.Problems, fmt.Sprintf("GPU %d cannot be named: %s", i, problem))
	}
	return facts, nil
}

// card asks one GPU for everything. Its problem is the first question that failed; the problems are those of its instances.
func (l *library) card(d nvml.Device, uuid string) (*card, []string) {
	c := &card{device: d, gpu: nvmlwire.GPU{UUID: uuid, NUMA: -1, Minor: -1}}
	// answered reports whether a question was, and notes the problem when it should have been.
	answered := func(what string, ret nvml.Return, optional bool) bool {
		if ret != nvml.SUCCESS && c.gpu.Problem == "" && (!optional || ret != nvml.ERROR_NOT_SUPPORTED) {
			c.gpu.Problem = fmt.Sprintf("its %s could not be read: %s", what, text(failure(ret)))
		}
		return ret == nvml.SUCCESS
	}
	var ret nvml.Return
	c.gpu.Model, ret = d.GetName()
	answered("name", ret, false)
	if pci, ret := d.GetPciInfo(); answered("PCI address", ret, false) {
		c.bus, c.gpu.PCI = busOf(pci), addressOf(pci)
		c.gpu.NUMA = l.numa(c.gpu.PCI)
	}
	if minor, ret := d.GetMinorNumber(); answered("minor number", ret, false) {
		c.gpu.Minor = minor
	}
	if memory, ret := d.GetMemoryInfo(); answered("memory", ret, true) {
		c.gpu.Memory = int64(memory.Total)
	}
	if major, minor, ret := d.GetCudaComputeCapability(); answered("compute capability", ret, true) {
		c.gpu.Capability = fmt.Sprintf("%d.%d", major, minor)
	}
	on, ret := l.mig(d)
	answered("MIG mode", ret, true)
	if !on {
		return c, nil
	}
	c.gpu.MIG = true
	parts, ret := instancesOf(d)
	answered("MIG instances", ret, false)
	var problems []string
	for _, p := range parts {
		one, err := instance(p, c.gpu)
		if err != nil {
			problems = append(problems, fmt.Sprintf("a MIG instance of GPU %s cannot be used: %s", uuid, text(err)))
			continue
		}
		c.gpu.Instances = append(c.gpu.Instances, one)
	}
	return c, problems
}

func busOf(p nvml.PciInfo) bus { return bus{p.Domain, p.Bus, p.Device} }

// addressOf is the address as Linux writes it. Only the text of NVML holds the function.
func addressOf(p nvml.PciInfo) string {
	function := "0"
	if _, f, ok := strings.Cut(chars(p.BusId[:]), "."); ok && f != "" {
		function = f
	}
	return fmt.Sprintf("%04x:%02x:%02x.%s", p.Domain, p.Bus, p.Device, function)
}

// chars is a text of C.
func chars(c []int8) string {
	var out strings.Builder
	for _, b := range c {
		if b == 0 {
			break
		}
		out.WriteByte(byte(b))
	}
	return out.String()
}

// numa is the node that Linux says, -1 when it says none.
func (l *library) numa(pci string) int {
	b, err := fs.ReadFile(l.sys, path.Join("bus/pci/devices", pci, "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// mig reports whether a card is cut into instances.
func (l *library) mig(d nvml.Device) (bool, nvml.Return) {
	if !l.has("nvmlDeviceGetMigMode") {
		return false, nvml.ERROR_NOT_SUPPORTED
	}
	now, _, ret := d.GetMigMode()
	return ret == nvml.SUCCESS && now == nvml.DEVICE_MIG_ENABLE, ret
}

// instancesOf returns the handles of a card's MIG instances.
func instancesOf(d nvml.Device) ([]nvml.Device, nvml.Return) {
	most, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var out []nvml.Device
	for i := range most {
		switch one, ret := d.GetMigDeviceHandleByIndex(i); ret {
		case nvml.SUCCESS:
			out = append(out, one)
		case nvml.ERROR_NOT_FOUND: // an empty place
		default:
			return out, ret
		}
	}
	return out, nvml.SUCCESS
}

// instance asks one MIG instance of a card for everything.
func instance(d nvml.Device, of nvmlwire.GPU) (nvmlwire.Instance, error) {
	var out nvmlwire.Instance
	var err error
	check := func(what string, ret nvml.Return) {
		if ret != nvml.SUCCESS && err == nil {
			err = fmt.Errorf("read its %s: %w", what, failure(ret))
		}
	}
	var ret nvml.Return
	out.UUID, ret = d.GetUUID()
	check("UUID", ret)
	out.GPUInstance, ret = d.GetGpuInstanceId()
	check("number", ret)
	out.ComputeInstance, ret = d.GetComputeInstanceId()
	check("number", ret)
	attributes, ret := d.GetAttributes()
	check("size", ret)
	name, ret := d.GetName()
	if ret != nvml.SUCCESS {
		name = "" // older drivers have no names for them
	}
	if err != nil {
		return nvmlwire.Instance{}, err
	}
	out.Memory = int64(attributes.MemorySizeMB) << 20
	if out.Profile = profile(name, attributes, of.Memory); out.Profile == "" {
		return nvmlwire.Instance{}, errors.New("its profile has no name")
	}
	return out, nil
}

// profile is the name of an instance's size: what the driver calls it, or what its numbers say. NVIDIA counts memory in eighths
// of the card's, so that an instance of 9.75 GiB of 80 is "10gb", and one of 10.75 of 94 is "12gb".
func profile(name string, a nvml.DeviceAttributes, card int64) string {
	if _, size, ok := strings.Cut(name, "MIG "); ok && strings.Contains(size, "g.") {
		return strings.TrimSpace(size)
	}
	if a.GpuInstanceSliceCount == 0 || a.MemorySizeMB == 0 || card <= 0 {
		return ""
	}
	const parts, mib, gib = 8, 1 << 20, 1 << 30
	eighths := (int64(a.MemorySizeMB)*mib*parts + card - 1) / card
	whole := (card + gib - 1) / gib
	out := fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, (eighths*whole+parts/2)/parts)
	if a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount {
		out = fmt.Sprintf("%dc.%s", a.ComputeInstanceSliceCount, out)
	}
	return out
}
