// Package local is the host.Host of this machine: directories of package scratch, folders of package mount and runners
// behind sockets, which package runners reaches. It wires them and adds nothing.
package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"berth.dev/berth/internal/agent/confine"
	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/scratch"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// Host wires the parts. All fields are required but Mounts, without which a kernel that needs folders is refused, and Groups, without
// which the processes of sessions share their limits with the runner.
type Host struct {
	Groups  *confine.Maker
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
	return h.Mounts.Prepare(ctx, kernel, o, folders)
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
	home, folders := l.Work, c.Folders
	if h.Mounts != nil {
		if home, folders, err = h.Mounts.Home(kernel, l.Work, c.Folders); err != nil {
			return nil, err
		}
	}
	mounts := append([]runtime.Mount{
		{Source: home, Target: host.Home},
		{Source: l.Config, Target: host.ConfigDir, ReadOnly: true},
		{Source: l.Passwd, Target: "/etc/passwd", ReadOnly: true},
		{Source: l.Group, Target: "/etc/group", ReadOnly: true},
	}, folders...)
	for _, t := range l.Temporary {
		mounts = append(mounts, runtime.Mount{Source: t.Path, Target: t.Target})
	}
	return append(mounts,
		runtime.Mount{Source: l.Private, Target: host.PrivateDir},
		runtime.Mount{Source: h.RunnerPath, Target: host.PrivateDir + "/" + host.RunnerName, ReadOnly: true},
	), nil
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

// Traces reads what a runner left behind; see host.Host.
func (h *Host) Traces(kernel cluster.KernelID, generation int64) (host.Traces, error) {
	return h.Scratch.Traces(kernel, generation)
}

// Hello greets a runner; see host.Host.
func (h *Host) Hello(ctx context.Context, kernel cluster.KernelID, generation int64, token string) (run.Hello, error) {
	return h.Runners.Hello(ctx, kernel, generation, token)
}

// Verify compares the program that PID 1 executes with the runner; see host.Host. A process that this agent cannot look at is not
// of this host, or has ended: neither is this method's to judge.
func (h *Host) Verify(c runtime.Observed) error {
	proc := filepath.Join("/proc", strconv.Itoa(c.Pid))
	groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if c.Pid <= 0 || c.ID == "" || err != nil || !bytes.Contains(groups, []byte(c.ID)) {
		return nil
	}
	runs, err := os.Stat(filepath.Join(proc, "exe"))
	if err != nil {
		return nil
	}
	runner, err := os.Stat(h.RunnerPath)
	if err != nil {
		return fmt.Errorf("look at the runner: %w", err)
	}
	if !os.SameFile(runs, runner) {
		return fault.Deniedf("the first process of the container is not the runner").WithReason("not-the-runner").
			WithNext("look at the session's image and folders: something was mounted over the runner")
	}
	return nil
}

// Confine makes control groups and hands them to the runner; see host.Host.
func (h *Host) Confine(ctx context.Context, kernel cluster.KernelID, token string, c runtime.Observed) error {
	var files confine.Files
	if h.Groups != nil {
		files = h.Groups.Make(c.ID, c.Pid)
	}
	defer files.Close()
	return h.Runners.Confine(ctx, kernel, token, files.Procs, files.OOM)
}

// Withhold takes folders out of a container; see host.Host.
func (h *Host) Withhold(ctx context.Context, c runtime.Observed, list []cluster.Withheld) error {
	if h.Mounts == nil || len(list) == 0 {
		return nil // it has none
	}
	if c.Pid <= 0 {
		return fault.Unavailablef("the first process of the container is not known").WithNext("it is tried again")
	}
	if err := h.ofContainer(c); err != nil {
		return err
	}
	return h.Mounts.Withhold(ctx, c.Pid, list)
}

// ofContainer refuses a process that is not of the container, because its number was given to another one or the engine is elsewhere. One
// that is gone is no error.
func (h *Host) ofContainer(c runtime.Observed) error {
	groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Pid), "cgroup"))
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return fmt.Errorf("look at the container's first process: %w", err)
	case c.ID == "" || !bytes.Contains(groups, []byte(c.ID)):
		return fault.Invalidf("the containers of this engine are not processes of this host").WithReason(host.ReasonCannot)
	}
	return nil
}

// SetKeys tells the runner which SSH keys log in; see host.Host.
func (h *Host) SetKeys(ctx context.Context, kernel cluster.KernelID, token string, keys []string) error {
	return h.Runners.SetKeys(ctx, kernel, token, keys)
}

// SetPeers tells the runner who the kernels of its session are; see host.Host.
func (h *Host) SetPeers(ctx context.Context, kernel cluster.KernelID, token string, req run.PeersRequest) error {
	return h.Runners.SetPeers(ctx, kernel, token, req)
}

// Notice shows a text on terminals; see host.Host.
func (h *Host) Notice(ctx context.Context, kernel cluster.KernelID, token, text string) error {
	return h.Runners.Notice(ctx, kernel, token, text)
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
