// Package tenancy has the client verbs of those who administer a cluster: domains, projects, users, keypairs, policies, resource groups,
// tokens, what limits somebody, why somebody may do something, what was done by whom and what was used.
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
	return []*cobra.Command{v.newDomain(), v.newProject(), v.newUser(), v.newKeypair(), v.newPolicy(), v.newResourceGroup(),
		v.newTenancy(), v.newAnnouncement(), v.newToken(), v.newIdentity(), v.newPasskey(), v.newServiceAccount(), v.newLimits(),
		v.newWhy(), v.newAudit(), v.newUsage(), v.newDirectory(), v.newQuota()}
}
