package doctor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/platform"
	"berth.dev/berth/internal/storage"
)

// rowsPatience bounds the wait for the manager's answer.
const rowsPatience = 30 * time.Second

// ExamineRoles looks at roles that run alone on this machine: at an agent's host through its socket or its files, and at the
// cluster's rows through the API, with the keys that the manager wrote into its state directory.
func ExamineRoles(ctx context.Context, file string, s platform.Settings) Checkup {
	c := Checkup{Config: file, Versions: map[string]string{"berth": chassis.Build().String()}, Findings: []platform.Finding{}}
	machineVersions(c.Versions)
	agentHere, managerHere := exists(s.Agent.StateDir), exists(platform.StateDir(s.Manager.StateDir).ClientEnv())
	storageHere := exists(s.Storage.StateDir) && s.Storage.Complete() == nil
	appsHere := exists(s.AppProxy.StateDir) && s.AppProxy.Complete() == nil
	if !agentHere && !managerHere && !storageHere && !appsHere {
		c.add(platform.Finding{Warning: true, Kind: "state", Object: file,
			Problem: "neither its agent nor its manager nor one of its proxies has run on this machine",
			Next:    "berth manager --config " + file + ", or berth agent --config " + file})
	}
	if storageHere {
		c.storage(ctx, file, s.Storage)
	}
	if appsHere {
		c.apps(ctx, file, s.AppProxy)
	}
	if managerHere {
		c.rows(ctx, platform.StateDir(s.Manager.StateDir))
	}
	if agentHere {
		c.host(ctx, file, s)
		c.limits()
	}
	return c
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist) // what we may not read is there
}

// rows asks the manager.
func (c *Checkup) rows(ctx context.Context, dir platform.StateDir) {
	ctx, cancel := context.WithTimeout(ctx, rowsPatience)
	defer cancel()
	client, err := dir.Client()
	if err != nil {
		c.add(platform.Finding{Kind: "manager", Object: dir.ClientEnv(), Problem: err.Error(), Next: "start the manager; it writes this file"})
		return
	}
	defer client.Close()
	found, err := admin.Findings(ctx, client)
	if err != nil {
		c.add(platform.Finding{Kind: "manager", Object: client.Config().Endpoint, Problem: err.Error(),
			Next: "see whether the manager runs, and its log"})
		return
	}
	c.Running = true
	for _, f := range found {
		c.add(platform.Finding{Warning: f.Severity == "warning", Kind: f.Kind, Object: f.Object, Problem: f.Detail, Next: f.Next})
	}
}

// host looks at the agent's containers, directories and records. A stopped agent keeps its containers, which is no leak.
func (c *Checkup) host(ctx context.Context, file string, s platform.Settings) {
	dir := platform.StateDir(s.Agent.StateDir)
	if _, held := dir.Owner(); held {
		c.Running = true
	} else {
		c.add(platform.Finding{Warning: true, Kind: "agent", Object: s.Agent.ID, Problem: "it does not run",
			Next: "berth agent --config " + file})
	}
	var look runtime.Runtime
	rt, err := s.Engine(slog.New(slog.DiscardHandler))
	if err != nil {
		c.add(platform.Finding{Kind: "engine", Object: "address", Problem: err.Error(), Next: "correct docker.host in " + file})
	} else {
		defer rt.Close()
		look = rt
		c.engine(ctx, rt)
	}
	found, err := agent.Findings(ctx, s.Agent, look)
	if err != nil {
		c.add(platform.Finding{Kind: "agent", Object: s.Agent.StateDir, Problem: err.Error(), Next: "look at the agent's log"})
	}
	c.Findings = append(c.Findings, platform.AgentFindings(found)...)
	c.mounts(dir, string(dir))
}

// storage asks a storage proxy that runs alone on this machine.
func (c *Checkup) storage(ctx context.Context, file string, cfg storage.Config) {
	ctx, cancel := context.WithTimeout(ctx, rowsPatience)
	defer cancel()
	found, err := storage.AskFindings(ctx, cfg)
	switch {
	case fault.Is(err, fault.Unavailable):
		c.add(platform.Finding{Warning: true, Kind: "storage", Object: cfg.Proxy, Problem: "its proxy does not run: " + err.Error(),
			Next: "berth storage --config " + file})
	case err != nil:
		c.add(platform.Finding{Kind: "storage", Object: cfg.Proxy, Problem: err.Error(), Next: fault.NextOf(err)})
	default:
		c.Running = true
		c.Findings = append(c.Findings, platform.StorageFindings(found)...)
	}
}

// apps asks an app proxy that runs alone on this machine.
func (c *Checkup) apps(ctx context.Context, file string, cfg appproxy.Config) {
	ctx, cancel := context.WithTimeout(ctx, rowsPatience)
	defer cancel()
	found, err := appproxy.AskFindings(ctx, cfg)
	switch {
	case fault.Is(err, fault.Unavailable):
		c.add(platform.Finding{Warning: true, Kind: "app proxy", Object: cfg.Name, Problem: "it does not run: " + err.Error(),
			Next: "berth appproxy --config " + file})
	case err != nil:
		c.add(platform.Finding{Kind: "app proxy", Object: cfg.Name, Problem: err.Error(), Next: fault.NextOf(err)})
	default:
		c.Running = true
		c.Findings = append(c.Findings, platform.AppProxyFindings(found)...)
	}
}
