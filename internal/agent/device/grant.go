package device

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// Grant is what a container gets so that it can use its devices, and no others.
type Grant struct {
	// Env are variables of the container and of everything in it. They replace what the image and the user set.
	Env map[string]string
	// Nodes are device files, CDI names devices that the engine injects by a specification of the Container Device Interface.
	Nodes  []runtime.DeviceNode
	CDI    []string
	Mounts []runtime.Mount
	// Groups are additional groups of the session's user, in order: those that own the device files.
	Groups []int
	// CPUSet are the host's cores that it may run on, in order; none means all.
	CPUSet []int
	// Memory is the limit in bytes; 0 means none.
	Memory int64
}

// Part is the grant of one driver.
type Part struct {
	Driver string
	Grant  Grant
}

// ReasonGrant is carried by faults of grants that contradict each other or cannot be used.
const ReasonGrant = "device-grant"

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	cdiName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9_-]*=[A-Za-z0-9][A-Za-z0-9._:-]*$`)
)

// Validate reports the first thing that no container can be given.
func (g Grant) Validate() error {
	bad := func(format string, args ...any) error { return fault.Invalidf(format, args...).WithReason(ReasonGrant) }
	for _, name := range slices.Sorted(maps.Keys(g.Env)) {
		if !envName.MatchString(name) || strings.ContainsRune(g.Env[name], 0) {
			return bad("variable %q cannot be set", name)
		}
	}
	for _, n := range g.Nodes {
		if runtime.CheckDevice("", n) != nil || !absolute(n.Source) || !absolute(n.Target) {
			return bad("device file %q cannot be given as %q with permissions %q", n.Source, n.Target, n.Permissions)
		}
	}
	for _, name := range g.CDI {
		if !cdiName.MatchString(name) {
			return bad("%q is not a device name of the form vendor/class=name", name)
		}
	}
	for _, m := range g.Mounts {
		if !absolute(m.Source) || !absolute(m.Target) || m.Target == "/" {
			return bad("%q cannot be mounted at %q", m.Source, m.Target)
		}
	}
	if len(g.CPUSet) > 0 && g.CPUSet[0] < 0 || !slices.IsSorted(g.CPUSet) || twice(g.CPUSet) {
		return bad("cores %v are not a set in order", g.CPUSet)
	}
	if err := runtime.CheckGroups("", g.Groups); err != nil || !slices.IsSorted(g.Groups) || twice(g.Groups) {
		return bad("groups %v are not a set of groups in order, without that of root", g.Groups)
	}
	if g.Memory < 0 {
		return bad("a memory limit of %d bytes is below zero", g.Memory)
	}
	return nil
}

// twice reports whether a number stands twice in a sorted list.
func twice(list []int) bool { return len(slices.Compact(slices.Clone(list))) != len(list) }

func absolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0)
}

// Merge joins the grants of several drivers. Drivers know nothing of each other, so two that give the same thing (a
// variable, a place in the container, a CDI device, cores or a memory limit) contradict each other, even with the same value.
// Groups are joined: one group may own the devices of several drivers.
func Merge(parts ...Part) (Grant, error) {
	out := Grant{Env: map[string]string{}}
	from := map[string]string{} // what was given -> the driver that gave it
	for _, p := range parts {
		if err := p.Grant.Validate(); err != nil {
			return Grant{}, fault.Invalidf("the grant of driver %s cannot be used: %v", p.Driver, err).WithReason(ReasonGrant)
		}
		for _, what := range p.Grant.claims() {
			if other, taken := from[what]; taken {
				return Grant{}, fault.Conflictf("drivers %s and %s both give %s", other, p.Driver, what).WithReason(ReasonGrant).
					WithNext("leave one of the two drivers out of this agent's configuration")
			}
			from[what] = p.Driver
		}
		maps.Copy(out.Env, p.Grant.Env)
		out.Nodes = append(out.Nodes, p.Grant.Nodes...)
		out.CDI = append(out.CDI, p.Grant.CDI...)
		out.Mounts = append(out.Mounts, p.Grant.Mounts...)
		out.Groups = append(out.Groups, p.Grant.Groups...)
		out.CPUSet = append(out.CPUSet, p.Grant.CPUSet...)
		out.Memory += p.Grant.Memory
	}
	slices.Sort(out.Groups)
	out.Groups = slices.Compact(out.Groups)
	return out, nil
}

// claims names everything that a grant gives, in words that end in an error.
func (g Grant) claims() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(g.Env)) {
		out = append(out, "variable "+name)
	}
	for _, n := range g.Nodes {
		out = append(out, "path "+n.Target)
	}
	for _, m := range g.Mounts {
		out = append(out, "path "+m.Target)
	}
	for _, name := range g.CDI {
		out = append(out, "CDI device "+name)
	}
	if len(g.CPUSet) > 0 {
		out = append(out, "cores")
	}
	if g.Memory > 0 {
		out = append(out, "a memory limit")
	}
	return out
}
