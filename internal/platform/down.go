package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

const (
	// downPatience bounds the wait for an orderly stop.
	downPatience = 90 * time.Second
	// endPatience bounds the wait for sessions to end.
	endPatience = 3 * time.Minute
)

// Down stops the cluster of a state directory and waits until it has stopped; with sessions it ends these first. It is no error when
// no cluster runs.
func Down(ctx context.Context, dir StateDir, sessions bool, say func(format string, args ...any)) error {
	pid, running := dir.Owner()
	if !running {
		if sessions {
			return endContainers(ctx, dir, say)
		}
		say("No cluster runs in %s.", dir)
		return nil
	}
	if sessions {
		if err := endSessions(ctx, dir, say); err != nil {
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
		if now, running := dir.Owner(); !running || now != pid {
			say("The cluster in %s is down.", dir)
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
				WithNext("look at %s; kill -9 %d loses nothing", dir.LogFile(), pid)
		}
	}
}

// endSessions ends everything that lives and waits until it has ended.
func endSessions(ctx context.Context, dir StateDir, say func(string, ...any)) error {
	client, err := dir.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	asked, refused := map[string]bool{}, map[string]bool{}
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
			say("ending session %s (%s)", s.Name, s.Status)
			_, err := client.DestroySession(ctx, s.ID, api.DestroyOptions{Forced: true, NoWait: true})
			if err != nil && !api.IsNotFound(err) {
				if refused[s.ID] {
					return fmt.Errorf("end session %s: %w", s.Name, err)
				}
				refused[s.ID] = true // it may have ended since it was listed; the next list tells
				continue
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
func endContainers(ctx context.Context, dir StateDir, say func(string, ...any)) error {
	ended, err := removeContainers(ctx, dir)
	if err != nil {
		return err
	}
	say("No cluster runs in %s; %d sessions ended. Those that still waited for a place start with the next berth up.", dir, ended)
	return nil
}

// removeContainers removes what there is of a cluster that does not run.
func removeContainers(ctx context.Context, dir StateDir) (ended int, err error) {
	s := DefaultSettings()
	s.Agent.StateDir = dir.Path("agent")
	rt, err := s.Engine(slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer rt.Close()
	return agent.EndAll(ctx, s.Agent, rt)
}
