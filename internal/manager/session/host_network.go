package session

import (
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// withHostNetwork leaves the resource groups whose sessions may run in the network of their hosts where a request asks for that, and all
// of them otherwise. It refuses a request that only groups would serve which do not allow it.
func withHostNetwork(groups []dbgen.ResourceGroup, r request.Session) ([]dbgen.ResourceGroup, error) {
	host, err := cluster.ParseNetworkMode(r.ResourceOpts["network"])
	if err != nil {
		return nil, fmt.Errorf("resource option network: %w", err)
	}
	if !host {
		return groups, nil
	}
	usable := slices.DeleteFunc(slices.Clone(groups), func(g dbgen.ResourceGroup) bool {
		return !g.IsPublic || r.ResourceGroup != "" && r.ResourceGroup != g.Name
	})
	allowed := slices.DeleteFunc(slices.Clone(usable), func(g dbgen.ResourceGroup) bool { return !resource.HostNetwork(g) })
	if len(usable) > 0 && len(allowed) == 0 {
		who := "none of the resource groups that may be used here lets"
		if len(usable) == 1 {
			who = fmt.Sprintf("resource group %s does not let", usable[0].Name)
		}
		return nil, fault.Deniedf("%s sessions run in the network of their hosts", who).WithReason("host-network-refused").
			WithNext("leave the option network out, or ask an administrator for berth resource-group set GROUP --host-network")
	}
	return allowed, nil
}
