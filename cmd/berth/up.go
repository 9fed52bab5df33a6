package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
)

const (
	portsAuto  = "auto"
	portsFixed = "fixed"
)

// upFlags are what `berth up` was asked for.
type upFlags struct {
	stateDir string
	config   string
	ports    string
	detach   bool
	// child marks the process that a detaching `up` started; its log is a file.
	child bool
}

func newUp() *cobra.Command {
	var f upFlags
	c := &cobra.Command{
		Use: "up", Short: "Start a whole cluster on this machine", Args: cobra.NoArgs,
		Long: "Start every role in one process: PostgreSQL, etcd and Redis, the manager, a storage proxy, an app proxy and an agent that\n" +
			"drives this machine's container engine. Stops at Ctrl-C or `berth down`; running containers\n" +
			"are left alone and taken over again by the next start.",
		Example: "  berth up --detach\n  berth up --state-dir /tmp/second --ports auto",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.ports != portsAuto && f.ports != portsFixed {
				return fault.Invalidf("--ports is %q", f.ports).WithNext("use --ports auto or --ports fixed")
			}
			dir, err := findStateDir(f.stateDir)
			if err != nil {
				return err
			}
			if f.detach {
				return detach(cmd, dir, f)
			}
			return runUp(cmd, dir, f)
		},
	}
	c.Flags().StringVar(&f.stateDir, "state-dir", "", "directory of the cluster (default $BERTH_STATE_DIR, else /var/lib/berth for root, ~/.local/state/berth for others)")
	c.Flags().StringVar(&f.config, "config", "", "TOML file")
	c.Flags().StringVar(&f.ports, "ports", portsAuto, "auto picks free ports and keeps them; fixed uses 8081 for the API and 6001 for agents")
	c.Flags().BoolVar(&f.detach, "detach", false, "return once the cluster is up and leave it running; the log goes to DIR/berth.log")
	c.Flags().BoolVar(&f.child, "detached-child", false, "")
	if err := c.Flags().MarkHidden("detached-child"); err != nil {
		panic(err) // the flag is defined one line above
	}
	return c
}

func runUp(cmd *cobra.Command, dir stateDir, f upFlags) error {
	s, log, err := loadSettings(f.config, roleUp, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := dir.create(); err != nil {
		return err
	}
	release, err := dir.lock()
	if err != nil {
		return err
	}
	defer release()
	// A control plane holds little and should look it: collect a little more often.
	debug.SetGCPercent(60)
	chassis.RelaxTimers()
	ctx, stop := chassis.SignalContext(cmd.Context())
	defer stop()
	tell := func(format string, args ...any) { say(cmd, format, args...) }
	show := func(text string) { fmt.Fprintln(cmd.OutOrStdout(), text) }
	if f.child {
		// Standard output is the log here; the process that waits for us shows the login.
		show = func(string) { log.Info("the cluster is up", "state_dir", string(dir)) }
		tell = func(format string, args ...any) { log.Info(fmt.Sprintf(format, args...)) }
	}
	p, err := newPlatform(dir, s, f.ports, log, tell, show)
	if err != nil {
		return err
	}
	g, err := p.group()
	if err != nil {
		return err
	}
	tell("starting the database, etcd and Redis in %s", dir)
	err = g.Run(ctx)
	if cerr := embedded.RemoveSocketDir(string(dir), filepath.Dir(dir.controlSocket())); cerr != nil {
		log.Warn("remove control socket", "error", cerr)
	}
	if ctx.Err() != nil && g.Err() == nil {
		if err != nil {
			log.Warn("stopped, but not cleanly", "error", err)
		}
		tell("stopped: %s", context.Cause(ctx))
		return nil
	}
	if ctx.Err() != nil && strings.Contains(fmt.Sprint(err), context.Canceled.Error()) {
		return nil // a start that was called off
	}
	if err != nil && isAddressInUse(err) {
		return fault.New(fault.Unavailable, "a port is taken").WithCause(err).WithNext("berth up --ports auto, or end the program that uses the port")
	}
	return err
}

func isAddressInUse(err error) bool { return strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) }

const (
	// detachPatience bounds the wait for a detached cluster, crash recovery included.
	detachPatience = 5 * time.Minute
	// maxLog is the size at which the log of earlier starts is put aside.
	maxLog = 20 << 20
	// tailBytes of the log are shown when a start fails.
	tailBytes = 4 << 10
)

// detach starts this program again in a session of its own and waits until it is up or gone.
func detach(cmd *cobra.Command, dir stateDir, f upFlags) error {
	// What can be known before is said here, where somebody reads it.
	if _, _, err := loadSettings(f.config, roleUp, cmd.ErrOrStderr()); err != nil {
		return err
	}
	if err := dir.create(); err != nil {
		return err
	}
	release, err := dir.lock()
	if err != nil {
		return err
	}
	release()
	if info, err := os.Stat(dir.logFile()); err == nil && info.Size() > maxLog {
		if err := os.Rename(dir.logFile(), dir.logFile()+".1"); err != nil {
			return fmt.Errorf("put old log aside: %w", err)
		}
	}
	log, err := os.OpenFile(dir.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	began, err := log.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := []string{"up", "--detached-child", "--state-dir", string(dir), "--ports", f.ports}
	if f.config != "" {
		args = append(args, "--config", f.config)
	}
	child := exec.Command(self, args...)
	child.Stdout, child.Stderr = log, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }() // ends with this process or with the child
	ctx, stop := chassis.SignalContext(cmd.Context())
	defer stop()
	return awaitDetached(ctx, cmd, dir, child.Process, ended, began)
}

func awaitDetached(ctx context.Context, cmd *cobra.Command, dir stateDir, child *os.Process, ended <-chan error, logStart int64) error {
	deadline := time.Now().Add(detachPatience)
	shown := ""
	for pause := (chassis.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}); ; {
		if r, err := dir.askStatus(ctx); err == nil && r.Pid == child.Pid {
			if r.Ready {
				fmt.Fprintln(cmd.OutOrStdout(), summarize(dir, r))
				return nil
			}
			if r.Phase != shown {
				shown = r.Phase
				say(cmd, "%s", shown)
			}
		}
		if time.Now().After(deadline) {
			return fault.New(fault.Timeout, "the cluster is not up after %s; it goes on trying%s", detachPatience, logTail(dir, logStart)).
				WithNext("berth status --state-dir %s", dir)
		}
		timer := time.NewTimer(pause.Next())
		select {
		case <-timer.C:
		case err := <-ended:
			timer.Stop()
			return fault.New(fault.Unavailable, "the cluster did not start (%v); end of %s:%s", err, dir.logFile(), logTail(dir, logStart)).
				WithNext("correct that, then berth up --detach")
		case <-ctx.Done():
			timer.Stop()
			_ = child.Signal(syscall.SIGTERM) // gone already is fine
			return fmt.Errorf("the start was called off: %w", context.Cause(ctx))
		}
	}
}

// logTail returns the last lines that this start wrote, indented.
func logTail(dir stateDir, from int64) string {
	f, err := os.Open(dir.logFile())
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	from = max(from, info.Size()-tailBytes)
	text := make([]byte, max(0, info.Size()-from))
	n, _ := f.ReadAt(text, from)
	lines := strings.Split(strings.TrimSpace(string(text[:n])), "\n")
	lines = lines[max(0, len(lines)-15):]
	return "\n  " + strings.Join(lines, "\n  ")
}
