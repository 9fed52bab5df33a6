package network

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// admitted is what the rules of session networks let through: the members that send, with their ports, and who sends into
// which network.
type admitted struct {
	members map[netip.Addr]member
	// ends send in clear, inner ones inside of encrypted tunnels.
	ends, inner map[tunnelEnd]bool
}

func nothingAdmitted() admitted {
	return admitted{map[netip.Addr]member{}, map[tunnelEnd]bool{}, map[tunnelEnd]bool{}}
}

// tunnelEnd is an agent that may send into a network.
type tunnelEnd struct {
	host netip.Addr
	vni  uint32
}

// key is a tunnelEnd as an element of a set: the address, and the identifier as the first three of four bytes.
func (e tunnelEnd) key() []byte { return binary.BigEndian.AppendUint32(e.host.AsSlice(), e.vni<<8) }

func tunnelEndOf(key []byte) (e tunnelEnd, ok bool) {
	if len(key) < 8 {
		return e, false
	}
	host, number := key[:len(key)-4], key[len(key)-4:]
	e.vni = binary.BigEndian.Uint32(number) >> 8
	e.host, ok = netip.AddrFromSlice(host)
	return e, ok
}

func admittedBy(want map[uint32]wanted) admitted {
	a := nothingAdmitted()
	for number, w := range want {
		for _, m := range w.local {
			a.members[m.Address] = member{port: sessionPort(number, w.subnet, m.Address)}
		}
		ends := a.ends
		if w.encrypted {
			ends = a.inner
		}
		for _, host := range w.far {
			ends[tunnelEnd{host, firstVNI + number}] = true
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
	maps.Copy(a.ends, o.ends)
	maps.Copy(a.inner, o.inner)
	return a
}

// readAdmitted reads what the rules in the namespaces admit; what cannot be read is left out. encrypted is nil where there is none.
func readAdmitted(sessions, engine, encrypted rules, tunnels string) admitted {
	a := nothingAdmitted()
	for _, e := range sessions.elements(sessionTable(a), setPorts) {
		if len(e.Key) < 20 {
			continue
		}
		if address, ok := netip.AddrFromSlice(e.Key[16:20]); ok {
			a.members[address] = member{port: string(bytes.TrimRight(e.Key[:16], "\x00"))}
		}
	}
	read := func(from rules, name string, to map[tunnelEnd]bool) {
		for _, set := range []string{setAgents4, setAgents6} {
			for _, e := range from.elements(tunnelTable(name, 0, nil), set) {
				if end, ok := tunnelEndOf(e.Key); ok {
					to[end] = true
				}
			}
		}
	}
	read(engine, tunnels, a.ends)
	if encrypted != nil {
		read(encrypted, encryptedTable, a.inner)
	}
	return a
}

// The sets of agents whose tunnels end here.
const (
	setAgents4 = "agents4"
	setAgents6 = "agents6"
)

// encryptedTable is the name of the table of tunnels in the namespace of encrypted ones.
const encryptedTable = "berth_tunnels"

// sessionTable keeps members of networks of sessions from sending with the address of another, and from any protocol but IPv4 and ARP.
// It is in the namespace of session networks. Ports whose member is not wanted any more send nothing.
func sessionTable(a admitted) table {
	t := ruleInput{Table: "berth_sessions", Ports: sessionPorts, Sessions: a.members}.bridged()
	t.chains = t.chains[:1] // members of one session reach each other, and no bridge has those of two
	return t
}

// tunnelTable admits packets of a network from the agents of that session alone: VXLAN itself asks nobody who they are. It is in the
// engine's namespace, and speaks of the port of tunnels only. Another one is in the namespace of the encrypted tunnel, where addresses are
// those inside of it.
func tunnelTable(name string, port int, ends map[tunnelEnd]bool) table {
	t := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	set4 := &nftables.Set{Table: t, Name: setAgents4, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInteger)}
	set6 := &nftables.Set{Table: t, Name: setAgents6, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInteger)}
	var four, six []nftables.SetElement
	byHost := func(a, b tunnelEnd) int { return cmp.Or(a.host.Compare(b.host), cmp.Compare(a.vni, b.vni)) }
	for _, e := range slices.SortedFunc(mapsKeys(ends), byHost) {
		if e.host.Is4() {
			four = append(four, nftables.SetElement{Key: e.key()})
		} else {
			six = append(six, nftables.SetElement{Key: e.key()})
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
			&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
			// The identifier is behind the header of UDP and four bytes of VXLAN (RFC 7348).
			&expr.Payload{DestRegister: unix.NFT_REG32_00 + size/4, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 3},
			&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: set}, &expr.Verdict{Kind: expr.VerdictAccept})}
	}
	accept := nftables.ChainPolicyAccept
	input := &nftables.Chain{Name: "input", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10), Policy: &accept}
	return table{table: t, sets: []set{{set4, four}, {set6, six}}, chains: []chain{{input, []rule{
		from("agents by IPv4", unix.NFPROTO_IPV4, 12, 4, set4.Name), from("agents by IPv6", unix.NFPROTO_IPV6, 8, 16, set6.Name),
		{"drop port " + strconv.Itoa(port) + " from all others", toPort(&expr.Verdict{Kind: expr.VerdictDrop})},
	}}}}
}
