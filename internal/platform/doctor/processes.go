package doctor

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/platform"
)

// dying is how long an orphan may take to end after its berth was killed.
const dying = 3 * time.Second

// processes finds children of the cluster that outlived it. The kernel tells children of a
// killed berth to stop; what is still ending is no leak, so it looks again for a while.
func (c *Checkup) processes(ctx context.Context, dir platform.StateDir, owner int) {
	orphans := findOrphans(dir, owner)
	for began := time.Now(); len(orphans) > 0 && time.Since(began) < dying; orphans = findOrphans(dir, owner) {
		if chassis.Wait(ctx, chassis.RealClock(), 20*time.Millisecond) != nil {
			break
		}
	}
	for _, o := range orphans {
		c.add(platform.Finding{Kind: "process", Object: fmt.Sprintf("%s %d", o.name, o.pid),
			Problem: fmt.Sprintf("it serves %s but its berth is gone (parent %d)", dir, o.parent), Next: fmt.Sprintf("kill -INT %d", o.pid)})
	}
}

type orphan struct {
	name        string
	pid, parent int
}

func findOrphans(dir platform.StateDir, owner int) []orphan {
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
// because containers' mounts live in namespaces of their own. agentDir is the agent's directory, dir itself where it runs alone.
func (c *Checkup) mounts(dir platform.StateDir, agentDir string) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return
	}
	defer f.Close()
	// The agent's own findings tell which mounts of folders, and which disks of kernels, have no owner.
	folders, kernels := filepath.Join(agentDir, "mounts")+"/", filepath.Join(agentDir, "kernels")+"/"
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], string(dir)+"/") && !strings.HasPrefix(fields[4], folders) &&
			!strings.HasPrefix(fields[4], kernels) {
			c.add(platform.Finding{Kind: "mount", Object: fields[4], Problem: "it is mounted on the host and nothing owns it",
				Next: "umount " + fields[4]})
		}
	}
}
