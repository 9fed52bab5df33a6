package main

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/fault"
)

// Finding is something that should not be, or should be looked at.
type Finding struct {
	// Warning is true for what does not make doctor fail.
	Warning bool   `json:"warning,omitempty"`
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Problem string `json:"problem"`
	Next    string `json:"next,omitempty"`
}

// checkup is the whole answer of doctor.
type checkup struct {
	StateDir string            `json:"state_dir,omitempty"`
	Config   string            `json:"config,omitempty"` // of separate roles
	Running  bool              `json:"running"`
	Versions map[string]string `json:"versions"`
	Findings []Finding         `json:"findings"`
}

func (c checkup) sick() bool {
	for _, f := range c.Findings {
		if !f.Warning {
			return true
		}
	}
	return false
}

func fromAgent(in []agent.Finding) []Finding {
	var out []Finding
	for _, f := range in {
		object := f.Object
		if f.Kernel != "" && !strings.Contains(object, string(f.Kernel)) {
			object += " (kernel " + string(f.Kernel) + ")"
		}
		// Directories on their way out have an owner: the agent that deletes them in the background.
		out = append(out, Finding{Warning: f.Kind == "deletion", Kind: f.Kind, Object: object, Problem: f.Problem, Next: f.Next})
	}
	return out
}

func newDoctor() *cobra.Command {
	var dirFlag, config string
	var asJSON bool
	c := &cobra.Command{
		Use: "doctor", Short: "Look for leaks and name the versions of everything", Args: cobra.NoArgs,
		Long: "Look for containers, directories, mounts, sockets, processes and rows without an owner, and\n" +
			"name the versions of the engine and the kernel. Works on a running and on a stopped cluster;\n" +
			"with --config on those roles of that file that run alone on this machine.\n" +
			"Exits 1 when something is wrong.",
		Example: "  berth doctor\n  berth doctor --config berth.toml",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			var found checkup
			if config != "" {
				loaded, err := chassis.LoadFile(defaultSettings(), config, nil)
				if err != nil {
					return err
				}
				found = examineRoles(cmd.Context(), config, loaded.Value)
			} else {
				dir, err := findStateDir(dirFlag)
				if err != nil {
					return err
				}
				found = examine(cmd.Context(), dir)
			}
			if asJSON {
				err = printJSON(cmd, found)
			} else {
				printCheckup(cmd, found)
			}
			if err == nil && found.sick() {
				err = &frame.ExitError{Code: frame.ExitFailure}
			}
			return err
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "directory of the cluster")
	c.Flags().StringVar(&config, "config", "", "TOML file of roles that run alone")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON for programs")
	c.MarkFlagsMutuallyExclusive("state-dir", "config")
	return c
}

func printCheckup(cmd *cobra.Command, c checkup) {
	w := cmd.OutOrStdout()
	for _, k := range []string{"berth", "kernel", "cgroup", "engine", "engine api", "storage", "postgresql", "etcd", "redis"} {
		if v := c.Versions[k]; v != "" {
			fmt.Fprintf(w, "%-11s %s\n", k, v)
		}
	}
	for _, f := range c.Findings {
		mark := "WRONG"
		if f.Warning {
			mark = "note "
		}
		fmt.Fprintf(w, "%s  %s %s: %s\n", mark, f.Kind, f.Object, f.Problem)
		if f.Next != "" {
			fmt.Fprintf(w, "       next: %s\n", f.Next)
		}
	}
	state := "running"
	if !c.Running {
		state = "stopped"
	}
	what := "cluster in " + c.StateDir + " is"
	if c.Config != "" {
		what = "roles of " + c.Config + " are"
	}
	health := "well"
	if c.sick() {
		health = "not well"
	}
	say(cmd, "The %s %s %s.", state, what, health)
}

// examine gathers from the running cluster, or from what a stopped one left, and from the machine.
func examine(ctx context.Context, dir stateDir) checkup {
	c := checkup{StateDir: string(dir), Versions: map[string]string{"berth": chassis.Build().String()}, Findings: []Finding{}}
	machineVersions(c.Versions)
	s := defaultSettings()
	s.Agent.StateDir = dir.path("agent")
	rt, err := docker.New(s.Docker.docker(s.Agent), slog.New(slog.DiscardHandler))
	if err != nil {
		c.add(Finding{Kind: "engine", Object: "address", Problem: err.Error()})
	} else {
		defer rt.Close()
		c.engine(ctx, rt)
	}
	pid, held := dir.owner()
	c.Running = held
	if held {
		c.live(ctx, dir, pid)
	} else {
		c.stopped(ctx, dir, s.Agent, rt)
	}
	c.processes(ctx, dir, pid)
	c.mounts(dir)
	return c
}

func (c *checkup) add(f Finding) { c.Findings = append(c.Findings, f) }

func (c *checkup) engine(ctx context.Context, rt *docker.Runtime) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	info, err := rt.Info(ctx)
	if err != nil {
		next := fault.NextOf(err)
		if next == "" {
			next = "start the container engine"
		}
		c.add(Finding{Kind: "engine", Object: "container engine", Problem: err.Error(), Next: next})
		return
	}
	c.Versions["engine"], c.Versions["engine api"] = info.Name+" "+info.Version, info.APIVersion
	c.Versions["storage"] = info.StorageDriver
	for _, w := range info.Warnings {
		c.add(Finding{Warning: true, Kind: "engine", Object: info.Name, Problem: w})
	}
}

// live asks the running cluster.
func (c *checkup) live(ctx context.Context, dir stateDir, pid int) {
	r, err := dir.askStatus(ctx)
	if err != nil {
		c.add(Finding{Kind: "process", Object: "pid " + strconv.Itoa(pid), Problem: "it holds the state directory but does not answer: " + err.Error(), Next: "look at " + dir.logFile()})
		return
	}
	for k, v := range r.Backends {
		c.Versions[k] = v
	}
	for _, s := range r.Services {
		if notOK(s) {
			c.add(Finding{Kind: "service", Object: s.Name, Problem: strings.TrimSpace("is " + s.State + " " + s.Error), Next: "berth status; look at " + dir.logFile()})
		}
	}
	var found []Finding
	if err := dir.ask(ctx, "/findings", &found); err != nil {
		c.add(Finding{Kind: "cluster", Object: string(dir), Problem: err.Error(), Next: "berth status"})
	}
	c.Findings = append(c.Findings, found...)
}

func notOK(s chassis.CheckResult) bool { return !s.OK }

// stopped looks at what is on disk and in the engine. Containers with a record are not leaks:
// the next start takes them over.
func (c *checkup) stopped(ctx context.Context, dir stateDir, cfg agent.Config, rt *docker.Runtime) {
	if _, err := os.Stat(string(dir)); err != nil {
		c.add(Finding{Warning: true, Kind: "state", Object: string(dir), Problem: "there is no cluster here", Next: "berth up"})
		return
	}
	var look runtime.Runtime
	if rt != nil {
		look = rt
	}
	c.sockets(dir)
	found, err := agent.Findings(ctx, cfg, look)
	if err != nil {
		c.add(Finding{Kind: "agent", Object: cfg.StateDir, Problem: err.Error()})
	}
	c.Findings = append(c.Findings, fromAgent(found)...)
}

// sockets names those that a killed cluster left behind. They are harmless: the next start
// takes them away.
func (c *checkup) sockets(dir stateDir) {
	err := filepath.WalkDir(dir.path("run"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			c.add(Finding{Warning: true, Kind: "socket", Object: path, Problem: "nobody serves it", Next: "berth up takes it away"})
		}
		return nil // a directory that we may not read holds nothing of ours
	})
	if err != nil {
		c.add(Finding{Warning: true, Kind: "socket", Object: dir.path("run"), Problem: err.Error()})
	}
}

// dying is how long an orphan may take to end after its berth was killed.
const dying = 3 * time.Second

// processes finds children of the cluster that outlived it. The kernel tells children of a
// killed berth to stop; what is still ending is no leak, so it looks again for a while.
func (c *checkup) processes(ctx context.Context, dir stateDir, owner int) {
	orphans := findOrphans(dir, owner)
	for began := time.Now(); len(orphans) > 0 && time.Since(began) < dying; orphans = findOrphans(dir, owner) {
		if chassis.Wait(ctx, chassis.RealClock(), 20*time.Millisecond) != nil {
			break
		}
	}
	for _, o := range orphans {
		c.add(Finding{Kind: "process", Object: fmt.Sprintf("%s %d", o.name, o.pid), Problem: fmt.Sprintf("it serves %s but its berth is gone (parent %d)", dir, o.parent), Next: fmt.Sprintf("kill -INT %d", o.pid)})
	}
}

type orphan struct {
	name        string
	pid, parent int
}

func findOrphans(dir stateDir, owner int) []orphan {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []orphan
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == owner || pid == os.Getpid() {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(cmdline), "\x00")
		name := filepath.Base(args[0])
		if name != "postgres" && name != "redis-server" && name != "valkey-server" {
			continue
		}
		if !mentions(args[1:], string(dir)+"/") {
			continue
		}
		parent := parentOf(pid)
		if owner != 0 && (parent == owner || slices.Contains(childrenOf(owner), parent)) {
			continue // ours, or a process that ours has forked
		}
		out = append(out, orphan{name: name, pid: pid, parent: parent})
	}
	return out
}

// childrenOf lists the direct children of a process.
func childrenOf(pid int) []int {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var out []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(field); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

func mentions(args []string, prefix string) bool {
	for _, a := range args {
		if strings.HasPrefix(a, prefix) || strings.Contains(a, "="+prefix) {
			return true
		}
	}
	return false
}

func parentOf(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}

// mounts names what is mounted below the state directory on this host; nothing should be,
// because containers' mounts live in namespaces of their own.
func (c *checkup) mounts(dir stateDir) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return
	}
	defer f.Close()
	folders := dir.path("agent", "mounts") + "/" // the agent's own findings tell which of them have no owner
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], string(dir)+"/") && !strings.HasPrefix(fields[4], folders) {
			c.add(Finding{Kind: "mount", Object: fields[4], Problem: "it is mounted on the host and nothing owns it", Next: "umount " + fields[4]})
		}
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
