package testkit

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/platform"
	"berth.dev/berth/internal/testkit/address"
)

// processEnv tells a test binary that it is a manager; its value is a processConfig.
const processEnv = "BERTH_TESTKIT_MANAGER"

type processConfig struct {
	ID, StateDir, DSN string
	Etcd              []string
	// API and Agents are where it listens.
	API, Agents      string
	Heartbeat, Lease time.Duration
	LeaderTTL        int
}

// Process is a manager in an operating system process of its own, which can be killed like one. Its addresses stay the same over
// restarts.
type Process struct {
	c           *Cluster
	id          string
	api, agents string
	cmd         *exec.Cmd
}

// ID is the manager's name in the cluster.
func (p *Process) ID() string { return p.id }

// URL is the address of its API, AgentAddr that of its port for agents.
func (p *Process) URL() string { return "http://" + p.api }

// AgentAddr is where agents connect to it.
func (p *Process) AgentAddr() string { return p.agents }

// ServeProcess turns this process into the manager that StartProcess asked for, and returns at once in all others. A package
// whose tests start Processes calls it first in its TestMain.
func ServeProcess() {
	raw := os.Getenv(processEnv)
	if raw == "" {
		return
	}
	if err := serveProcess(raw); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// StartProcess starts one more manager beside those of the cluster, which needs etcd for it, and waits until it serves.
func (c *Cluster) StartProcess(id string) *Process {
	c.tb.Helper()
	p := c.Process(id)
	p.Start()
	return p
}

// Process is one more manager beside those of the cluster, which needs etcd for it. It is not started yet.
func (c *Cluster) Process(id string) *Process {
	c.tb.Helper()
	if c.etcd == nil {
		c.tb.Fatal("a manager of its own process needs a cluster of several managers")
	}
	p := &Process{c: c, id: id, api: address.Hold(c.tb), agents: address.Hold(c.tb)}
	c.tb.Cleanup(p.Kill)
	return p
}

// Start starts the process and waits until it serves.
func (p *Process) Start() {
	c := p.c
	c.tb.Helper()
	cfg := c.managerConfig(p.id)
	raw, err := json.Marshal(processConfig{ID: p.id, StateDir: cfg.StateDir, DSN: c.dsn, Etcd: []string{c.etcd.Endpoint()}, API: p.api,
		Agents: p.agents, Heartbeat: cfg.Agents.Heartbeat, Lease: cfg.Agents.Lease, LeaderTTL: cfg.Reconcile.LeaderTTL})
	c.check(err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), processEnv+"="+string(raw))
	cmd.Stderr = c.tb.Output()
	_, err = cmd.StdinPipe() // it ends when this process does
	c.check(err)
	stdout, err := cmd.StdoutPipe()
	c.check(err)
	c.check(cmd.Start())
	p.cmd = cmd
	c.check(stdout.(*os.File).SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		c.tb.Fatalf("manager %s did not start: %v", p.id, err)
	}
}

// Kill ends the process with SIGKILL.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
	p.cmd = nil
}

// serveProcess is the manager's process; it ends with its parent.
func serveProcess(raw string) error {
	var pc processConfig
	if err := json.Unmarshal([]byte(raw), &pc); err != nil {
		return fmt.Errorf("read the configuration of a test manager: %w", err)
	}
	s := platform.DefaultSettings()
	s.Admin.Listen = ""
	cfg := &s.Manager
	cfg.ID, cfg.Listen, cfg.Agents.Listen = pc.ID, pc.API, pc.Agents
	cfg.StateDir, cfg.Agents.Heartbeat, cfg.Agents.Lease = pc.StateDir, pc.Heartbeat, pc.Lease
	cfg.Postgres.DSN, cfg.Etcd.Endpoints = chassis.NewSecret(pc.DSN), pc.Etcd
	cfg.Reconcile.Sweep, cfg.Reconcile.LeaderTTL = 50*time.Millisecond, pc.LeaderTTL
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("role", pc.ID)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the parent is gone
		cancel()
	}()
	return platform.RunManager(ctx, s, log, func(m *platform.Manager) { fmt.Println(m.APIAddr()) })
}
