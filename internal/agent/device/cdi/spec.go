package cdi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"berth.dev/berth/internal/fault"
)

// Bounds of what specifications may say.
const (
	maxSpec       = 1 << 20 // bytes of one file
	maxEntries    = 1024    // of one directory
	maxDevices    = 1024    // of one kind on a host
	maxEdits      = 2048    // of one device, of every sort together
	maxName       = 128     // bytes of a device's name
	maxEditLength = 64 << 10
)

// entry is one device as a specification describes it.
type entry struct {
	name   string
	dir    string
	file   string
	shared *specs.ContainerEdits // of every device of the file
	own    *specs.ContainerEdits
	// problem says why the description cannot be used; "" when it can.
	problem string
}

// readSpecs returns the devices of a kind, by the order of their names. A directory that is not there holds nothing. A file that cannot be
// read, or that is broken and speaks of this kind, is an error: nobody knows which devices it would have described.
func readSpecs(ctx context.Context, dirs []string, kind string) ([]entry, error) {
	found := map[string]entry{}
	for _, dir := range dirs {
		here, err := readDir(ctx, dir, kind)
		if err != nil {
			return nil, err
		}
		for _, e := range here { // the last directory counts
			found[e.name] = e
		}
		if len(found) > maxDevices {
			return nil, fault.Invalidf("the specifications describe more than %d devices of kind %s", maxDevices, kind).
				WithNext("let names choose those that are to be given out, or correct the specifications")
		}
	}
	out := make([]entry, 0, len(found))
	for _, e := range found {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b entry) int { return natural(a.name, b.name) })
	return out, nil
}

// natural orders names so that 2 comes before 10.
func natural(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

// readDir returns the devices of a kind that one directory describes. Of a name that two files describe nobody knows which one is meant.
func readDir(ctx context.Context, dir, kind string) ([]entry, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read specifications in %s: %w", dir, err)
	}
	defer root.Close()
	f, err := root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("read specifications in %s: %w", dir, err)
	}
	list, err := f.ReadDir(maxEntries + 1)
	_ = f.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read specifications in %s: %w", dir, err)
	}
	if len(list) > maxEntries {
		return nil, fault.Invalidf("directory %s has more than %d entries", dir, maxEntries)
	}
	slices.SortFunc(list, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	var out []entry
	at := map[string]int{}
	for _, item := range list {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if ext := filepath.Ext(item.Name()); ext != ".json" && ext != ".yaml" || item.IsDir() {
			continue
		}
		file := filepath.Join(dir, item.Name())
		text, err := readSpec(root, item.Name())
		if errors.Is(err, os.ErrNotExist) && item.Type().IsRegular() {
			continue // it went away meanwhile
		}
		if err != nil {
			return nil, fault.Invalidf("specification %s cannot be read", file).WithCause(err).WithNext("correct or remove it")
		}
		devices, err := parseSpec(text, kind)
		if err != nil {
			return nil, fault.Invalidf("specification %s is refused", file).WithCause(err).WithNext("correct or remove it")
		}
		for _, e := range devices {
			e.dir, e.file = dir, file
			if i, twice := at[e.name]; twice {
				out[i].problem = fmt.Sprintf("two specifications describe it, %s and %s", out[i].file, file)
				continue
			}
			at[e.name] = len(out)
			out = append(out, e)
		}
		if len(out) > maxDevices {
			return nil, fault.Invalidf("the specifications in %s describe more than %d devices of kind %s", dir, maxDevices, kind).
				WithNext("correct them")
		}
	}
	return out, nil
}

// readSpec reads a file of a directory; one byte more than it may have says that it is too large. Links that lead out of the directory or
// nowhere are refused, and what is no file.
func readSpec(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fault.Invalidf("it is no file")
	}
	return io.ReadAll(io.LimitReader(f, maxSpec+1))
}

// parseSpec returns the devices that a specification describes, none when it is of another kind. A broken one is an error only if it speaks
// of this kind. It is pure.
func parseSpec(text []byte, kind string) ([]entry, error) {
	spec, err := decode(text)
	if err != nil {
		if !bytes.Contains(text, []byte(kind)) {
			return nil, nil
		}
		return nil, err
	}
	if spec.Kind != kind {
		return nil, nil
	}
	if err := specs.ValidateVersion(spec); err != nil {
		return nil, fault.Invalidf("its version is refused").WithCause(err)
	}
	if err := (&cdi.ContainerEdits{ContainerEdits: &spec.ContainerEdits}).Validate(); err != nil {
		return nil, fault.Invalidf("its edits are refused").WithCause(err)
	}
	if len(spec.Devices) > maxDevices {
		return nil, fault.Invalidf("it describes %d devices, at most %d can be used", len(spec.Devices), maxDevices)
	}
	var out []entry
	seen := map[string]bool{}
	for i := range spec.Devices {
		d := &spec.Devices[i]
		if err := parser.ValidateDeviceName(d.Name); err != nil || len(d.Name) > maxName {
			return nil, fault.Invalidf("devices[%d]: %q cannot name a device", i, d.Name[:min(len(d.Name), maxName)])
		}
		if seen[d.Name] {
			return nil, fault.Invalidf("it describes device %s twice", d.Name)
		}
		seen[d.Name] = true
		e := entry{name: d.Name, shared: &spec.ContainerEdits, own: &d.ContainerEdits}
		if err := (&cdi.ContainerEdits{ContainerEdits: &d.ContainerEdits}).Validate(); err != nil {
			e.problem = "its description is refused: " + err.Error()
		} else if n := count(e.shared) + count(e.own); n > maxEdits {
			e.problem = fmt.Sprintf("its description has %d parts, at most %d can be applied", n, maxEdits)
		}
		out = append(out, e)
	}
	return out, nil
}

// decode reads JSON or YAML. The library checks neither for entries that are null nor for texts without end, so that is done here, before
// it looks at them.
func decode(text []byte) (*specs.Spec, error) {
	if len(text) > maxSpec {
		return nil, fault.Invalidf("it is larger than %d bytes", maxSpec)
	}
	spec, err := cdi.ParseSpec(text)
	if err != nil {
		return nil, fault.Invalidf("it is no specification").WithCause(err)
	}
	if spec == nil {
		return nil, fault.Invalidf("it is empty")
	}
	edits := []*specs.ContainerEdits{&spec.ContainerEdits}
	for i := range spec.Devices {
		edits = append(edits, &spec.Devices[i].ContainerEdits)
	}
	for _, e := range edits {
		if slices.Contains(e.DeviceNodes, nil) || slices.Contains(e.Mounts, nil) || slices.Contains(e.Hooks, nil) ||
			slices.Contains(e.NetDevices, nil) {
			return nil, fault.Invalidf("an entry of its edits is empty")
		}
		for _, v := range e.Env {
			if len(v) > maxEditLength {
				return nil, fault.Invalidf("a variable is longer than %d bytes", maxEditLength)
			}
		}
	}
	return spec, nil
}

func count(e *specs.ContainerEdits) int {
	return len(e.Env) + len(e.DeviceNodes) + len(e.Mounts) + len(e.Hooks) + len(e.NetDevices) + len(e.AdditionalGIDs)
}
