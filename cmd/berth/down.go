package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"

	"log/slog"
)

const (
	// downPatience bounds the wait for an orderly stop.
	downPatience = 90 * time.Second
	// endPatience bounds the wait for sessions to end.
	endPatience = 3 * time.Minute
)

func allLive() api.SessionFilter { return api.SessionFilter{Statuses: api.LiveStatuses} }

func newDown() *cobra.Command {
	var dirFlag string
	var sessions bool
	c := &cobra.Command{
		Use: "down", Short: "Stop the cluster of this machine", Args: cobra.NoArgs,
		Long: "Stop the cluster. Its containers keep running and are taken over by the next `berth up`,\n" +
			"unless --sessions ends them first.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := findStateDir(dirFlag)
			if err != nil {
				return err
			}
			return down(cmd, dir, sessions)
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "directory of the cluster")
	c.Flags().BoolVar(&sessions, "sessions", false, "end all sessions first and wait until their containers are gone")
	return c
}

func down(cmd *cobra.Command, dir stateDir, sessions bool) error {
	ctx := cmd.Context()
	pid, running := dir.owner()
	if !running {
		if sessions {
			return endContainers(ctx, cmd, dir)
		}
		say(cmd, "No cluster runs in %s.", dir)
		return nil
	}
	if sessions {
		if err := endSessions(ctx, cmd, dir); err != nil {
			return err
		}
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop the cluster (pid %d): %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, downPatience)
	defer cancel()
	for {
		// The lock goes last, after every child and container call has ended.
		if now, running := dir.owner(); !running || now != pid {
			say(cmd, "The cluster in %s is down.", dir)
			if sessions {
				// A session has ended when its agent said so, which is before its container is gone.
				if _, err := removeContainers(ctx, dir); err != nil {
					return err
				}
			}
			return nil
		}
		if chassis.Wait(ctx, chassis.RealClock(), 20*time.Millisecond) != nil {
			return fault.New(fault.Timeout, "the cluster (pid %d) has not stopped after %s", pid, downPatience).
				WithNext("look at %s; kill -9 %d loses nothing", dir.logFile(), pid)
		}
	}
}

// endSessions ends everything that lives and waits until it has ended.
func endSessions(ctx context.Context, cmd *cobra.Command, dir stateDir) error {
	client, err := dir.client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	asked := map[string]bool{}
	for {
		live, err := client.Sessions(ctx, allLive())
		if err != nil {
			return fmt.Errorf("list sessions: %w", err)
		}
		if len(live) == 0 {
			return nil
		}
		for _, s := range live {
			if asked[s.ID] {
				continue
			}
			say(cmd, "ending session %s (%s)", s.Name, s.Status)
			if _, err := client.DestroySession(ctx, s.ID, api.DestroyOptions{Forced: true}); err != nil && !api.IsNotFound(err) {
				return fmt.Errorf("end session %s: %w", s.Name, err)
			}
			asked[s.ID] = true
		}
		if chassis.Wait(ctx, chassis.RealClock(), 50*time.Millisecond) != nil {
			return fault.New(fault.Timeout, "%d sessions have not ended after %s", len(live), endPatience).
				WithNext("berth session list; berth doctor")
		}
	}
}

// endContainers ends what a stopped cluster left running. The next start reports the ends.
func endContainers(ctx context.Context, cmd *cobra.Command, dir stateDir) error {
	ended, err := removeContainers(ctx, dir)
	if err != nil {
		return err
	}
	say(cmd, "No cluster runs in %s; %d sessions ended. Those that still waited for a place start with the next berth up.", dir, ended)
	return nil
}

// removeContainers removes what there is of a cluster that does not run.
func removeContainers(ctx context.Context, dir stateDir) (ended int, err error) {
	s := defaultSettings()
	s.Agent.StateDir = dir.path("agent")
	rt, err := docker.New(s.Docker.docker(s.Agent), slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer rt.Close()
	return agent.EndAll(ctx, s.Agent, rt)
}
