// Package network is the network of the sessions of one agent, and the fence around it.
//
// The engine holds a bridge network of the agent's own; it routes it and translates addresses. The agent connects the
// containers itself: an interface for each, whose port on the bridge is isolated from all others. Two tables of nftables, made
// over netlink, decide what a session may reach: not its neighbours, not the host, and outside what the egress policy of its
// resource group says. They are desired state: they are compared with the kernel's at an interval and made again when they
// differ. An address that the tables do not know reaches nothing.
//
// The tables belong to the agent alone, and match nothing but its bridge and the ports of it.
package network

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Engine is what the network needs of a runtime.
type Engine interface {
	runtime.BridgeHolder
	runtime.EngineProcess
	List(ctx context.Context) ([]runtime.Observed, error)
}

// Options are what a network needs; all but StateDir are required.
type Options struct {
	Engine Engine
	Config Config
	// StateDir is the agent's directory, which holds the key of its encrypted tunnels; "" and it encrypts nothing.
	StateDir string
	// Scope and Agent name the network among others on the host.
	Scope string
	Agent cluster.AgentID
	Log   *slog.Logger
	Clock chassis.Clock
	// Changed is called when Problem or Warnings have changed.
	Changed func()
}

// ReasonNetwork is the reason of faults that say that the network of sessions is not there.
const ReasonNetwork = "network-not-ready"

// Network is the network of one agent's sessions.
type Network struct {
	o    Options
	set  settings
	id   string // of the agent on this host
	kick chan struct{}
	open func(ns int) rules
	// checking is held by one check at a time.
	checking sync.Mutex

	mu       sync.Mutex
	learned  bool // the containers of an earlier run are known
	ready    bool // sessions can be connected
	guarded  bool // the agent connects sessions and guards them; else the engine connects them
	ns       int  // descriptor of the engine's network namespace, 0 for that of this process
	inode    uint64
	subnet   netip.Prefix
	bridged  bool // the kernel has nftables for bridges
	counted  bool // the kernel can count the connections of an address
	held     parts
	gone     int // how often in a row the engine's process was not there
	closed   []netip.Prefix
	resolver []netip.Addr
	share    uint32 // how many connections a session may have
	members  map[cluster.KernelID]*session
	outside  map[cluster.KernelID]bool // containers that are on another network
	// wanted are policies of kernels that the manager named before their containers were known.
	wanted map[cluster.KernelID]cluster.Egress
	next   uint32
	// lacking is what keeps the kernel from guarding sessions, as found at the last attempt; nil when nothing does.
	lacking  error
	problem  error
	warnings []string
	rounds   int
	sessions sessions
}

// session is a kernel with an address.
type session struct {
	address netip.Addr
	egress  cluster.Egress
	// inherits: the manager has not said yet what the policy is.
	inherits bool
	// admitted: the tables hold it with the policy in force.
	admitted bool
	force    cluster.Egress
}

// Place is how a container joins the network.
type Place struct {
	Networks  []runtime.Network
	Resolvers []netip.Addr
	// Address is the container's, "" when the engine gives it one.
	Address string
	// Session is the container's address in the network of its session, "" when it has none there; Peers are the other kernels of the
	// session ("name:ip").
	Session string
	Peers   []string
}

// New returns a network; Run makes it.
func New(o Options) (*Network, error) {
	s, err := o.Config.read()
	if err != nil {
		return nil, err
	}
	return &Network{
		o: o, set: s, id: identify(o.Scope, o.Agent), kick: make(chan struct{}, 1), bridged: true, counted: true,
		open:    func(ns int) rules { return ruleset{ns} },
		members: map[cluster.KernelID]*session{}, outside: map[cluster.KernelID]bool{}, wanted: map[cluster.KernelID]cluster.Egress{},
		problem: beingMade(), sessions: sessions{kernels: map[cluster.KernelID]*cluster.SessionNetwork{}, told: map[cluster.KernelID]bool{}},
	}, nil
}

// identify names an agent among others of its host.
func identify(scope string, agent cluster.AgentID) string {
	sum := sha256.Sum256([]byte(scope + "\x00" + string(agent)))
	return hex.EncodeToString(sum[:4])
}

// Name is the network's in the engine.
func (n *Network) Name() string { return "berth-" + n.id }

// Bridge is the interface of the network on the host; the names of its ports begin with Bridge and a dash.
func (n *Network) Bridge() string { return "bt" + n.id }

// Table is the name of its tables in nftables.
func (n *Network) Table() string { return "berth_" + n.id }

func (n *Network) links() links { return links{ns: n.ns, ports: n.Bridge() + "-"} }

// checkEvery is the time between two comparisons with the kernel; every engineRounds-th asks the engine, too.
const (
	checkEvery   = 3 * time.Second
	sickEvery    = time.Second
	engineRounds = 10
	// maxGone is how many checks in a row find no process of the engine before it counts as one that cannot be seen.
	maxGone = 10
)

// Run makes the network and keeps it as it should be until ctx ends. What it made stays, but for the encrypted tunnel, which is there while
// the agent runs.
func (n *Network) Run(ctx context.Context) error {
	defer n.Close()
	for {
		wait := checkEvery
		if n.Check(ctx) != nil {
			wait = sickEvery
		}
		t := n.o.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C():
		case <-n.kick:
		}
		t.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Close ends the encrypted tunnel for good.
func (n *Network) Close() {
	n.checking.Lock()
	defer n.checking.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sessions.encrypted.closed = true
	n.closeTunnel()
}

// beingMade is why no session can be connected before the first check, and after a change of the engine.
func beingMade() error {
	return fault.Unavailablef("the network of sessions is being made").WithReason(ReasonNetwork)
}

func (n *Network) wake() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// Check compares the network with what it should be, repairs it, and returns what cannot be repaired.
func (n *Network) Check(ctx context.Context) error {
	n.checking.Lock()
	defer n.checking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	warnings, err := n.check(ctx)
	if ctx.Err() != nil && err != nil {
		return err
	}
	n.mu.Lock()
	var next error
	if err != nil {
		next = fault.Unavailablef("the network of sessions is broken: %s", err.Error()).WithReason(ReasonNetwork).WithCause(err).
			WithNext("%s", cmp.Or(fault.NextOf(err), "look at the agent's log; restarting the container engine makes its bridges anew"))
	}
	if len(n.outside) > 0 && n.guarded {
		warnings = append(warnings, fmt.Sprintf("%d sessions of an earlier version run on the engine's own network, where sessions reach "+
			"each other and the host: restart them", len(n.outside)))
	}
	changed := (next == nil) != (n.problem == nil) || next != nil && next.Error() != n.problem.Error() || !slices.Equal(warnings, n.warnings)
	n.problem, n.warnings, n.ready = next, warnings, next == nil
	n.mu.Unlock()
	if changed {
		if next != nil {
			n.o.Log.Error("no session can be connected", "err", next)
		} else {
			level := slog.LevelInfo
			if len(warnings) > 0 {
				level = slog.LevelWarn
			}
			n.o.Log.Log(ctx, level, "the network of sessions is ready", "network", n.Name(), "subnet", n.subnet, "guarded", n.guarded,
				"warnings", warnings)
		}
		n.o.Changed()
	}
	return next
}

func (n *Network) check(ctx context.Context) (warnings []string, err error) {
	if err := n.learn(ctx); err != nil {
		return nil, err
	}
	pid, err := n.o.Engine.EnginePID(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for the container engine: %w", err)
	}
	if pid == 0 {
		return n.unguarded(ctx, errors.New("the container engine is not on this host"))
	}
	err = n.enter(pid)
	switch {
	case err == nil:
		n.gone = 0
		return n.guard(ctx)
	case missing(err):
		// The engine is being restarted, most likely. Where the process of an engine that answers is never seen, nothing can be guarded.
		if n.gone++; n.gone < maxGone {
			return nil, fmt.Errorf("look for the container engine's process: %w", err)
		}
	case !unavailable(err):
		return nil, err
	}
	return n.unguarded(ctx, err)
}

// learn finds out, once, which containers an earlier run of the agent connected.
func (n *Network) learn(ctx context.Context) error {
	n.mu.Lock()
	done := n.learned
	n.mu.Unlock()
	if done {
		return nil
	}
	list, err := n.o.Engine.List(ctx)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range list {
		id := o.Identity.Kernel
		if n.members[id] != nil || o.Identity.HostNetwork {
			continue
		}
		a, err := netip.ParseAddr(o.Identity.Address)
		if err != nil || !a.Is4() {
			n.outside[id] = true
			continue
		}
		n.guarded = true // the earlier run guarded it
		// Nothing is open before the manager has said what is. What the tables of the earlier run say is kept meanwhile.
		n.members[id] = &session{address: a, egress: cluster.Egress{Mode: cluster.EgressNone}, inherits: true}
		if e, ok := n.wanted[id]; ok {
			n.members[id].egress, n.members[id].inherits = e, false
		}
	}
	clear(n.wanted)
	n.learned = true
	return nil
}

// enter opens the network namespace of the engine, again when the engine has another one after a restart.
func (n *Network) enter(pid int) error {
	fd, inode, err := openNamespace(pid)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if inode == n.inode {
		if fd > 0 {
			_ = unix.Close(fd)
		}
		return nil
	}
	if n.ns > 0 {
		_ = unix.Close(n.ns)
	}
	n.ns, n.inode = fd, inode
	n.subnet, n.lacking = netip.Prefix{}, nil // of another engine
	return nil
}

// unguarded has the engine connect sessions, because this process cannot. The engine keeps them from each other, no more.
//
// An agent that has guarded them once does not go back: its engine is being restarted, or something is broken. Sessions wait then.
func (n *Network) unguarded(ctx context.Context, why error) ([]string, error) {
	n.mu.Lock()
	if n.guarded {
		n.mu.Unlock()
		return nil, fmt.Errorf("guard it as before: %w", why)
	}
	made := n.ready && !n.guarded
	n.rounds++
	ask := !made || n.rounds%engineRounds == 0
	n.guarded = false
	n.mu.Unlock()
	if n.set.require {
		return nil, fault.Unavailablef("sessions cannot be kept from each other and from this host").WithCause(why).
			WithNext("run the agent as root beside its engine on a kernel with nftables, or set agent.network.require to false")
	}
	if ask {
		spec := runtime.BridgeSpec{Name: n.Name(), Interface: n.Bridge(), Subnets: candidates(n.set.pool, n.seed(), nil)}
		subnet, err := n.o.Engine.EnsureBridge(ctx, spec)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		n.subnet = subnet
		n.mu.Unlock()
	}
	return []string{"the network of sessions is not guarded: they reach this host and private addresses, and no egress policy but open can " +
		"be kept (" + why.Error() + "); set agent.network.require to refuse sessions instead"}, nil
}

func (n *Network) seed() uint32 {
	b, _ := hex.DecodeString(n.id) // it was made of bytes
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// hardwareAddress is that of the bridge, always the same for an agent: a locally administered one that holds its id.
func (n *Network) hardwareAddress() net.HardwareAddr {
	v := n.seed()
	return net.HardwareAddr{0x02, 0x62, byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
}

// Problem says why no session can be connected now; nil when they can.
func (n *Network) Problem() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problem
}

// Warnings says in words what does not hold although sessions are connected.
func (n *Network) Warnings() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.warnings)
}

// Join chooses how a kernel's container joins the network, before it is made. It may be called again and answers the same.
func (n *Network) Join(kernel cluster.KernelID, e cluster.Egress) (Place, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.problem != nil || !n.ready {
		return Place{}, n.problem
	}
	if !n.guarded {
		if !e.Open() {
			return Place{}, fault.Conflictf("this agent cannot keep the egress policy %s of the session's resource group", e).
				WithNext("%s", "run the agent as root beside its engine on a kernel with nftables")
		}
		p := Place{Networks: []runtime.Network{{Name: n.Name()}}}
		err := n.joinSession(kernel, &p)
		return p, err
	}
	s := n.members[kernel]
	if s == nil || !n.subnet.Contains(s.address) {
		a, err := n.free()
		if err != nil {
			return Place{}, err
		}
		s = &session{address: a}
		n.members[kernel] = s
	}
	s.egress, s.inherits = e, false
	p := Place{
		Networks: []runtime.Network{{Name: runtime.NetworkNone}}, Resolvers: slices.Clone(n.resolver), Address: s.address.String(),
	}
	err := n.joinSession(kernel, &p)
	return p, err
}

// free finds an address that nobody has; the caller holds mu. It goes round the subnet, so that an address rests after its use.
func (n *Network) free() (netip.Addr, error) {
	used := make(map[netip.Addr]bool, len(n.members))
	for _, s := range n.members {
		used[s.address] = true
	}
	b := n.subnet.Masked().Addr().As4()
	base := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	room := uint32(1)<<(32-n.subnet.Bits()) - 3 // without the network, the gateway and the broadcast address
	for range room {
		v := base + 2 + n.next%room
		n.next++
		if a := netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}); !used[a] {
			return a, nil
		}
	}
	return netip.Addr{}, fault.Exhaustedf("all %d addresses of the network of sessions are in use", room).
		WithNext("end sessions on this agent, or use another")
}

// Connect connects the container whose first process is pid, with its policy in force before. Calling it again changes nothing.
func (n *Network) Connect(kernel cluster.KernelID, pid int) error {
	n.mu.Lock()
	s := n.members[kernel]
	if s == nil || !n.guarded {
		n.mu.Unlock()
		return nil
	}
	if !n.subnet.IsValid() { // containers of an earlier run are known before the network is there again
		defer n.mu.Unlock()
		if n.problem != nil {
			return n.problem
		}
		return beingMade()
	}
	l, a, subnet, own := n.links(), s.address, n.subnet, n.inode
	err := n.admit(s)
	join, sessionErr := n.connectSession(kernel, pid)
	n.mu.Unlock()
	if err != nil {
		n.wake()
		return fault.Unavailablef("the rules for the network of kernel %s cannot be set", kernel).WithCause(err).WithReason(ReasonNetwork)
	}
	// The network of the session comes before the interface whose route the runner waits for.
	if sessionErr == nil {
		sessionErr = join()
	}
	if sessionErr != nil {
		n.wake()
		return fault.Unavailablef("the container of kernel %s cannot be connected with those of its session", kernel).WithCause(sessionErr).
			WithReason(ReasonNetwork)
	}
	if err := l.connect(n.Bridge(), subnet, a, kernel, pid, own); err != nil {
		n.wake()
		return fault.Unavailablef("the container of kernel %s cannot be connected", kernel).WithCause(err).WithReason(ReasonNetwork)
	}
	return nil
}

// admit puts a session into the tables; the caller holds mu.
func (n *Network) admit(s *session) error {
	if s.admitted && s.force == s.egress {
		return nil
	}
	r, fresh := n.open(n.ns), !s.admitted
	before := n.tables()
	s.admitted, s.force = true, s.egress
	if fresh && n.bridged && hasChain(before[0], s.egress) {
		if err := r.admit(before, s.address, member{n.links().port(s.address), s.force}); err == nil {
			return nil
		}
	}
	if err := r.put(n.tables()); err != nil {
		s.admitted = !fresh
		return err
	}
	return nil
}

func hasChain(t table, e cluster.Egress) bool {
	_, out := chainsOf(e)
	return slices.ContainsFunc(t.chains, func(c chain) bool { return c.chain.Name == out })
}

// SetEgress takes the policy that the manager wants for a kernel that may be running. It holds within moments.
func (n *Network) SetEgress(kernel cluster.KernelID, e cluster.Egress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.members[kernel]
	switch {
	case s == nil && !n.learned:
		n.wanted[kernel] = e
	case s != nil && (s.egress != e || s.inherits):
		s.egress, s.inherits = e, false
		n.wake()
	}
}

// Release takes the address of a kernel back whose container is gone. Its interface goes with the container's network namespace.
func (n *Network) Release(kernel cluster.KernelID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.outside, kernel)
	delete(n.wanted, kernel)
	n.releaseSession(kernel)
	s := n.members[kernel]
	if s == nil {
		return
	}
	delete(n.members, kernel)
	if !n.guarded || !s.admitted || !n.bridged {
		return
	}
	if err := n.open(n.ns).expel(n.tables(), s.address, member{n.links().port(s.address), s.force}); err != nil {
		n.wake() // the comparison takes it out
	}
}

// Left names what networks of sessions an agent has on this host: the network namespace that holds them, and the interfaces in it. It is
// for agents that do not run and have no containers.
func Left(scope string, agent cluster.AgentID) (space string, interfaces []string, err error) {
	n := &Network{id: identify(scope, agent)}
	interfaces, err = leftIn(n.spaceName())
	if err != nil {
		return n.spaceName(), interfaces, err
	}
	inside, err := leftIn(n.encryptedSpaceName())
	return n.spaceName(), append(interfaces, inside...), err
}

// Remove removes everything that the network of an agent has on this host. The agent must not run.
func Remove(ctx context.Context, o Options) error {
	n, err := New(o)
	if err != nil {
		return err
	}
	pid, err := o.Engine.EnginePID(ctx)
	if err != nil {
		return fmt.Errorf("look for the container engine: %w", err)
	}
	if pid != 0 {
		err = n.enter(pid)
		if err == nil {
			err = (ruleset{n.ns}).remove(append(tables(ruleInput{Table: n.Table(), Subnet: n.set.pool}),
				tunnelTable(n.tunnelTableName(), n.set.tunnelPort, nil)))
			err = errors.Join(err, removeSessionSpace(n.spaceName()), removeSessionSpace(n.encryptedSpaceName()))
			if n.ns > 0 {
				_ = unix.Close(n.ns)
			}
		}
		if err != nil && !unavailable(err) && !missing(err) {
			return err
		}
	}
	return o.Engine.RemoveBridge(ctx, n.Name())
}
