package cuda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// The kinds of CDI devices: those of NVIDIA's toolkit, and ours.
const (
	kindNVIDIA = "nvidia.com/gpu"
	kindOwn    = "berth.dev/gpu"
	specFile   = "berth.dev-gpu.json"
	// specVersion is the oldest version of the Container Device Interface that has all that our specification uses.
	specVersion = "0.5.0"
)

// method is how containers get devices now.
type method struct {
	// kind of the CDI names; "" means device files and mounts.
	kind string
	// control are the device files that every container with a GPU gets, caps those of MIG instances by UUID.
	control []string
	caps    map[string][]string
	// libraries are the driver's files for containers.
	libraries []runtime.Mount
	// cgroup2 and limits: the engine's control groups are of version 2, and the toolkit's hook sets memory limits.
	cgroup2, limits bool
}

// inject looks which method works. It writes our specification when the engine is to use it.
func (d *Driver) inject(ctx context.Context, m machine) method {
	root := d.o.Root
	out := method{control: controlNodes(root), caps: capsOf(root, m)}
	var info runtime.Info
	known := false
	if d.o.Engine != nil {
		ctx, cancel := context.WithTimeout(ctx, engineLook)
		defer cancel()
		var err error
		if info, err = d.o.Engine(ctx); err == nil {
			known = true
		}
	}
	out.cgroup2 = info.CgroupVersion == 2
	wants := d.o.Config.Inject
	if wants != Nodes {
		names, limits, err := nvidiaNames(root, info.CDI)
		if err != nil {
			d.warn("nvidia-spec", "a specification of NVIDIA's devices cannot be read", err)
		}
		if covers(names, m) {
			out.kind, out.limits = kindNVIDIA, limits
			return out
		}
	}
	var err error
	if out.libraries, err = librariesOf(root, d.o.Config.Libraries, m.driver); err != nil && len(m.cards) > 0 {
		d.warn("libraries", "the libraries of the NVIDIA driver are not found; containers need their own", err)
	}
	if wants == Nodes || !slices.Contains(info.CDI, d.o.Config.SpecDir) {
		if wants == CDI && known {
			d.warn("cdi", "agent.cuda.inject is cdi, and the engine reads no specification below agent.cuda.spec_dir", nil)
		}
		return out
	}
	if err := writeSpec(filepath.Join(root, d.o.Config.SpecDir), specOf(m, out)); err != nil {
		d.warn("spec", "the specification of GPUs cannot be written; containers get device files instead", err)
		return out
	}
	out.kind = kindOwn
	return out
}

// warn logs something the first time.
func (d *Driver) warn(key, message string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.once(key, message, "err", err)
}

// covers reports whether a specification names everything that this host gives out.
func covers(names map[string]bool, m machine) bool {
	for _, id := range slices.Concat(m.order, m.offered) {
		if !names[id] {
			return false
		}
	}
	return len(names) > 0 && len(m.order)+len(m.offered) > 0
}

// nvidiaSpec is the part of a specification that matters here.
type nvidiaSpec struct {
	Kind    string `yaml:"kind"`
	Devices []struct {
		Name string `yaml:"name"`
	} `yaml:"devices"`
}

// Bounds of what is read of specifications.
const (
	maxSpec  = 4 << 20
	maxSpecs = 64
)

// limitsHook is the toolkit's command that turns variables into memory limits of a container.
const limitsHook = "apply-cuda-memory-limits"

// nvidiaNames reads which devices NVIDIA's specifications name in the directories of the engine, and whether the toolkit's hook sets memory
// limits. Later directories replace earlier ones for an engine; here all names count.
func nvidiaNames(root string, dirs []string) (names map[string]bool, limits bool, err error) {
	names = map[string]bool{}
	var errs []error
	seen := 0
	for _, dir := range dirs {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			if ext := path.Ext(e.Name()); ext != ".yaml" && ext != ".json" || e.Name() == specFile {
				continue
			}
			if seen++; seen > maxSpecs {
				return names, limits, fault.Invalidf("there are more than %d specifications of devices", maxSpecs)
			}
			b, err := readBounded(filepath.Join(root, dir, e.Name()))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if !bytes.Contains(b, []byte(kindNVIDIA)) {
				continue // of another vendor: need not be parsed
			}
			var spec nvidiaSpec
			if err := yaml.Unmarshal(b, &spec); err != nil {
				errs = append(errs, fmt.Errorf("read %s: %w", e.Name(), err))
				continue
			}
			if spec.Kind != kindNVIDIA {
				continue
			}
			for _, x := range spec.Devices {
				names[x.Name] = true
			}
			limits = limits || bytes.Contains(b, []byte(limitsHook))
		}
	}
	return names, limits, errors.Join(errs...)
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSpec+1))
	if err == nil && len(b) > maxSpec {
		err = fault.Invalidf("%s is larger than %d bytes", file, maxSpec)
	}
	return b, err
}

// controlNodes are the device files by which programs reach the driver itself.
func controlNodes(root string) []string {
	out := []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} // without these no program computes: a container that cannot have them fails
	if _, err := os.Stat(filepath.Join(root, "/dev/nvidia-uvm-tools")); err == nil {
		out = append(out, "/dev/nvidia-uvm-tools")
	}
	return out
}

// capsOf finds the device files that open MIG instances.
func capsOf(root string, m machine) map[string][]string {
	out := map[string][]string{}
	for id, i := range m.instances {
		gi := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", m.cards[i.card].Minor, i.GPUInstance)
		var nodes []string
		for _, file := range []string{gi + "/access", fmt.Sprintf("%s/ci%d/access", gi, i.ComputeInstance)} {
			b, err := readBounded(filepath.Join(root, file))
			if err != nil {
				break
			}
			for line := range strings.Lines(string(b)) {
				if n, ok := strings.CutPrefix(line, "DeviceFileMinor:"); ok {
					if minor, err := strconv.Atoi(strings.TrimSpace(n)); err == nil && minor >= 0 {
						nodes = append(nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
					}
				}
			}
		}
		if len(nodes) == 2 {
			out[id] = nodes
		}
	}
	return out
}

// wanted are the libraries with which programs compute, encode and measure; the rest draws.
var wanted = []string{"libcuda", "libcudadebugger", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-gpucomp",
	"libnvidia-cfg", "libnvidia-opencl", "libnvidia-allocator", "libnvidia-pkcs11-openssl3", "libnvcuvid", "libnvidia-encode",
	"libnvidia-opticalflow"}

// places are the directories in which programs of images look for libraries without being told: those of Debian and of Red Hat.
var places = map[string][]string{
	"amd64": {"/usr/lib/x86_64-linux-gnu", "/usr/lib64"}, "arm64": {"/usr/lib/aarch64-linux-gnu", "/usr/lib64"},
}

// librariesOf finds the driver's libraries, by every name that programs use, and nvidia-smi.
func librariesOf(root string, dirs []string, driver string) ([]runtime.Mount, error) {
	for _, dir := range dirs {
		if driver == "" {
			break
		}
		if _, err := os.Stat(filepath.Join(root, dir, "libcuda.so."+driver)); err != nil {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return nil, err
		}
		var out []runtime.Mount
		for _, e := range entries {
			stem, version, ok := strings.Cut(e.Name(), ".so")
			if !ok || !slices.Contains(wanted, stem) || version == "" && stem != "libcuda" {
				continue
			}
			for _, place := range places[architecture] {
				out = append(out, runtime.Mount{Source: path.Join(dir, stem+".so."+driver), Target: path.Join(place, e.Name()), ReadOnly: true})
			}
		}
		out = slices.DeleteFunc(out, func(m runtime.Mount) bool {
			_, err := os.Stat(filepath.Join(root, m.Source))
			return err != nil
		})
		for _, smi := range []string{"/usr/bin/nvidia-smi", path.Join(dir, "../bin/nvidia-smi")} {
			if _, err := os.Stat(filepath.Join(root, smi)); err == nil {
				return append(out, runtime.Mount{Source: smi, Target: "/usr/bin/nvidia-smi", ReadOnly: true}), nil
			}
		}
		return out, nil
	}
	return nil, fault.NotFoundf("libcuda.so.%s is in none of %s", driver, strings.Join(dirs, ", ")).
		WithNext("add its directory to agent.cuda.libraries, or install NVIDIA's container toolkit")
}

// nodesOf are the device files of a card or an instance, beside those that all have.
func nodesOf(m machine, how method, id string) ([]string, error) {
	if g, ok := m.cards[id]; ok {
		return []string{fmt.Sprintf("/dev/nvidia%d", g.Minor)}, nil
	}
	caps := how.caps[id]
	if len(caps) == 0 {
		return nil, fault.Unavailablef("the driver does not say which device files open MIG instance %s", id).
			WithNext("look below /proc/driver/nvidia/capabilities")
	}
	return append([]string{fmt.Sprintf("/dev/nvidia%d", m.cards[m.instances[id].card].Minor)}, caps...), nil
}

// specOf describes all devices of the host to engines, so that several agents on it write the same.
func specOf(m machine, how method) specs.Spec {
	nodes := func(list []string) []*specs.DeviceNode {
		var out []*specs.DeviceNode
		for _, p := range list {
			out = append(out, &specs.DeviceNode{Path: p, HostPath: p, Permissions: "rw"})
		}
		return out
	}
	out := specs.Spec{Version: specVersion, Kind: kindOwn, Devices: []specs.Device{}}
	out.ContainerEdits.DeviceNodes = nodes(how.control)
	for _, l := range how.libraries {
		out.ContainerEdits.Mounts = append(out.ContainerEdits.Mounts,
			&specs.Mount{HostPath: l.Source, ContainerPath: l.Target, Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
	for _, id := range slices.Concat(sorted(m.cards), sorted(m.instances)) {
		if list, err := nodesOf(m, how, id); err == nil {
			out.Devices = append(out.Devices, specs.Device{Name: id, ContainerEdits: specs.ContainerEdits{DeviceNodes: nodes(list)}})
		}
	}
	return out
}

// writeSpec replaces the specification when it differs. An engine that reads it meanwhile sees the old or the new one, whole.
func writeSpec(dir string, spec specs.Spec) error {
	b, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, specFile)
	if old, err := readBounded(file); err == nil && bytes.Equal(old, b) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the specification of GPUs: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".berth-*") // engines read names that end in .json or .yaml
	if err != nil {
		return fmt.Errorf("write the specification of GPUs: %w", err)
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("write the specification of GPUs: %w", err)
	}
	return nil
}
