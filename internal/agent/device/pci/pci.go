// Package pci reads where devices are attached: their PCI addresses, NUMA nodes and the bridges above them, from a file system of /sys.
// Device drivers use it. It keeps nothing and says nothing of slots.
package pci

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/alloc"
)

var address = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// Valid reports whether text is a PCI address as Linux writes it: "0000:07:00.0".
func Valid(text string) bool { return address.MatchString(text) }

// Dir is the directory of a device below /sys.
func Dir(addr string) string { return "bus/pci/devices/" + addr }

// Of returns the PCI address that a directory or link of /sys stands for, such as class/infiniband/mlx5_0/device; "" when it is none.
func Of(sys fs.FS, dir string) string {
	for _, p := range []string{dir, path.Join(dir, "device")} {
		if target, err := fs.ReadLink(sys, p); err == nil && Valid(path.Base(target)) {
			return path.Base(target)
		}
	}
	return ""
}

// NUMA returns the node that a device's directory below /sys names, -1 when it is unknown.
func NUMA(sys fs.FS, dir string) int {
	text, err := Line(sys, path.Join(dir, "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// maxLine bounds what Line returns.
const maxLine = 256

// Line reads the first line of a small file of /sys without the space around it.
func Line(sys fs.FS, file string) (string, error) {
	b, err := fs.ReadFile(sys, file)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(b[:min(len(b), maxLine)]), "\n")
	return strings.TrimSpace(line), nil
}

// Way is what is above a device, from the host bridge down: "pci0000:00", "0000:00:01.0". It does not contain the device.
type Way []string

// WayTo returns the way to a device, none when it is unknown.
func WayTo(sys fs.FS, addr string) Way {
	target, err := fs.ReadLink(sys, Dir(addr))
	if err != nil || path.Base(target) != addr {
		return nil
	}
	parts := strings.Split(path.Dir(target), "/")
	from := slices.IndexFunc(parts, func(p string) bool { return strings.HasPrefix(p, "pci") })
	if from < 0 {
		return nil
	}
	return parts[from:]
}

// Class is the distance class between two devices of known ways: a switch when they share a port of the host bridge, since only a switch
// (or one card) puts two devices behind it. It says nothing (0) of devices that share less.
func Class(a, b Way) int {
	if len(a) > 1 && len(b) > 1 && a[0] == b[0] && a[1] == b[1] {
		return alloc.DistanceSwitch
	}
	return 0
}

// maxAccelerators bounds what Accelerators returns.
const maxAccelerators = 256

// Accelerators lists the addresses of the display controllers (PCI class 03) and processing accelerators (12) of a host, in order.
func Accelerators(sys fs.FS) []string {
	entries, err := fs.ReadDir(sys, "bus/pci/devices")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if !Valid(e.Name()) || len(out) == maxAccelerators {
			continue
		}
		class, err := Line(sys, Dir(e.Name())+"/class")
		if err == nil && (strings.HasPrefix(class, "0x03") || strings.HasPrefix(class, "0x12")) {
			out = append(out, e.Name())
		}
	}
	return out
}
