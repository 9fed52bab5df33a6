// Package doctor looks for what should not be: containers, directories, mounts, sockets, processes and rows without an owner, on a
// running and on a stopped cluster. It changes nothing. The command `berth doctor` calls it.
package doctor

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/platform"
)

// Checkup is the whole answer of doctor.
type Checkup struct {
	StateDir string             `json:"state_dir,omitempty"`
	Config   string             `json:"config,omitempty"` // of separate roles
	Running  bool               `json:"running"`
	Versions map[string]string  `json:"versions"`
	Findings []platform.Finding `json:"findings"`
}

// Sick reports whether something is wrong.
func (c Checkup) Sick() bool {
	for _, f := range c.Findings {
		if !f.Warning {
			return true
		}
	}
	return false
}

// Examine gathers from the running cluster, or from what a stopped one left, and from the machine.
func Examine(ctx context.Context, dir platform.StateDir) Checkup {
	c := Checkup{StateDir: string(dir), Versions: map[string]string{"berth": chassis.Build().String()}, Findings: []platform.Finding{}}
	machineVersions(c.Versions)
	s := platform.DefaultSettings()
	s.Agent.StateDir = dir.Path("agent")
	rt, err := s.Engine(slog.New(slog.DiscardHandler))
	if err != nil {
		c.add(platform.Finding{Kind: "engine", Object: "address", Problem: err.Error()})
	} else {
		defer rt.Close()
		c.engine(ctx, rt)
	}
	pid, held := dir.Owner()
	c.Running = held
	if held {
		c.live(ctx, dir, pid)
	} else {
		c.stopped(ctx, dir, s.Agent, rt)
	}
	c.processes(ctx, dir, pid)
	c.mounts(dir, dir.Path("agent"))
	c.limits()
	return c
}

func (c *Checkup) add(f platform.Finding) { c.Findings = append(c.Findings, f) }

func (c *Checkup) engine(ctx context.Context, rt *docker.Runtime) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	info, err := rt.Info(ctx)
	if err != nil {
		next := fault.NextOf(err)
		if next == "" {
			next = "start the container engine"
		}
		c.add(platform.Finding{Kind: "engine", Object: "container engine", Problem: err.Error(), Next: next})
		return
	}
	c.Versions["engine"], c.Versions["engine api"] = info.Name+" "+info.Version, info.APIVersion
	c.Versions["storage"] = info.StorageDriver
	for _, w := range info.Warnings {
		c.add(platform.Finding{Warning: true, Kind: "engine", Object: info.Name, Problem: w})
	}
}

// live asks the running cluster.
func (c *Checkup) live(ctx context.Context, dir platform.StateDir, pid int) {
	r, err := dir.Status(ctx)
	if err != nil {
		c.add(platform.Finding{Kind: "process", Object: "pid " + strconv.Itoa(pid),
			Problem: "it holds the state directory but does not answer: " + err.Error(), Next: "look at " + dir.LogFile()})
		return
	}
	for k, v := range r.Backends {
		c.Versions[k] = v
	}
	for _, s := range r.Services {
		if !s.OK {
			c.add(platform.Finding{Kind: "service", Object: s.Name, Problem: strings.TrimSpace("is " + s.State + " " + s.Error),
				Next: "berth status; look at " + dir.LogFile()})
		}
	}
	found, err := dir.Findings(ctx)
	if err != nil {
		c.add(platform.Finding{Kind: "cluster", Object: string(dir), Problem: err.Error(), Next: "berth status"})
	}
	c.Findings = append(c.Findings, found...)
}

// stopped looks at what is on disk and in the engine. Containers with a record are not leaks:
// the next start takes them over.
func (c *Checkup) stopped(ctx context.Context, dir platform.StateDir, cfg agent.Config, rt *docker.Runtime) {
	if _, err := os.Stat(string(dir)); err != nil {
		c.add(platform.Finding{Warning: true, Kind: "state", Object: string(dir), Problem: "there is no cluster here", Next: "berth up"})
		return
	}
	var look runtime.Runtime
	if rt != nil {
		look = rt
	}
	c.sockets(dir)
	found, err := agent.Findings(ctx, cfg, look)
	if err != nil {
		c.add(platform.Finding{Kind: "agent", Object: cfg.StateDir, Problem: err.Error()})
	}
	c.Findings = append(c.Findings, platform.AgentFindings(found)...)
}

// sockets names those that a killed cluster left behind. They are harmless: the next start
// takes them away.
func (c *Checkup) sockets(dir platform.StateDir) {
	err := filepath.WalkDir(dir.Path("run"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			c.add(platform.Finding{Warning: true, Kind: "socket", Object: path, Problem: "nobody serves it", Next: "berth up takes it away"})
		}
		return nil // a directory that we may not read holds nothing of ours
	})
	if err != nil {
		c.add(platform.Finding{Warning: true, Kind: "socket", Object: dir.Path("run"), Problem: err.Error()})
	}
}

func machineVersions(v map[string]string) {
	var u syscall.Utsname
	if syscall.Uname(&u) == nil {
		v["kernel"] = utsname(u.Release[:]) + " " + utsname(u.Machine[:])
	}
	v["cgroup"] = "v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		v["cgroup"] = "v2"
	}
}

func utsname[T int8 | uint8](text []T) string {
	var b strings.Builder
	for _, c := range text {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
