package node

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// networkMember is a member of a session's network as the database writes it, in the order of the addresses.
type networkMember struct {
	Kernel string `json:"kernel"`
	Name   string `json:"name"`
	Agent  string `json:"agent"`
	Host   string `json:"host"`
	// Where the network is encrypted, and the agent has a key.
	TunnelKey  string `json:"tunnel_key"`
	TunnelHost string `json:"tunnel_host"`
	TunnelPort uint16 `json:"tunnel_port"`
}

// networkOf is the network of a kernel's session; nil where the session has none.
func networkOf(r dbgen.DesiredKernelsRow) (*cluster.SessionNetwork, error) {
	if r.NetworkNumber == nil || r.NetworkSubnet == nil {
		return nil, nil
	}
	var members []networkMember
	if err := json.Unmarshal(r.NetworkMembers, &members); err != nil {
		return nil, fmt.Errorf("read the network of session %s: %w", r.SessionID, err)
	}
	n := &cluster.SessionNetwork{Number: uint32(*r.NetworkNumber), Subnet: *r.NetworkSubnet, Encrypted: r.NetworkEncrypted}
	for i, m := range members {
		host, _ := netip.ParseAddr(m.Host) // "" and what an agent should not have said are no address
		var tunnel cluster.Tunnel
		if at, err := netip.ParseAddr(m.TunnelHost); err == nil && m.TunnelKey != "" && m.TunnelPort != 0 {
			tunnel = cluster.Tunnel{Key: m.TunnelKey, Endpoint: netip.AddrPortFrom(at, m.TunnelPort)}
		}
		n.Members = append(n.Members, cluster.NetworkMember{Kernel: cluster.KernelID(m.Kernel), Name: m.Name,
			Address: cluster.MemberAddress(*r.NetworkSubnet, i), Agent: cluster.AgentID(m.Agent), Host: host, Tunnel: tunnel})
	}
	return n, nil
}
