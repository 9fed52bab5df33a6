package cli

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newScheduler() *cobra.Command {
	return frame.Group("scheduler", "Look at queues and change how they are served",
		"Look at the queues of the resource groups and change how they are served. Administrators only.",
		a.newSchedulerStatus(), a.newSchedulerPolicies(), a.newSchedulerPolicy(), a.newSchedulerNetwork())
}
