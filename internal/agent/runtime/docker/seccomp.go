package docker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// setProject is FS_IOC_FSSETXATTR, the command of ioctl by which the owner of a file moves it to another
// project, and so out of its quota. Programs of 32 bits use the same number: its structure has no pointers.
const setProject = 0x401c5820

// filter says who filters the system calls of containers.
type filter int32

const (
	filterUnknown filter = iota // nobody has asked the engine yet
	filterBuiltin               // the engine's own profile, which ours replaces
	filterOther                 // the operator's profile or none: theirs to decide
)

// filterOf reads the engine's list of security options, such as "name=seccomp,profile=default" (before 22.06)
// or "name=seccomp,profile=builtin".
func filterOf(options []string) filter {
	for _, o := range options {
		if o == "name=seccomp,profile=default" || o == "name=seccomp,profile=builtin" {
			return filterBuiltin
		}
	}
	return filterOther
}

// ownUsers reports whether the engine gives containers a user namespace, in which the kernel lets nobody change projects.
func ownUsers(options []string) bool {
	return slices.ContainsFunc(options, func(o string) bool {
		name, _, _ := strings.Cut(o, ",")
		return name == "name=userns" || name == "name=rootless"
	})
}

// profile is the engine's default profile with ioctl allowed for all commands but setProject, as JSON. The engine
// fits it to the container's capabilities, the architecture and the kernel, as it does with its own. Calls that it
// does not name are refused, file_setattr among them.
var profile = sync.OnceValues(func() (string, error) {
	p := seccomp.DefaultProfile()
	removed := 0
	for _, call := range p.Syscalls {
		n := len(call.Names)
		call.Names = slices.DeleteFunc(call.Names, func(name string) bool { return name == "ioctl" })
		removed += n - len(call.Names)
	}
	if removed != 1 {
		return "", fmt.Errorf("the default seccomp profile names ioctl %d times, not once", removed)
	}
	// The kernel looks at the lower 32 bits of a command, a filter at all 64: "not equal" would let through the same
	// command with anything in the upper half. So each rule allows what differs in one bit of the lower half. They are
	// separate rules because conditions within one rule must all hold.
	for i := range 32 {
		bit := uint64(1) << i
		p.Syscalls = append(p.Syscalls, &seccomp.Syscall{LinuxSyscall: specs.LinuxSyscall{
			Names: []string{"ioctl"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 1, Op: specs.OpMaskedEqual, Value: bit, ValueTwo: ^uint64(setProject) & bit}},
		}})
	}
	text, err := json.Marshal(p)
	return string(text), err
})
