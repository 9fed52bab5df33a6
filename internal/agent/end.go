package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/scratch"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// EndAll ends the kernels of an agent that does not run: it notes that they were ended on request and removes their containers.
// The agent's next start reports the ends and cleans up the rest. The network of sessions is removed with its rules. ended counts
// containers.
func EndAll(ctx context.Context, c Config, rt runtime.Runtime) (ended int, err error) {
	list, err := rt.List(ctx)
	if err != nil {
		return 0, fmt.Errorf("list containers: %w", err)
	}
	if err := noteEnds(c, list); err != nil {
		return 0, err
	}
	if ended, err = removeAll(ctx, rt, list); err != nil {
		return ended, err
	}
	if err := scratch.DetachAll(c.scratchDir()); err != nil {
		return ended, err
	}
	if e, ok := rt.(network.Engine); ok {
		d := Deps{Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock()}
		if err := network.Remove(ctx, networkOptions(c, d, e, func() {})); err != nil {
			return ended, fmt.Errorf("remove the network of sessions: %w", err)
		}
	}
	return ended, nil
}

const (
	// removeLooks is how many looks in a row must find no container. The engine may still be making one for an agent that has been
	// stopped meanwhile. removeRest is the time between two looks, removePatience bounds them all.
	removeLooks    = 3
	removeRest     = 100 * time.Millisecond
	removePatience = time.Minute
)

// removeAll removes containers until the engine has none of this agent.
func removeAll(ctx context.Context, rt runtime.Runtime, list []runtime.Observed) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, removePatience)
	defer cancel()
	gone := map[cluster.KernelID]bool{}
	for empty := 0; ; {
		for _, o := range list {
			if err := rt.Remove(ctx, o.Identity.Kernel); err != nil && !fault.Is(err, fault.NotFound) {
				return len(gone), fmt.Errorf("remove the container of kernel %s: %w", o.Identity.Kernel, err)
			}
			gone[o.Identity.Kernel] = true
		}
		if empty++; len(list) > 0 {
			empty = 0
		}
		if empty == removeLooks {
			return len(gone), nil
		}
		if err := chassis.Wait(ctx, chassis.RealClock(), removeRest); err != nil {
			return len(gone), fmt.Errorf("wait until the containers are gone: %w", err)
		}
		if list, err = rt.List(ctx); err != nil {
			return len(gone), fmt.Errorf("list containers: %w", err)
		}
	}
}

// noteEnds comes before the removal: a container that is merely gone would look like an accident.
func noteEnds(c Config, list []runtime.Observed) error {
	if _, err := os.Stat(c.StateDir); os.IsNotExist(err) {
		return nil // nobody will start here again
	}
	l, err := ledger.Open(c.ledgerFile())
	if err != nil {
		return err
	}
	defer l.Close()
	records := map[cluster.KernelID]*ledger.Record{}
	for _, r := range l.Records() {
		records[r.Kernel] = r.Clone()
	}
	for _, o := range list {
		// A container that the ledger does not know is known by its labels.
		if id := o.Identity; records[id.Kernel] == nil {
			records[id.Kernel] = &ledger.Record{Kernel: id.Kernel, Session: id.Session, Generation: id.Generation, Allocation: id.Allocation,
				Running: o.Phase == runtime.PhaseRunning, StartedAt: o.StartedAt}
		}
	}
	for _, r := range records {
		if r.Final != nil || r.Stopping != nil && !r.Stopping.Restart {
			continue
		}
		r.Stopping = &ledger.Stop{Reason: cluster.ReasonUserRequested}
		if err := l.Put(r); err != nil {
			return fmt.Errorf("note the end of kernel %s: %w", r.Kernel, err)
		}
	}
	return nil
}
