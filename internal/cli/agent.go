package cli

import "github.com/spf13/cobra"

func (a *app) newAgent() *cobra.Command {
	return group("agent", "Look at worker hosts", "Look at the hosts that run sessions. Administrators only.", a.newAgentList(), a.newAgentInfo())
}
