package cli

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newIdle() *cobra.Command {
	return frame.Group(
		"idle",
		"Decide which sessions are idle",
		"Keep the rules by which sessions count as idle and end, and see how sessions stand with them.\n\n"+
			"The limits of keypair policies hold besides.",
		a.newIdleReport(),
		a.newIdleList(),
		a.newIdleSet(),
		a.newIdleRemove(),
	)
}
