// Package local is the host.Host of this machine: directories of package scratch, folders of package mount and runners
// behind sockets, which package runners reaches. It wires them and adds nothing.
package local

import (
	"context"
	"slices"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/scratch"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// Host wires the parts. All fields are required but Mounts: without it a kernel that needs folders is refused.
type Host struct {
	Scratch *scratch.Root
	Mounts  *mount.Mounts
	Runners *runners.Pool
	// RunnerPath is the runner's program on this machine.
	RunnerPath string
}

var _ host.Host = (*Host)(nil)

// Attach attaches folders; see host.Host.
func (h *Host) Attach(ctx context.Context, kernel cluster.KernelID, o host.Owner, folders []cluster.FolderMount) ([]runtime.Mount, error) {
	if h.Mounts == nil {
		return nil, fault.Invalidf("this agent mounts no folders")
	}
	return h.Mounts.Prepare(ctx, kernel, o.UID, o.GID, folders)
}

// Detach takes attached folders back; see host.Host.
func (h *Host) Detach(kernel cluster.KernelID) error {
	if h.Mounts == nil {
		return nil
	}
	return h.Mounts.Release(kernel)
}

// Prepare writes a kernel's directory; see host.Host.
func (h *Host) Prepare(kernel cluster.KernelID, c host.Content) ([]runtime.Mount, error) {
	l, err := h.Scratch.Prepare(kernel, c)
	if err != nil {
		return nil, err
	}
	out := []runtime.Mount{
		{Source: l.Private, Target: host.PrivateDir},
		{Source: h.RunnerPath, Target: host.PrivateDir + "/" + host.RunnerName, ReadOnly: true},
		{Source: l.Work, Target: host.Home},
		{Source: l.Config, Target: host.ConfigDir, ReadOnly: true},
		{Source: l.Passwd, Target: "/etc/passwd", ReadOnly: true},
		{Source: l.Group, Target: "/etc/group", ReadOnly: true},
	}
	for _, t := range l.Temporary {
		out = append(out, runtime.Mount{Source: t.Path, Target: t.Target})
	}
	return out, nil
}

// AddConfig adds a file to a kernel's configuration; see host.Host.
func (h *Host) AddConfig(kernel cluster.KernelID, f host.File) error {
	return h.Scratch.AddConfig(kernel, f)
}

// Runner reads the runner's configuration back; see host.Host.
func (h *Host) Runner(kernel cluster.KernelID) (run.Config, error) { return h.Scratch.Runner(kernel) }

// Result reads the result of a batch job; see host.Host.
func (h *Host) Result(kernel cluster.KernelID) (*run.BatchResult, error) {
	return h.Scratch.Result(kernel)
}

// Hello greets a runner; see host.Host.
func (h *Host) Hello(ctx context.Context, kernel cluster.KernelID, generation int64, token string) (run.Hello, error) {
	return h.Runners.Hello(ctx, kernel, generation, token)
}

// Forget drops connections to a runner; see host.Host.
func (h *Host) Forget(kernel cluster.KernelID, generation int64) {
	h.Runners.Forget(kernel, generation)
}

// List names the kernels that have a directory or mounts; see host.Host. What one of the two cannot tell does not hide the
// other's.
func (h *Host) List() ([]cluster.KernelID, error) {
	ids, _, err := h.Scratch.List()
	if h.Mounts != nil {
		mounted, _, merr := h.Mounts.List()
		ids = append(ids, mounted...)
		if err == nil {
			err = merr
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// Release puts everything of a kernel away, its mounts first; see host.Host.
func (h *Host) Release(kernel cluster.KernelID) error {
	if err := h.Detach(kernel); err != nil {
		return err
	}
	return h.Scratch.Release(kernel)
}

// Reap deletes what was put away; see host.Host.
func (h *Host) Reap(ctx context.Context) error { return h.Scratch.Reap(ctx) }
