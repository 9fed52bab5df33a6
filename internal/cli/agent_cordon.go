package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newAgentCordon() *cobra.Command {
	return a.cordonVerb(false, &cobra.Command{
		Use:     "cordon AGENT...",
		Short:   "Let nothing new start on worker hosts",
		Long:    "Exclude worker hosts from scheduling. The sessions they hold go on; berth agent drain also waits for those to end.",
		Example: "  berth agent cordon i-worker1",
	})
}

func (a *verbs) newAgentUncordon() *cobra.Command {
	return a.cordonVerb(true, &cobra.Command{
		Use:     "uncordon AGENT...",
		Short:   "Let sessions start on worker hosts again",
		Long:    "Take worker hosts back into scheduling after a cordon, a drain or a quarantine. Waiting sessions start there at once.",
		Example: "  berth agent uncordon i-worker1",
	})
}

func (a *verbs) cordonVerb(schedulable bool, cmd *cobra.Command) *cobra.Command {
	cmd.Args = frame.Args(cobra.MinimumNArgs(1))
	cmd.RunE = a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, agents []string) error {
		var failed error
		for _, id := range agents {
			w, err := c.SetSchedulable(ctx, id, schedulable)
			if err != nil {
				err = agentHint(err)
				if failed != nil {
					frame.PrintError(cmd.ErrOrStderr(), failed)
				}
				failed = err
				continue
			}
			fmt.Fprintln(cmd.OutOrStdout(), id)
			switch {
			case schedulable:
				frame.Say(cmd, "agent %s takes sessions again", id)
			case w.SessionCount == 0:
				frame.Say(cmd, "agent %s is cordoned and holds nothing", id)
			default:
				frame.Say(
					cmd, "agent %s is cordoned and keeps %s; berth agent drain %s waits for them", id,
					frame.Count(w.SessionCount, "session"), id,
				)
			}
		}
		return failed
	})
	return cmd
}

// agentHint points at the list of agents when one was not found.
func agentHint(err error) error {
	if api.IsNotFound(err) {
		return frame.Hint(err, "berth agent list")
	}
	return err
}

// agentStatus is how an agent stands, with its cordon and the first condition that keeps sessions away.
func agentStatus(a api.Agent) string {
	status := a.Status
	if !a.Schedulable {
		status += ", cordoned"
	}
	for _, c := range a.AgentConditions() {
		if c.Blocks {
			return status + ", " + c.Type
		}
	}
	return status
}
