package docker

import (
	_ "embed" // the profile
	"strings"
)

// systemCalls is the filter of system calls of every container, in the engine's format. The engine's own filter depends on its version:
// older ones leave io_uring and AF_VSOCK open, for example. This one names what is allowed; all else fails. Calls of kernels newer than
// the engine's library fail as unknown ones, so that programs fall back to others.
//
//go:embed seccomp.json
var systemCalls string

// securityOptions are the options of every container. An engine on a kernel without filters refuses containers that ask for one.
func (r *Runtime) securityOptions() []string {
	out := []string{"no-new-privileges"}
	if !r.unfiltered.Load() {
		out = append(out, "seccomp="+systemCalls)
	}
	return out
}

// noteFilters remembers whether the engine can filter system calls.
func (r *Runtime) noteFilters(securityOptions []string) {
	can := false
	for _, o := range securityOptions {
		can = can || strings.Contains(o, "seccomp")
	}
	r.unfiltered.Store(!can)
}
