package cdi

import (
	"fmt"
	"maps"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/runtime"
)

// edits are what containers get, in the order in which the specification names it. Later ones replace earlier ones of the same name or
// place, as engines do it.
type edits struct {
	env    map[string]string
	nodes  []runtime.DeviceNode
	mounts []runtime.Mount
	groups []int
}

// apply adds what a specification says of a device. The problem says why it cannot be given without the engine's help. It is pure.
func (e *edits) apply(from *specs.ContainerEdits, ignored []string) (problem string) {
	for _, v := range from.Env {
		name, value, _ := strings.Cut(v, "=")
		if e.env == nil {
			e.env = map[string]string{}
		}
		e.env[name] = value
	}
	for _, n := range from.DeviceNodes {
		if problem := e.node(n); problem != "" {
			return problem
		}
	}
	for _, m := range from.Mounts {
		if problem := e.mount(m); problem != "" {
			return problem
		}
	}
	for _, h := range from.Hooks {
		if !ignores(ignored, h) {
			return fmt.Sprintf("its specification wants the hook %s %s to run, which needs an engine that knows CDI, or that ignore_hooks names it",
				h.HookName, hookText(h))
		}
	}
	for _, gid := range from.AdditionalGIDs {
		if gid == 0 {
			continue // engines leave it out, too
		}
		if gid > math.MaxInt32 {
			return fmt.Sprintf("its specification wants the group %d", gid)
		}
		e.groups = append(e.groups, int(gid))
	}
	switch {
	case from.IntelRdt != nil:
		return "its specification wants a class of Intel RDT, which needs an engine that knows CDI"
	case len(from.NetDevices) > 0:
		return fmt.Sprintf("its specification moves the network interface %s into containers, which needs an engine that knows CDI",
			from.NetDevices[0].HostInterfaceName)
	}
	return ""
}

func (e *edits) node(n *specs.DeviceNode) (problem string) {
	out := runtime.DeviceNode{Source: n.HostPath, Target: n.Path, Permissions: n.Permissions}
	if out.Source == "" {
		out.Source = n.Path
	}
	if out.Permissions == "" {
		out.Permissions = "rwm"
	}
	switch {
	case runtime.CheckDevice("", out) != nil && n.Permissions != cdi.NoPermissions:
		return fmt.Sprintf("its specification gives the device file %q as %q, which is no absolute path without ..", out.Source, out.Target)
	case n.Type == "p" || n.Permissions == cdi.NoPermissions:
		return fmt.Sprintf("its specification gives the device file %s in a way that needs an engine that knows CDI", out.Target)
	}
	e.nodes = slices.DeleteFunc(e.nodes, func(x runtime.DeviceNode) bool { return x.Target == out.Target })
	e.nodes = append(e.nodes, out)
	return ""
}

// harmless are options of mounts that a bind mount of the engine has anyway, or that add nothing in a container without privileges.
var harmless = []string{"", "rw", "ro", "bind", "rbind", "private", "rprivate", "slave", "rslave", "nosuid",
	"nodev", "relatime", "defaults"}

func (e *edits) mount(m *specs.Mount) (problem string) {
	absolute := func(p string) bool { return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0) }
	if !absolute(m.HostPath) || !absolute(m.ContainerPath) || m.HostPath == "/" || m.ContainerPath == "/" {
		return fmt.Sprintf("its specification mounts %q at %q, which are no absolute paths without ..", m.HostPath, m.ContainerPath)
	}
	switch m.Type {
	case "", "bind", "none":
	default:
		return fmt.Sprintf("its specification mounts a %s at %s, which needs an engine that knows CDI", m.Type, m.ContainerPath)
	}
	for _, o := range m.Options {
		if !slices.Contains(harmless, o) {
			return fmt.Sprintf("its specification mounts %s with the option %s, which needs an engine that knows CDI", m.ContainerPath, o)
		}
	}
	e.mounts = slices.DeleteFunc(e.mounts, func(x runtime.Mount) bool { return x.Target == m.ContainerPath })
	e.mounts = append(e.mounts, runtime.Mount{Source: m.HostPath, Target: m.ContainerPath, ReadOnly: slices.Contains(m.Options, "ro")})
	return ""
}

// ignores reports whether a hook need not run: its program, or the first argument of it, is named.
func ignores(ignored []string, h *specs.Hook) bool {
	return slices.Contains(ignored, h.Path) || slices.Contains(ignored, filepath.Base(h.Path)) ||
		len(h.Args) > 1 && slices.Contains(ignored, h.Args[1])
}

func hookText(h *specs.Hook) string {
	if len(h.Args) > 1 {
		return h.Path + " " + h.Args[1]
	}
	return h.Path
}

func (e *edits) grant() device.Grant {
	groups := slices.Clone(e.groups)
	slices.Sort(groups)
	return device.Grant{Env: maps.Clone(e.env), Nodes: slices.Clone(e.nodes), Mounts: slices.Clone(e.mounts), Groups: slices.Compact(groups)}
}

// editsOf joins what the specifications say of devices: of each file what all of its devices share, once, then what is of the device.
func editsOf(devices []*unit, ignored []string) (out edits, problem string) {
	shared := map[string]bool{}
	for _, u := range devices {
		if !shared[u.entry.file] {
			shared[u.entry.file] = true
			if problem := out.apply(u.entry.shared, ignored); problem != "" {
				return out, problem
			}
		}
		if problem := out.apply(u.entry.own, ignored); problem != "" {
			return out, problem
		}
	}
	return out, ""
}
