package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// UsersConfig is a range of user numbers of the host that nobody else uses. With Count 0 all sessions run as Config.UID.
type UsersConfig struct{ First, Count int }

// maxUser is the highest user number that a session gets; numbers from 2^31 on are negative for some programs.
const maxUser = 1<<31 - 1

func (c UsersConfig) validate(shared int) error {
	switch {
	case c.Count == 0:
		return nil
	case c.Count < 0 || c.First < 1000 || c.First > maxUser-c.Count:
		return fault.Invalidf("agent.users are %d numbers from %d on", c.Count, c.First).
			WithNext("set agent.users.first to 1000 or more, far from the numbers of people, and agent.users.count to 0 for none")
	case shared >= c.First && shared < c.First+c.Count:
		return fault.Invalidf("agent.uid %d is one of agent.users", shared).WithNext("choose another agent.users.first")
	}
	return nil
}

// userNumbers are the user numbers that the keeper may give out, and why there are none where the configuration wants them: only root can
// give a home away, and the processes of sessions must be this host's.
func (c Config) userNumbers(rt runtime.Runtime) (users keeper.Users, without string) {
	_, local := rt.(runtime.Disks)
	switch {
	case c.Users.Count == 0 || !local:
		return users, ""
	case os.Geteuid() != 0:
		return users, fmt.Sprintf("all sessions share the user number %d, and with it limits of this host's kernel: the agent is not root", c.UID)
	}
	return keeper.Users(c.Users), ""
}

// takeBack gives sessions files back that a killed agent left with another owner in the middle of a commit.
func (a *Agent) takeBack(ctx context.Context, owners runtime.FileOwners) error {
	backoff := chassis.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	containers, err := a.d.Runtime.List(ctx)
	for err != nil {
		if werr := chassis.Wait(ctx, a.d.Clock, backoff.Next()); werr != nil {
			return werr
		}
		containers, err = a.d.Runtime.List(ctx)
	}
	numbers := map[cluster.KernelID]int{}
	for _, r := range a.ledger.Records() {
		numbers[r.Kernel] = r.UID
	}
	for _, o := range containers {
		uid := numbers[o.Identity.Kernel]
		if uid == 0 || o.Phase != runtime.PhaseRunning {
			continue
		}
		if err := owners.TakeBack(ctx, o, runtime.LayerUser{Session: uid, Image: a.c.UID}); err != nil && ctx.Err() == nil {
			a.d.Log.Warn("the owners of files in a container cannot be checked", "kernel", o.Identity.Kernel, "err", err)
		}
	}
	<-ctx.Done()
	return ctx.Err()
}
