package mps

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
)

// Daemon is one of NVIDIA's control daemons: its cards, and where its sockets and logs are.
type Daemon struct {
	Cards     []string
	Pipe, Log string
}

// Control starts daemons and asks them; Program does so on this host.
type Control interface {
	// Ready reports why no daemon can be started; nil when one can.
	Ready() error
	// Start starts a daemon and returns when it was started. It outlives this process.
	Start(ctx context.Context, d Daemon) error
	// Ask sends one command and returns the answer. A daemon that is not there is an Unavailable.
	Ask(ctx context.Context, d Daemon, command string) (string, error)
}

// Program is nvidia-cuda-mps-control.
type Program struct {
	// Path is its path, or its name in PATH.
	Path string
	// Env are variables for tests.
	Env []string
}

var _ Control = Program{}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// Ready looks for the program and for the right to serve the users of all containers.
func (p Program) Ready() error {
	if _, err := exec.LookPath(p.Path); err != nil {
		return fault.NotFoundf("the program %s is not on this host", p.Path).WithCause(err).
			WithNext("install the driver's compute tools, or set agent.cuda.mps_control")
	}
	if os.Geteuid() != 0 {
		return fault.Deniedf("only root may start MPS for the users of all containers")
	}
	return nil
}

func (p Program) command(ctx context.Context, d Daemon, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.Path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "CUDA_MPS_PIPE_DIRECTORY=" + d.Pipe, "CUDA_MPS_LOG_DIRECTORY=" + d.Log,
		"CUDA_VISIBLE_DEVICES=" + strings.Join(d.Cards, ",")}, p.Env...)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second // what a daemon inherited keeps nobody waiting
	return cmd
}

// Start starts the daemon in a process session of its own, for clients of all users.
func (p Program) Start(ctx context.Context, d Daemon) error {
	cmd := p.command(ctx, d, "-d", "-multiuser-server")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		return fault.Unavailablef("the MPS daemon of %s cannot be started", strings.Join(d.Cards, ", ")).WithCause(err).
			WithNext("look into %s", d.Log)
	}
	return nil
}

// Ask writes the command to the program, which passes it on.
func (p Program) Ask(ctx context.Context, d Daemon, command string) (string, error) {
	cmd := p.command(ctx, d)
	var out limited
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(command+"\n"), &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fault.Unavailablef("the MPS daemon of %s does not answer %q", strings.Join(d.Cards, ", "), command).
			WithCause(fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String())))
	}
	return out.String(), nil
}

// limited keeps the beginning of what is written to it.
type limited struct{ kept bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	l.kept.Write(b[:min(len(b), max(maxAnswer-l.kept.Len(), 0))])
	return len(b), nil
}

func (l *limited) String() string { return l.kept.String() }
