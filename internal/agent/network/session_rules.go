package network

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// admitted is what the rules of session networks let through: the members that send, with their ports, and the agents whose tunnels
// end here.
type admitted struct {
	members map[netip.Addr]member
	hosts   map[netip.Addr]bool
}

func admittedBy(want map[uint32]wanted) admitted {
	a := admitted{map[netip.Addr]member{}, map[netip.Addr]bool{}}
	for number, w := range want {
		for _, m := range w.local {
			a.members[m.Address] = member{port: sessionPort(number, w.subnet, m.Address)}
		}
		for _, host := range w.far {
			a.hosts[host] = true
		}
	}
	return a
}

// with adds what another admits; where both know an address, a decides.
func (a admitted) with(o admitted) admitted {
	for address, m := range o.members {
		if _, known := a.members[address]; !known {
			a.members[address] = m
		}
	}
	for host := range o.hosts {
		a.hosts[host] = true
	}
	return a
}

// readAdmitted reads what the rules in both namespaces admit; what cannot be read is left out.
func readAdmitted(sessions, engine rules, tunnels string) admitted {
	a := admitted{map[netip.Addr]member{}, map[netip.Addr]bool{}}
	for _, e := range sessions.elements(sessionTable(a), setPorts) {
		if len(e.Key) < 20 {
			continue
		}
		if address, ok := netip.AddrFromSlice(e.Key[16:20]); ok {
			a.members[address] = member{port: string(bytes.TrimRight(e.Key[:16], "\x00"))}
		}
	}
	for _, set := range []string{setAgents4, setAgents6} {
		for _, e := range engine.elements(tunnelTable(tunnels, 0, a), set) {
			if host, ok := netip.AddrFromSlice(e.Key); ok {
				a.hosts[host] = true
			}
		}
	}
	return a
}

// The sets of agents whose tunnels end here.
const (
	setAgents4 = "agents4"
	setAgents6 = "agents6"
)

// sessionTable keeps members of networks of sessions from sending with the address of another, and from any protocol but IPv4 and ARP.
// It is in the namespace of session networks. Ports whose member is not wanted any more send nothing.
func sessionTable(a admitted) table {
	t := ruleInput{Table: "berth_sessions", Ports: sessionPorts, Sessions: a.members}.bridged()
	t.chains = t.chains[:1] // members of one session reach each other, and no bridge has those of two
	return t
}

// tunnelTable admits packets of tunnels from the agents of sessions here alone: VXLAN itself asks nobody who they are. It is in the
// engine's namespace, and speaks of the port of tunnels only.
func tunnelTable(name string, port int, a admitted) table {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	set4 := &nftables.Set{Table: t, Name: setAgents4, KeyType: nftables.TypeIPAddr}
	set6 := &nftables.Set{Table: t, Name: setAgents6, KeyType: nftables.TypeIP6Addr}
	var four, six []nftables.SetElement
	for _, h := range slices.SortedFunc(mapsKeys(a.hosts), netip.Addr.Compare) {
		if h.Is4() {
			four = append(four, nftables.SetElement{Key: h.AsSlice()})
		} else {
			six = append(six, nftables.SetElement{Key: h.AsSlice()})
		}
	}
	toPort := func(more ...expr.Any) []expr.Any {
		return append([]expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(uint16(port))},
		}, more...)
	}
	from := func(what string, protocol byte, offset, size uint32, set string) rule {
		return rule{"accept port " + strconv.Itoa(port) + " from " + what, toPort(
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
			&expr.Lookup{SourceRegister: 1, SetName: set}, &expr.Verdict{Kind: expr.VerdictAccept})}
	}
	accept := nftables.ChainPolicyAccept
	input := &nftables.Chain{Name: "input", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10), Policy: &accept}
	return table{table: t, sets: []set{{set4, four}, {set6, six}}, chains: []chain{{input, []rule{
		from("agents by IPv4", unix.NFPROTO_IPV4, 12, 4, set4.Name), from("agents by IPv6", unix.NFPROTO_IPV6, 8, 16, set6.Name),
		{"drop port " + strconv.Itoa(port) + " from all others", toPort(&expr.Verdict{Kind: expr.VerdictDrop})},
	}}}}
}
