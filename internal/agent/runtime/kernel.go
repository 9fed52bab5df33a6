package runtime

import (
	"math"
	"path"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// CheckKernel refuses ids that could not safely become part of a container's name or of a
// request's path: 1 to 64 letters, digits and dashes.
func CheckKernel(kernel cluster.KernelID) error {
	ok := kernel != "" && len(kernel) <= 64
	for _, c := range []byte(kernel) {
		ok = ok && (c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	if !ok {
		return fault.Invalidf("kernel id %q cannot name a container", kernel)
	}
	return nil
}

// CheckDevice refuses a device file that no engine should be asked for.
func CheckDevice(kernel cluster.KernelID, d DeviceNode) error {
	clean := func(p string) bool { return path.IsAbs(p) && path.Clean(p) == p }
	if !clean(d.Source) || !clean(d.Target) || d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
		return fault.Invalidf("kernel %s asks for device %q as %q with permissions %q", kernel, d.Source, d.Target, d.Permissions)
	}
	return nil
}

// maxGroups bounds the additional groups of one container.
const maxGroups = 64

// CheckGroups refuses groups that no session may have: that of root above all.
func CheckGroups(kernel cluster.KernelID, groups []int) error {
	if len(groups) > maxGroups {
		return fault.Invalidf("kernel %s asks for %d groups, at most %d can be given", kernel, len(groups), maxGroups)
	}
	for _, g := range groups {
		if g <= 0 || g > math.MaxInt32 {
			return fault.Invalidf("kernel %s asks for group %d, which is not between 1 and %d", kernel, g, math.MaxInt32)
		}
	}
	return nil
}

// CheckNetworks refuses a container that would be in the network of its host and not say so, or in others as well.
func CheckNetworks(id Identity, list []Network) error {
	host := false
	for _, n := range list {
		host = host || n.Name == NetworkHost
	}
	switch {
	case host != id.HostNetwork:
		return fault.Invalidf("kernel %s does not name its network by its labels", id.Kernel)
	case host && len(list) > 1:
		return fault.Invalidf("kernel %s asks for the network of its host and others, which no container can have", id.Kernel)
	}
	return nil
}

// Steps are the directories on the way to an absolute path, from the top to the path itself: /a and /a/b for /a/b.
func Steps(p string) []string {
	p = path.Clean("/" + p)
	var out []string
	for i := 1; i < len(p); i++ {
		if p[i] == '/' {
			out = append(out, p[:i])
		}
	}
	if p != "/" {
		out = append(out, p)
	}
	return out
}
