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
)

// processEnv tells a test binary that it is a manager; its value is a processConfig.
const processEnv = "BERTH_TESTKIT_MANAGER"

type processConfig struct {
	ID, StateDir, DSN string
	Etcd              []string
	LeaderTTL         int
}

// Process is a manager in an operating system process of its own, which can be killed like one.
type Process struct {
	cmd *exec.Cmd
	end io.Closer
}

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
	if c.etcd == nil {
		c.tb.Fatal("a manager of its own process needs a cluster of several managers")
	}
	cfg := c.managerConfig(id)
	raw, err := json.Marshal(processConfig{ID: id, StateDir: cfg.StateDir, DSN: c.dsn,
		Etcd: []string{c.etcd.Endpoint()}, LeaderTTL: cfg.Reconcile.LeaderTTL})
	c.check(err)
	p := &Process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), processEnv+"="+string(raw))
	p.cmd.Stderr = c.tb.Output()
	stdin, err := p.cmd.StdinPipe()
	c.check(err)
	p.end = stdin
	stdout, err := p.cmd.StdoutPipe()
	c.check(err)
	c.check(p.cmd.Start())
	c.tb.Cleanup(p.Kill)
	c.check(stdout.(*os.File).SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		c.tb.Fatalf("manager %s did not start: %v", id, err)
	}
	return p
}

// Kill ends the process with SIGKILL.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
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
	cfg.ID, cfg.Listen, cfg.Agents.Listen = pc.ID, "127.0.0.1:0", "127.0.0.1:0"
	cfg.StateDir = pc.StateDir
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
