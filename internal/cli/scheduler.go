package cli

import "github.com/spf13/cobra"

func (a *app) newScheduler() *cobra.Command {
	return group("scheduler", "Look at queues and change how they are served",
		"Look at the queues of the resource groups and change how they are served. Administrators only.",
		a.newSchedulerStatus(), a.newSchedulerPolicy())
}
