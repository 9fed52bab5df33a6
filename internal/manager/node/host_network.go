package node

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// hostPeersOf are the kernels of a session whose kernels run in the network of their hosts; nil of any other.
func hostPeersOf(r dbgen.DesiredKernelsRow) ([]cluster.HostPeer, error) {
	var rows []struct{ Name, Endpoint string }
	if err := json.Unmarshal(r.HostPeers, &rows); err != nil {
		return nil, fmt.Errorf("read where the kernels of session %s are: %w", r.SessionID, err)
	}
	var out []cluster.HostPeer
	for _, p := range rows {
		at, _ := netip.ParseAddrPort(p.Endpoint) // "" while its agent has said nothing
		out = append(out, cluster.HostPeer{Name: p.Name, Endpoint: at})
	}
	return out, nil
}
