package cli

import "github.com/spf13/cobra"

func (a *app) newPreset() *cobra.Command {
	return group("preset", "Amounts of resources with a name", "See which amounts of resources fit now, and keep the list of them.", a.newPresetList(), a.newPresetCreate(), a.newPresetDelete())
}
