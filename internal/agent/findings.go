package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/scratch"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Finding is something on this host that belongs to the agent and has no owner, or an
// owner that should have let go of it.
type Finding struct {
	// Kind is container, mount, scratch, deletion, log, ledger, engine, disk, disk-bounds, user-numbers, host-ports or network.
	Kind string `json:"kind"`
	// Object names it; Kernel is empty when it belongs to none.
	Object string           `json:"object"`
	Kernel cluster.KernelID `json:"kernel,omitempty"`
	// Problem and Next are for people.
	Problem string `json:"problem"`
	Next    string `json:"next,omitempty"`
}

// Findings looks at this agent's containers, directories and records. Kernels that live, and
// ended ones that wait for the manager's acknowledgement, are no findings.
func (a *Agent) Findings(ctx context.Context) ([]Finding, error) {
	out, err := findings(ctx, a.c, a.d.Runtime, a.ledger, a.scratch, true)
	if err != nil {
		return nil, err
	}
	out = append(out, a.diskFindings()...)
	for _, w := range a.facts.users() {
		out = append(out, Finding{Kind: "user-numbers", Object: a.c.ID, Problem: w, Next: "docs/isolation.md says who has a number of its own"})
	}
	if a.network != nil {
		if broken := a.network.Check(ctx); broken != nil {
			out = append(out, Finding{Kind: "network", Object: a.network.Name(), Problem: broken.Error(), Next: fault.NextOf(broken)})
		}
	}
	return out, nil
}

// Findings asks the running agent of a state directory, or looks itself when none runs.
// rt may be nil: then containers are not looked at.
func Findings(ctx context.Context, c Config, rt runtime.Runtime) ([]Finding, error) {
	if found, err := askFindings(ctx, c.SocketPath()); err == nil {
		return found, nil
	}
	l, err := ledger.OpenReadOnly(c.ledgerFile())
	if fault.Is(err, fault.NotFound) {
		l, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for leaks of the agent: %w", err)
	}
	if l != nil {
		defer l.Close()
	}
	var root *scratch.Root
	if _, err := os.Stat(c.scratchDir()); err == nil {
		if root, err = scratch.Open(c.scratchDir(), 0); err != nil {
			return nil, err
		}
	}
	return findings(ctx, c, rt, l, root, false)
}

func askFindings(ctx context.Context, socket string) ([]Finding, error) {
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return chassis.DialUnix(ctx, socket) },
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/findings", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	var found []Finding
	return found, json.NewDecoder(resp.Body).Decode(&found)
}

// findings looks at what an agent has. runs says that the agent itself looks: what it is about to remove is no finding then.
func findings(ctx context.Context, c Config, rt runtime.Runtime, l *ledger.Ledger, root *scratch.Root, runs bool) ([]Finding, error) {
	out := []Finding{}
	records := map[cluster.KernelID]*ledger.Record{}
	if l != nil {
		for _, r := range l.Records() {
			records[r.Kernel] = r
		}
		for _, id := range l.Broken() {
			out = append(out, Finding{Kind: "ledger", Object: id, Problem: "this record cannot be read",
				Next: "start the agent; it adopts the container by its labels"})
		}
	}
	containers := map[cluster.KernelID]bool{}
	if rt != nil {
		list, err := rt.List(ctx)
		if err != nil {
			out = append(out, Finding{Kind: "engine", Object: "containers", Problem: err.Error(), Next: fault.NextOf(err)})
		}
		for _, o := range list {
			id := o.Identity.Kernel
			containers[id] = true
			switch r := records[id]; {
			case r == nil:
				out = append(out, Finding{Kind: "container", Object: o.ID, Kernel: id, Problem: "no record owns this container",
					Next: "start the agent; it removes it after two looks"})
			case r.Fenced:
				out = append(out, Finding{Kind: "container", Object: o.ID, Kernel: id, Problem: "it could not be removed when its kernel ended",
					Next: "look at the engine's log; the agent tries again"})
			case !runs && r.Final == nil && r.Stopping != nil && !r.Stopping.Restart:
				out = append(out, Finding{Kind: "container", Object: o.ID, Kernel: id, Problem: "its session was ended, and it is still there",
					Next: "berth down --sessions, or start the agent; both remove it"})
			case r.Final != nil && time.Since(r.EndsAt) > time.Minute:
				out = append(out, Finding{Kind: "container", Object: o.ID, Kernel: id, Problem: "its kernel has ended",
					Next: "start the agent; it removes it"})
			}
		}
	}
	if rt != nil {
		out = append(out, leaseFindings(records, containers, time.Now())...)
	}
	if root != nil {
		ids, strangers, err := root.List()
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			switch r := records[id]; {
			case r == nil && !containers[id]:
				out = append(out, Finding{Kind: "scratch", Object: root.Layout(id).Dir, Kernel: id, Problem: "no record owns this directory",
					Next: "start the agent; it removes it after two looks"})
			case r != nil && r.Final != nil && time.Since(r.EndsAt) > time.Minute:
				out = append(out, Finding{Kind: "scratch", Object: root.Layout(id).Dir, Kernel: id, Problem: "its kernel has ended",
					Next: "start the agent; it removes it"})
			}
		}
		for _, name := range strangers {
			out = append(out, Finding{Kind: "scratch", Object: filepath.Join(c.scratchDir(), name), Problem: "this is no kernel's directory",
				Next: "remove it if you do not know it"})
		}
		if n := root.Gone(); n > 0 {
			out = append(out, Finding{Kind: "deletion", Object: c.scratchDir(), Problem: strconv.Itoa(n) + " old directories wait to be deleted",
				Next: "wait a moment; if they stay, look at the agent's log"})
		}
	}
	if !runs && rt != nil && len(containers) == 0 {
		space, interfaces, err := network.Left(c.Scope(), cluster.AgentID(c.ID))
		if err == nil && len(interfaces) > 0 { // who may not look sees none
			out = append(out, Finding{Kind: "network", Object: space, Problem: "networks of sessions are left without a container: " +
				strings.Join(interfaces, ", "), Next: "start the agent, or berth down --sessions; both remove them"})
		}
	}
	mounted, err := mountFindings(c.mountDir(), records, containers)
	if err != nil {
		return nil, err
	}
	out = append(out, mounted...)
	logs, _ := os.ReadDir(filepath.Join(c.StateDir, "logs")) // there is none before the first end
	for _, e := range logs {
		id, ok := cluster.CanonicalUUID(trimLog(e.Name()))
		if !ok || records[cluster.KernelID(id)] == nil {
			out = append(out, Finding{Kind: "log", Object: filepath.Join(c.StateDir, "logs", e.Name()), Problem: "no record owns this log",
				Next: "remove it"})
		}
	}
	return out, nil
}

// mountFindings names mounts of folders whose kernels are not here any more, and what is no mount.
func mountFindings(dir string, records map[cluster.KernelID]*ledger.Record, containers map[cluster.KernelID]bool) ([]Finding, error) {
	ids, strangers, err := mount.List(dir)
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, id := range ids {
		path := filepath.Join(dir, string(id))
		switch r := records[id]; {
		case r == nil && !containers[id]:
			out = append(out, Finding{Kind: "mount", Object: path, Kernel: id, Problem: "no record owns these mounts of folders",
				Next: "start the agent; it unmounts them after two looks"})
		case r != nil && r.Final != nil && time.Since(r.EndsAt) > time.Minute:
			out = append(out, Finding{Kind: "mount", Object: path, Kernel: id, Problem: "the kernel of these mounts of folders has ended",
				Next: "start the agent; it unmounts them"})
		}
	}
	for _, name := range strangers {
		out = append(out, Finding{Kind: "mount", Object: filepath.Join(dir, name),
			Problem: "this is no mount of a folder; files may have been written while a folder was not mounted",
			Next:    "look at the files, and remove them if you do not need them"})
	}
	return out, nil
}

func trimLog(name string) string { return name[:max(0, len(name)-len(filepath.Ext(name)))] }
