package rocm

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/agent/device/pci"
)

// topology is where KFD lists processors and GPUs, as nodes with numbers.
const topology = "class/kfd/kfd/topology/nodes"

// Bounds of what KFD may list.
const (
	maxNodes = 1024
	maxLinks = 1024 // of one node
)

// typeXGMI is the type of a link between GPUs that bypasses PCIe.
const typeXGMI = 11

// node is one node of KFD.
type node struct {
	number int
	gpu    uint64 // KFD's id of a GPU, 0 of processors
	simds  uint64
	pci    string
	unique uint64
	render int // the N of /dev/dri/renderDN
	model  string
	memory int64
	xgmi   map[int]bool // numbers of the nodes that it is joined to by XGMI
}

// isGPU reports whether a node computes: KFD gives an id to those that it may use, and processors have no SIMD units.
func (n node) isGPU() bool { return n.gpu != 0 && n.simds > 0 }

// readNodes reads the topology of KFD, in the order of its numbers.
func readNodes(sys fs.FS) ([]node, error) {
	entries, err := fs.ReadDir(sys, topology)
	if err != nil {
		return nil, err
	}
	if len(entries) > maxNodes {
		return nil, fmt.Errorf("KFD lists %d nodes, at most %d are read", len(entries), maxNodes)
	}
	var out []node
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n < 0 {
			continue
		}
		read, err := readNode(sys, n)
		if err != nil {
			return nil, err
		}
		out = append(out, read)
	}
	slices.SortFunc(out, func(a, b node) int { return a.number - b.number })
	return out, nil
}

func readNode(sys fs.FS, n int) (node, error) {
	dir := path.Join(topology, strconv.Itoa(n))
	out := node{number: n, xgmi: map[int]bool{}}
	id, err := pci.Line(sys, path.Join(dir, "gpu_id"))
	if err != nil {
		return out, err
	}
	out.gpu, _ = strconv.ParseUint(id, 10, 64) // what is no number is no GPU
	if out.gpu == 0 {
		return out, nil
	}
	p, err := properties(sys, path.Join(dir, "properties"))
	if err != nil {
		return out, err
	}
	out.simds, out.unique, out.render = p["simd_count"], p["unique_id"], int(min(p["drm_render_minor"], 1<<20))
	at := p["location_id"]
	out.pci = fmt.Sprintf("%04x:%02x:%02x.%x", p["domain"], at>>8&0xff, at>>3&0x1f, at&7)
	out.model = architecture(p["gfx_target_version"])
	banks, _ := fs.ReadDir(sys, path.Join(dir, "mem_banks")) // memory that is not told is unknown
	for _, b := range banks[:min(len(banks), maxLinks)] {
		bank, err := properties(sys, path.Join(dir, "mem_banks", b.Name(), "properties"))
		if err == nil && (bank["heap_type"] == 1 || bank["heap_type"] == 2) { // frame buffer, visible to the host or not
			out.memory += int64(min(bank["size_in_bytes"], 1<<50))
		}
	}
	links, _ := fs.ReadDir(sys, path.Join(dir, "io_links"))
	for _, l := range links[:min(len(links), maxLinks)] {
		link, err := properties(sys, path.Join(dir, "io_links", l.Name(), "properties"))
		if err == nil && link["type"] == typeXGMI {
			out.xgmi[int(min(link["node_to"], 1<<20))] = true
		}
	}
	return out, nil
}

// properties reads lines of "name number".
func properties(sys fs.FS, file string) (map[string]uint64, error) {
	b, err := fs.ReadFile(sys, file)
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) != 2 {
			continue
		}
		if v, err := strconv.ParseUint(f[1], 10, 64); err == nil {
			out[f[0]] = v
		}
	}
	return out, nil
}

// architecture names the instruction set of a version such as 90402: gfx942.
func architecture(version uint64) string {
	if version == 0 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", version/10000, version/100%100, version%100)
}

// number reads a file with one number.
func number(sys fs.FS, file string) (float64, bool) {
	line, err := pci.Line(sys, file)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseUint(line, 10, 63)
	return float64(v), err == nil
}

// uncorrectable reads the number of errors that could not be corrected from a counter of lines such as "ue: 0" and "ce: 3".
func uncorrectable(sys fs.FS, file string) uint64 {
	b, err := fs.ReadFile(sys, file)
	if err != nil {
		return 0 // a counter that cannot be read tells nothing
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "ue:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
			return n
		}
	}
	return 0
}

// isAbsent reports whether a file is not there, which older drivers and other cards do not have.
func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// measure reads what the amdgpu driver tells of a card. What it does not tell is absent.
func measure(sys fs.FS, dir string) map[string]float64 {
	out := map[string]float64{}
	read := func(name, file string, unit float64) {
		if _, told := out[name]; told {
			return
		}
		if v, ok := number(sys, file); ok {
			out[name] = v / unit
		}
	}
	read("rocm_util", path.Join(dir, "gpu_busy_percent"), 1)
	read("rocm_mem", path.Join(dir, "mem_info_vram_used"), 1)
	monitors, _ := fs.ReadDir(sys, path.Join(dir, "hwmon"))
	for _, m := range monitors[:min(len(monitors), 8)] {
		at := path.Join(dir, "hwmon", m.Name())
		read("rocm_power", path.Join(at, "power1_average"), 1e6) // microwatts
		read("rocm_power", path.Join(at, "power1_input"), 1e6)
		read("rocm_temperature", path.Join(at, "temp2_input"), 1e3) // the hottest place of the chip, in thousandths of a degree
		read("rocm_temperature", path.Join(at, "temp1_input"), 1e3)
	}
	return out
}
