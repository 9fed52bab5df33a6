package network

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// sessions is the part of a Network that connects the kernels of one session, on this agent and over several.
type sessions struct {
	links sessionLinks
	// own is this agent's address among agents; not valid when it has none.
	own netip.Addr
	// kernels are the networks of the kernels here, as the manager wants them.
	kernels map[cluster.KernelID]*cluster.SessionNetwork
	// told are the kernels of which the manager has said what network they have. Until it has for all that an earlier run connected, what the
	// rules of that run admitted stays admitted.
	told  map[cluster.KernelID]bool
	heirs admitted
	// problem is why kernels of one session cannot be connected here; nil when they can.
	problem error
	// encrypted is the way to other agents for networks that are to be.
	encrypted encrypted
}

// SetNetwork takes what a kernel's session has for a network, nil for none. It holds within moments.
func (n *Network) SetNetwork(kernel cluster.KernelID, want *cluster.SessionNetwork) {
	n.mu.Lock()
	defer n.mu.Unlock()
	first := !n.sessions.told[kernel]
	n.sessions.told[kernel] = true
	if n.sessions.kernels[kernel].Equal(want) {
		if first && n.members[kernel] != nil {
			n.wake()
		}
		return
	}
	if want == nil {
		delete(n.sessions.kernels, kernel)
	} else {
		n.sessions.kernels[kernel] = want
	}
	n.wake()
}

// Address is where other agents reach this one for networks of sessions; "" when it cannot connect kernels on several agents.
func (n *Network) Address() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.guarded || n.sessions.problem != nil || !n.sessions.own.IsValid() {
		return ""
	}
	return n.sessions.own.String()
}

// spaceName is the name of the network namespace that holds the networks of sessions.
func (n *Network) spaceName() string { return "berth-" + n.id }

// joinSession completes a place with what a kernel knows of its session's network; the caller holds mu.
func (n *Network) joinSession(kernel cluster.KernelID, p *Place) error {
	want := n.sessions.kernels[kernel]
	if want == nil {
		return nil
	}
	me, is := want.Member(kernel)
	if !is {
		return fault.Conflictf("kernel %s is no member of the network of its session", kernel)
	}
	alone, why := true, n.sessions.problem
	if !n.guarded {
		why = errors.New("the engine connects its containers")
	}
	for _, m := range want.Members {
		if m.Agent == n.o.Agent || m.Agent == "" {
			continue
		}
		alone = false
		switch {
		case why == nil && want.Encrypted:
			why = n.unencrypted(m)
		case why == nil:
			why = n.sessions.unreachable(m)
		}
	}
	switch {
	case why != nil && alone && !n.guarded:
		return nil // as sessions of one kernel: the engine connects them
	case why != nil:
		return fault.Conflictf("this agent cannot connect the kernels of one session: %s", why).WithCause(why).
			WithNext("look at the agent's warnings; agent.network.address names the address at which other agents reach it")
	}
	p.Session = me.Address.String()
	for _, m := range want.Members {
		if m.Kernel != kernel && m.Name != "" {
			p.Peers = append(p.Peers, m.Name+":"+m.Address.String())
		}
	}
	return nil
}

// unreachable says why the agents of a member cannot send to this one; nil when they can. One that is not reached itself says so itself.
func (s *sessions) unreachable(m cluster.NetworkMember) error {
	switch {
	case !s.own.IsValid():
		return errors.New("no address is known at which other agents reach it")
	case !m.Host.IsValid():
		return nil
	case m.Host.Is4() != s.own.Is4():
		return fmt.Errorf("agent %s is reached at %s and this one at %s, which are of two kinds", m.Agent, m.Host, s.own)
	case m.Host == s.own:
		return fmt.Errorf("agent %s is reached at %s, as this one is", m.Agent, m.Host)
	}
	return nil
}

// connectSession makes the network of a kernel's session and returns what connects the container to it; the caller holds mu, and need not
// hold it for the latter.
func (n *Network) connectSession(kernel cluster.KernelID, pid int) (connect func() error, err error) {
	want := n.sessions.kernels[kernel]
	if want == nil {
		return func() error { return nil }, nil
	}
	if n.checkSessions(); n.sessions.problem != nil {
		return nil, n.sessions.problem
	}
	if why := n.sessions.encrypted.problem; why != nil && n.crosses(want) {
		return nil, why
	}
	me, is := want.Member(kernel)
	if !is {
		return nil, fault.Conflictf("kernel %s is no member of the network of its session", kernel)
	}
	l, w, own := n.sessions.links, n.wantedSessions()[want.Number], n.inode
	return func() error { return l.connect(want.Number, w, me, pid, own) }, nil
}

// releaseSession takes a kernel out of the network of its session; the caller holds mu. The last one of a session here takes its network
// away.
func (n *Network) releaseSession(kernel cluster.KernelID) {
	s := &n.sessions
	delete(s.told, kernel)
	want := s.kernels[kernel]
	if want == nil {
		return
	}
	delete(s.kernels, kernel)
	n.wake()
	me, is := want.Member(kernel)
	if !is || s.links.ns == 0 {
		return
	}
	// The interface goes with the container's namespace. Whoever holds that open does not hold the network.
	if err := s.links.disconnect(want.Number, want.Subnet, me.Address); err != nil {
		n.o.Log.Warn("an interface of an ended kernel is left in the network of its session", "kernel", kernel, "err", err)
	}
}

func (n *Network) wantedSessions() map[uint32]wanted {
	return wantedNetworks(n.sessions.kernels, n.o.Agent, n.sessions.own, n.sessions.encrypted.inner(), n.sessions.links.mtuTo)
}

// openSessions makes the namespace of session networks ready, and finds this agent's address; the caller holds mu.
func (n *Network) openSessions() error {
	s := &n.sessions
	s.links.underlay, s.links.port = n.ns, n.set.tunnelPort
	if s.links.ns > 0 {
		if h, err := s.links.handle(); err == nil {
			h.Close()
		} else {
			_ = unix.Close(s.links.ns)
			s.links.ns = 0
		}
	}
	s.own = n.set.address
	if !s.own.IsValid() {
		s.own = s.links.ownAddress()
	}
	if s.links.ns == 0 {
		ns, err := openSessionSpace(n.spaceName(), len(s.kernels) > 0)
		if err != nil {
			return err
		}
		if s.links.ns = ns; ns > 0 {
			s.heirs = readAdmitted(n.open(ns), n.open(n.ns), n.encryptedRules(), n.tunnelTableName())
		}
	}
	return nil
}

// inherited is what the rules of an earlier run admitted, as long as the manager has not spoken of all of its kernels; the caller holds mu.
func (n *Network) inherited() admitted {
	for id := range n.members {
		if !n.sessions.told[id] {
			return n.sessions.heirs
		}
	}
	n.sessions.heirs = admitted{}
	return admitted{}
}

// encryptedRules are those of an earlier run in the namespace of the encrypted tunnel; nil when there is none. The caller holds mu.
func (n *Network) encryptedRules() rules {
	if l := &n.sessions.links; l.encrypted == 0 {
		ns, err := openSessionSpace(n.encryptedSpaceName(), false)
		if err != nil || ns == 0 {
			return nil
		}
		l.encrypted = ns
	}
	return n.open(n.sessions.links.encrypted)
}

func (n *Network) tunnelTableName() string { return n.Table() + "_tunnels" }

// checkSessions makes the networks of sessions true and returns what does not hold in words; the caller holds mu.
func (n *Network) checkSessions() (warning string) {
	before := n.sessions.own
	err := n.openSessions()
	if err != nil {
		n.sessions.problem = fault.Unavailablef("the networks of sessions cannot be made").WithCause(err).WithReason(ReasonNetwork)
		return fmt.Sprintf("sessions of several kernels cannot run here: %s", err)
	}
	n.sessions.problem = nil
	if news := n.readyTunnel(); news || n.sessions.own != before {
		n.o.Changed()
	}
	if n.sessions.links.ns == 0 {
		return "" // no session here has had a network yet
	}
	if err := n.holdSessions(); err != nil {
		return fmt.Sprintf("kernels of one session may not reach each other: %s", err)
	}
	if why := n.sessions.encrypted.problem; why != nil && n.encrypts() {
		return fmt.Sprintf("the encrypted networks of sessions here are down: %s", why)
	}
	return ""
}

// holdSessions compares the networks of sessions with what they should be and repairs them; the caller holds mu. What fails in one holds up
// no other.
func (n *Network) holdSessions() error {
	s := &n.sessions
	h, err := s.links.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	want := n.wantedSessions()
	// The rules come first: no port is ever without its own.
	allowed := admittedBy(want).with(n.inherited())
	rules := []error{n.holdTable(s.links.ns, sessionTable(allowed)),
		n.holdTable(n.ns, tunnelTable(n.tunnelTableName(), s.links.port, allowed.ends))}
	if s.links.encrypted > 0 {
		rules = append(rules, n.holdTable(s.links.encrypted, tunnelTable(encryptedTable, s.links.port, allowed.inner)))
	}
	err = errors.Join(rules...)
	met := s.encrypted.meet(peersOf(want), err == nil)
	if err != nil {
		return errors.Join(err, met)
	}
	have, err := s.links.observe(h)
	if err != nil {
		return err
	}
	failed, errs := map[uint32]error{}, []error{met}
	for _, step := range planNetworks(want, have, s.own, func(id cluster.KernelID) bool { return !n.learned || n.members[id] != nil }) {
		if failed[step.number] != nil {
			continue
		}
		if err := s.links.do(h, step); err != nil {
			failed[step.number] = err
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (n *Network) holdTable(ns int, t table) error {
	r := n.open(ns)
	what, err := r.differs([]table{t})
	if err == nil && what == "" {
		return nil
	}
	return r.put([]table{t})
}
