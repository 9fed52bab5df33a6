package network

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
)

// ruleInput is everything that the rules depend on.
type ruleInput struct {
	// Table is the name of both tables, Bridge the bridge that they guard. Every port of the bridge has a name that begins with
	// Ports.
	Table, Bridge, Ports string
	Subnet               netip.Prefix
	// Resolvers answer names on port 53; Allow are further destinations. Both hold for open egress alone.
	Resolvers []netip.Addr
	Allow     []Allowance
	// Closed are destinations that open egress does not include.
	Closed []netip.Prefix
	// Connections are how many one session may have at a time, answered or not; 0 means any number.
	Connections uint32
	// Sessions are the addresses that are in use. An address that is missing reaches nothing.
	Sessions map[netip.Addr]member
}

// member is one session container.
type member struct {
	port   string
	egress cluster.Egress
}

// Allowance is a destination that the operator opens for sessions with open egress.
type Allowance struct {
	To   netip.Prefix
	Port uint16 // of TCP and UDP; 0 means every protocol and port
}

// table is a table as it should be: a description that can be compared with what the kernel has.
type table struct {
	table  *nftables.Table
	chains []chain
	sets   []set
}

type chain struct {
	chain *nftables.Chain
	rules []rule
}

// rule is one rule. Its text is stored with it in the kernel, and tells it from every other rule of its chain.
type rule struct {
	text  string
	exprs []expr.Any
}

type set struct {
	set      *nftables.Set
	elements []nftables.SetElement
}

// The names of sets and chains.
const (
	setClosed = "closed"
	setHost   = "to_host" // address -> what it may do with the host
	setOut    = "to_out"  // address -> what it may do with what lies behind the host
	setPorts  = "ports"   // port of the bridge . address
	setCounts = "counts"  // address -> its connections, which the kernel counts

	chainNone     = "none"
	chainOpenHost = "open_host"
	chainOpenOut  = "open_out"
)

// proxyChain is the chain of sessions that may reach one proxy.
func proxyChain(p netip.AddrPort) string {
	return "proxy_" + strings.NewReplacer(".", "_", ":", "_").Replace(p.String())
}

// chainsOf are the chains that decide about a session: towards the host, and through it.
func chainsOf(e cluster.Egress) (host, out string) {
	switch {
	case e.Open():
		return chainOpenHost, chainOpenOut
	case e.Mode == cluster.EgressProxy:
		return proxyChain(e.Proxy), proxyChain(e.Proxy)
	}
	return chainNone, chainNone
}

// tables is pure: it describes the two tables that guard the sessions of an agent.
func tables(in ruleInput) []table { return []table{in.routed(), in.bridged()} }

// routed guards what sessions send to the host and through it. Sessions have no IPv6: all of it is refused.
func (in ruleInput) routed() table {
	t := &nftables.Table{Name: in.Table, Family: nftables.TableFamilyINet}
	early := nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10)
	accept := nftables.ChainPolicyAccept
	base := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return &nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: early, Policy: &accept}
	}
	plain := func(name string) *nftables.Chain { return &nftables.Chain{Name: name, Table: t} }

	closed := &nftables.Set{Table: t, Name: setClosed, Interval: true, KeyType: nftables.TypeIPAddr}
	var ranges []nftables.SetElement
	for _, s := range spans(append(slices.Clone(in.Closed), in.Subnet)) {
		ranges = append(ranges, nftables.SetElement{Key: s.start.AsSlice()})
		if s.end.IsValid() {
			ranges = append(ranges, nftables.SetElement{Key: s.end.AsSlice(), IntervalEnd: true})
		}
	}
	hosts := &nftables.Set{Table: t, Name: setHost, IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict}
	outs := &nftables.Set{Table: t, Name: setOut, IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict}
	var toHost, toOut []nftables.SetElement
	proxies := map[netip.AddrPort]bool{}
	for _, a := range sortedAddresses(in.Sessions) {
		e := in.Sessions[a].egress
		host, out := elementsOf(a, e)
		toHost, toOut = append(toHost, host), append(toOut, out)
		if e.Mode == cluster.EgressProxy {
			proxies[e.Proxy] = true
		}
	}
	opened := in.opened()
	chains := []chain{
		{plain(chainNone), []rule{refuse()}},
		{plain(chainOpenHost), append(slices.Clone(opened), refuse())},
		{plain(chainOpenOut), append(slices.Clone(opened), closedRule(), verdict("accept", expr.VerdictAccept))},
	}
	for _, p := range slices.SortedFunc(mapsKeys(proxies), netip.AddrPort.Compare) {
		chains = append(chains, chain{plain(proxyChain(p)), []rule{
			reach(netip.PrefixFrom(p.Addr(), 32), unix.IPPROTO_TCP, p.Port()), refuse(),
		}})
	}
	begin, sets := []rule{onlyIPv4()}, []set{{closed, ranges}, {hosts, toHost}, {outs, toOut}}
	if in.Connections > 0 {
		begin = append(begin, tooMany(in.Connections))
		sets = append(sets, set{&nftables.Set{Table: t, Name: setCounts, Dynamic: true, KeyType: nftables.TypeIPAddr,
			Size: 1 << (32 - in.Subnet.Bits())}, nil})
	}
	chains = append(chains,
		chain{plain("host"), slices.Concat([]rule{answers()}, begin, []rule{decide(setHost), refuse()})},
		chain{plain("out"), slices.Concat(begin, []rule{decide(setOut), refuse()})},
		chain{plain("in"), []rule{answers(), verdict("drop", expr.VerdictDrop)}},
		chain{base("input", nftables.ChainHookInput), []rule{from(in.Bridge, "host")}},
		chain{base("forward", nftables.ChainHookForward), []rule{from(in.Bridge, "out"), to(in.Bridge, "in")}},
	)
	return table{table: t, chains: chains, sets: sets}
}

// elementsOf are the elements of an address in the two maps of the routed table.
func elementsOf(a netip.Addr, e cluster.Egress) (host, out nftables.SetElement) {
	h, o := chainsOf(e)
	jump := func(to string) nftables.SetElement {
		return nftables.SetElement{Key: a.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: to}}
	}
	return jump(h), jump(o)
}

// opened are the rules for destinations that open egress includes although they are private.
func (in ruleInput) opened() []rule {
	var out []rule
	for _, r := range in.Resolvers {
		out = append(out, reach(netip.PrefixFrom(r, 32), unix.IPPROTO_UDP, 53), reach(netip.PrefixFrom(r, 32), unix.IPPROTO_TCP, 53))
	}
	for _, a := range in.Allow {
		if a.Port == 0 {
			out = append(out, reach(a.To, 0, 0))
			continue
		}
		out = append(out, reach(a.To, unix.IPPROTO_TCP, a.Port), reach(a.To, unix.IPPROTO_UDP, a.Port))
	}
	return out
}

// bridged guards what passes between ports of the bridge without being routed, whatever its protocol, and sees to it that a
// port sends with its own address alone.
func (in ruleInput) bridged() table {
	t := &nftables.Table{Name: in.Table, Family: nftables.TableFamilyBridge}
	accept := nftables.ChainPolicyAccept
	ports := &nftables.Set{Table: t, Name: setPorts, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)}
	var members []nftables.SetElement
	for _, a := range sortedAddresses(in.Sessions) {
		members = append(members, portElement(in.Sessions[a].port, a))
	}
	const registers = unix.NFT_REG32_00
	// own compares the address at an offset of the network header with that of the port.
	own := func(what string, etherType uint16, offset uint32) rule {
		return rule{in.Ports + "* " + what + " of another is dropped", []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: registers},
			&expr.Cmp{Op: expr.CmpOpEq, Register: registers, Data: []byte(in.Ports)},
			&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: unix.NFT_REG_4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_4, Data: binaryutil.BigEndian.PutUint16(etherType)},
			&expr.Payload{DestRegister: registers + 4, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
			&expr.Lookup{SourceRegister: registers, SetName: setPorts, Invert: true},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}}
	}
	other := rule{in.Ports + "* other protocols are dropped", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: registers},
		&expr.Cmp{Op: expr.CmpOpEq, Register: registers, Data: []byte(in.Ports)},
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: unix.NFT_REG_4},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_4, Data: binaryutil.BigEndian.PutUint16(unix.ETH_P_IP)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_4, Data: binaryutil.BigEndian.PutUint16(unix.ETH_P_ARP)},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}}
	between := rule{in.Ports + "* to " + in.Ports + "* is dropped", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: registers},
		&expr.Cmp{Op: expr.CmpOpEq, Register: registers, Data: []byte(in.Ports)},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: registers},
		&expr.Cmp{Op: expr.CmpOpEq, Register: registers, Data: []byte(in.Ports)},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}}
	pre := &nftables.Chain{Name: "prerouting", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(-300), Policy: &accept}
	forward := &nftables.Chain{Name: "forward", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityRef(-300), Policy: &accept}
	return table{table: t, sets: []set{{ports, members}}, chains: []chain{
		{pre, []rule{own("source", unix.ETH_P_IP, 12), own("ARP sender", unix.ETH_P_ARP, 14), other}},
		{forward, []rule{between}},
	}}
}

// portElement is the element of a port and its address.
func portElement(port string, a netip.Addr) nftables.SetElement {
	key := make([]byte, 16, 20)
	copy(key, port)
	return nftables.SetElement{Key: append(key, a.AsSlice()...)}
}

func sortedAddresses(sessions map[netip.Addr]member) []netip.Addr {
	return slices.SortedFunc(mapsKeys(sessions), netip.Addr.Compare)
}

// interfaceName is a name as the kernel compares it: all 16 bytes.
func interfaceName(name string) []byte {
	b := make([]byte, 16)
	copy(b, name)
	return b
}

func from(bridge, chain string) rule {
	return rule{"from " + bridge + " go to " + chain, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(bridge)},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain},
	}}
}

func to(bridge, chain string) rule {
	return rule{"to " + bridge + " go to " + chain, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(bridge)},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain},
	}}
}

func verdict(text string, kind expr.VerdictKind) rule {
	return rule{text, []expr.Any{&expr.Verdict{Kind: kind}}}
}

// refuse answers, so that programs do not wait for what never comes.
func refuse() rule {
	return rule{"refuse", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}}
}

// answers accepts what belongs to a connection that was let through in the other direction.
func answers() rule {
	return rule{"accept answers", append(inState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED),
		&expr.Verdict{Kind: expr.VerdictAccept})}
}

// tooMany refuses a new connection of an address that has as many as it may. The host remembers every connection in one table for
// all: without a bound, a single session that sends to many ports fills it, and then nobody on the host can connect any more.
func tooMany(limit uint32) rule {
	r := refuse()
	return rule{fmt.Sprintf("refuse more than %d connections", limit), slices.Concat(inState(expr.CtStateBitNEW), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Dynset{SrcRegKey: 1, SetName: setCounts, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: []expr.Any{&expr.Connlimit{Count: limit, Flags: expr.NFT_CONNLIMIT_F_INV}}},
	}, r.exprs)}
}

// inState goes on for packets of connections in one of these states.
func inState(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func onlyIPv4() rule {
	return rule{"drop what is not IPv4", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}}
}

// decide goes where the map sends the source address.
func decide(name string) rule {
	return rule{"decide by " + name, []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: name, IsDestRegSet: true},
	}}
}

func closedRule() rule {
	r := refuse()
	return rule{"refuse what is closed", append([]expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: setClosed},
	}, r.exprs...)}
}

// reach accepts a destination: all of it, or one port of one protocol. IPv4 is certain where it is used.
func reach(p netip.Prefix, protocol uint8, port uint16) rule {
	mask := netmask(p.Bits())
	out := rule{fmt.Sprintf("accept %s protocol %d port %d", p, protocol, port), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}}
	if protocol != 0 {
		out.exprs = append(out.exprs,
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)})
	}
	out.exprs = append(out.exprs, &expr.Verdict{Kind: expr.VerdictAccept})
	return out
}

func netmask(bits int) []byte {
	n := uint32(0xffffffff)
	if bits < 32 {
		n = ^(n >> bits)
	}
	return binaryutil.BigEndian.PutUint32(n)
}

// compareElements orders elements by their key, an end before the start that has the same key.
func compareElements(a, b nftables.SetElement) int {
	return cmp.Or(strings.Compare(string(a.Key), string(b.Key)), cmp.Compare(verdictText(a), verdictText(b)))
}

func verdictText(e nftables.SetElement) string {
	if e.IntervalEnd {
		return "end"
	}
	return chainOf(e)
}

// chainOf is the chain that an element of a map leads to. The library does not decode it of elements that it reads.
func chainOf(e nftables.SetElement) string {
	if e.VerdictData != nil {
		return e.VerdictData.Chain
	}
	d, err := netlink.NewAttributeDecoder(e.Val)
	if err != nil {
		return ""
	}
	for d.Next() {
		if d.Type() == unix.NFTA_VERDICT_CHAIN {
			return d.String()
		}
	}
	return ""
}
