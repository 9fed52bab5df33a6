package cli

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newPreset() *cobra.Command {
	return frame.Group(
		"preset", "Amounts of resources with a name", "See which amounts of resources fit now, and keep the list of them.",
		a.newPresetList(), a.newPresetCreate(), a.newPresetDelete(),
	)
}
