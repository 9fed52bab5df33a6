package idle

import (
	"context"
	"sync"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle/rule"
)

// notice is a text for the terminals of a session's main kernel.
type notice struct {
	agent  cluster.AgentID
	kernel cluster.KernelID
	text   string
}

// noticesOf are the warnings of a session for those who look at its terminals. Checkers that only report tell nobody.
func noticesOf(s *candidate, told []rule.Verdict) (out []notice) {
	if !s.Reachable {
		return nil
	}
	for _, v := range told {
		if !v.Checker.DryRun {
			out = append(out, notice{s.Agent, s.Main, "berth: " + warning(v) + " (berth session keep-alive " + s.Row.Name + ")"})
		}
	}
	return out
}

// show puts notices on terminals, some at a time. The event is what counts: a notice that reaches nobody is not repeated.
func (l *looker) show(ctx context.Context, notices []notice) {
	if l.deps.Tell == nil {
		return
	}
	work := make(chan notice)
	var wg sync.WaitGroup
	for range min(probes, len(notices)) {
		wg.Go(func() {
			for n := range work {
				ctx, cancel := context.WithTimeout(ctx, probePatience)
				if err := l.deps.Tell(ctx, n.agent, n.kernel, n.text); err != nil {
					l.d.Log.Debug("an idle warning did not reach the terminals", "kernel", n.kernel, "error", err)
				}
				cancel()
			}
		})
	}
	for _, n := range notices {
		work <- n
	}
	close(work)
	wg.Wait()
}
