// Package tenancy has the client verbs of those who administer a cluster: users, and what was done by whom.
package tenancy

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cli/frame"
)

// verbs make the commands of this package.
type verbs struct{ *frame.Frame }

// Commands returns the client verbs of administrators.
func Commands(f *frame.Frame) []*cobra.Command {
	v := &verbs{f}
	return []*cobra.Command{v.newUser(), v.newAudit()}
}
