package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/chassis"
)

// rowsPatience bounds the wait for the manager's answer.
const rowsPatience = 30 * time.Second

// examineRoles looks at roles that run alone on this machine: at an agent's host through its socket or its files, and at the
// cluster's rows through the API, with the keys that the manager wrote into its state directory.
func examineRoles(ctx context.Context, file string, s settings) checkup {
	c := checkup{Config: file, Versions: map[string]string{"berth": chassis.Build().String()}, Findings: []Finding{}}
	machineVersions(c.Versions)
	agentHere, managerHere := exists(s.Agent.StateDir), exists(stateDir(s.Manager.StateDir).clientEnv())
	storageHere := exists(s.Storage.StateDir) && s.Storage.Complete() == nil
	appsHere := exists(s.AppProxy.StateDir) && s.AppProxy.Complete() == nil
	if !agentHere && !managerHere && !storageHere && !appsHere {
		c.add(Finding{Warning: true, Kind: "state", Object: file, Problem: "neither its agent nor its manager nor one of its proxies has run on this machine",
			Next: "berth manager --config " + file + ", or berth agent --config " + file})
	}
	if storageHere {
		c.storage(ctx, file, s.Storage)
	}
	if appsHere {
		c.apps(ctx, file, s.AppProxy)
	}
	if managerHere {
		c.rows(ctx, stateDir(s.Manager.StateDir))
	}
	if agentHere {
		c.host(ctx, file, s)
	}
	return c
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist) // what we may not read is there
}

// rows asks the manager.
func (c *checkup) rows(ctx context.Context, dir stateDir) {
	ctx, cancel := context.WithTimeout(ctx, rowsPatience)
	defer cancel()
	client, err := dir.client()
	if err != nil {
		c.add(Finding{Kind: "manager", Object: dir.clientEnv(), Problem: err.Error(), Next: "start the manager; it writes this file"})
		return
	}
	defer client.Close()
	found, err := client.Findings(ctx)
	if err != nil {
		c.add(Finding{Kind: "manager", Object: client.Config().Endpoint, Problem: err.Error(), Next: "see whether the manager runs, and its log"})
		return
	}
	c.Running = true
	for _, f := range found {
		c.add(Finding{Warning: f.Severity == "warning", Kind: f.Kind, Object: f.Object, Problem: f.Detail, Next: f.Next})
	}
}

// host looks at the agent's containers, directories and records. A stopped agent keeps its containers, which is no leak.
func (c *checkup) host(ctx context.Context, file string, s settings) {
	dir := stateDir(s.Agent.StateDir)
	if _, held := dir.owner(); held {
		c.Running = true
	} else {
		c.add(Finding{Warning: true, Kind: "agent", Object: s.Agent.ID, Problem: "it does not run", Next: "berth agent --config " + file})
	}
	var look runtime.Runtime
	rt, err := docker.New(s.Docker.docker(s.Agent), slog.New(slog.DiscardHandler))
	if err != nil {
		c.add(Finding{Kind: "engine", Object: "address", Problem: err.Error(), Next: "correct docker.host in " + file})
	} else {
		defer rt.Close()
		look = rt
		c.engine(ctx, rt)
	}
	found, err := agent.Findings(ctx, s.Agent, look)
	if err != nil {
		c.add(Finding{Kind: "agent", Object: s.Agent.StateDir, Problem: err.Error(), Next: "look at the agent's log"})
	}
	c.Findings = append(c.Findings, fromAgent(found)...)
	c.mounts(dir)
}
