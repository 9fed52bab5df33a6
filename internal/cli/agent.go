package cli

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cli/device"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newAgent() *cobra.Command {
	return frame.Group(
		"agent", "Look at worker hosts and empty them",
		"Look at the hosts that run sessions, and empty them for maintenance. Administrators only.", a.newAgentList(), a.newAgentInfo(),
		device.NewTopology(a.Frame),
		a.newAgentCordon(), a.newAgentUncordon(), a.newAgentDrain(),
	)
}
