package network_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/network"
	engine "berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
)

// world is a host in network namespaces of the test's own: the engine's, one behind it, and one for each session.
type world struct {
	testing.TB
	pid     int // of a process in the engine's namespace
	subnet  netip.Prefix
	spec    engine.BridgeSpec
	made    int
	refuse  error
	present []engine.Observed
	changed int
}

// far is what stands for the internet, and the address of a private host behind the engine's.
const (
	far     = "44.44.44.44"
	private = "10.99.0.2"
)

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root makes network namespaces")
	}
	w := &world{TB: t}
	w.pid = w.namespace()
	out := w.namespace()
	w.in(w.pid, func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			return err
		}
		ns, err := netns.GetFromPid(out)
		if err != nil {
			return err
		}
		defer ns.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "up0"
		return errors.Join(
			netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up1", PeerNamespace: netlink.NsFd(int(ns))}),
			addressed("up0", "10.99.0.1/24"), addressed("lo", "127.0.0.1/8"),
			routed("up0", far+"/32", private))
	})
	w.in(out, func() error {
		return errors.Join(addressed("up1", private+"/24"), addressed("lo", far+"/32"), routed("up1", "0.0.0.0/0", "10.99.0.1"))
	})
	w.listen(w.pid, "tcp", ":7000")
	w.listen(w.pid, "tcp6", "[::]:7001")
	w.listen(out, "tcp", ":80")
	w.listen(out, "tcp", ":3128")
	return w
}

func link(name string) netlink.Link { return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name}} }

func addressed(name, address string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(l, a); err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func routed(name, to, via string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: net.ParseIP(via)})
}

// namespace starts a process with a network of its own and returns its pid.
func (w *world) namespace() int {
	w.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		w.Skipf("this process may make no network namespace: %v", err)
	}
	w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// in runs do in the network namespace of a process.
func (w *world) in(pid int, do func() error) {
	w.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := netns.GetFromPid(pid)
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	require.NoError(w, await.Value(w, done))
}

// listen greets everybody who connects.
func (w *world) listen(pid int, netw, address string) {
	w.Helper()
	w.in(pid, func() error {
		l, err := net.Listen(netw, address)
		if err != nil {
			return err
		}
		w.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, "hi")
				w.Cleanup(func() { _ = c.Close() })
			}
		}()
		return nil
	})
}

// reaches reports whether a process's namespace reaches an address.
func (w *world) reaches(pid int, netw, address string) (ok bool) {
	w.Helper()
	w.in(pid, func() error {
		c, err := net.DialTimeout(netw, address, 700*time.Millisecond)
		if err != nil {
			return nil
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		b := make([]byte, 2)
		_, err = io.ReadFull(c, b)
		ok = err == nil
		return nil
	})
	return ok
}

// patience is how long what is expected to answer may take.
const patience = time.Minute

// comesToReach is reaches where that is expected: on a busy machine an answer may take longer than reaches waits.
func (w *world) comesToReach(pid int, netw, address string) bool {
	w.Helper()
	deadline := time.Now().Add(patience)
	for !w.reaches(pid, netw, address) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// The engine's part: it makes the bridge and nothing else.

func (w *world) EnsureBridge(_ context.Context, spec engine.BridgeSpec) (netip.Prefix, error) {
	if w.refuse != nil {
		return netip.Prefix{}, w.refuse
	}
	w.spec = spec
	if w.subnet.IsValid() && !spec.Renew {
		return w.subnet, nil
	}
	w.made++
	w.subnet = spec.Subnets[0]
	gateway := netip.PrefixFrom(w.subnet.Addr().Next(), w.subnet.Bits())
	w.in(w.pid, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = spec.Interface
		_ = netlink.LinkDel(link(spec.Interface))
		return errors.Join(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}), addressed(spec.Interface, gateway.String()))
	})
	return w.subnet, nil
}

func (w *world) RemoveBridge(context.Context, string) error {
	w.in(w.pid, func() error { return netlink.LinkDel(link(w.spec.Interface)) })
	w.subnet = netip.Prefix{}
	return nil
}

func (w *world) EnginePID(context.Context) (int, error)          { return w.pid, nil }
func (w *world) List(context.Context) ([]engine.Observed, error) { return w.present, nil }
func (w *world) options(change ...func(*network.Config)) network.Options {
	c := network.DefaultConfig()
	c.Resolvers = []string{"9.9.9.9"}
	for _, f := range change {
		f(&c)
	}
	return network.Options{Engine: w, Config: c, Scope: "scope", Agent: "i-test", Log: slog.New(slog.DiscardHandler),
		Clock: chassis.RealClock(), Changed: func() { w.changed++ }}
}

func (w *world) network(change ...func(*network.Config)) *network.Network {
	w.Helper()
	n, err := network.New(w.options(change...))
	require.NoError(w, err)
	require.NoError(w, n.Check(w.Context()))
	for _, s := range n.Warnings() {
		if s != "" && w.present == nil {
			w.Skipf("this kernel cannot guard a network: %s", s)
		}
	}
	return n
}

// session connects a new session and returns the pid of a process in it, and its address.
func (w *world) session(n *network.Network, kernel cluster.KernelID, egress string) (pid int, address string) {
	w.Helper()
	e, err := cluster.ParseEgress(egress)
	require.NoError(w, err)
	p, err := n.Join(kernel, e)
	require.NoError(w, err)
	require.Equal(w, []engine.Network{{Name: engine.NetworkNone}}, p.Networks)
	pid = w.namespace()
	w.in(pid, func() error { return addressed("lo", "127.0.0.1/8") }) // as an engine does
	require.NoError(w, n.Connect(kernel, pid))
	require.NoError(w, n.Connect(kernel, pid), "it may be called again")
	w.listen(pid, "tcp", ":8000")
	return pid, p.Address
}

const (
	ada  cluster.KernelID = "0b5e4a3c-0000-4000-8000-00000000000a"
	bob  cluster.KernelID = "0b5e4a3c-0000-4000-8000-00000000000b"
	carl cluster.KernelID = "0b5e4a3c-0000-4000-8000-00000000000c"
	dora cluster.KernelID = "0b5e4a3c-0000-4000-8000-00000000000d"
)

func TestSessionsReachNeitherEachOtherNorTheHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.network()
	a, _ := w.session(n, ada, "open")
	b, address := w.session(n, bob, "open")

	require.True(t, w.comesToReach(b, "tcp", address+":8000"), "what listens is there")
	require.False(t, w.reaches(a, "tcp", address+":8000"), "a neighbour")
	gateway := w.subnet.Addr().Next().String()
	for _, host := range []string{gateway, "10.99.0.1"} {
		require.True(t, w.comesToReach(w.pid, "tcp", host+":7000"), "what listens is there")
		require.False(t, w.reaches(a, "tcp", host+":7000"), "the host by %s", host)
	}
	require.False(t, w.reaches(a, "tcp", private+":80"), "a private address behind the host")
	require.True(t, w.comesToReach(w.pid, "tcp", private+":80"))
	require.False(t, w.reaches(a, "tcp", "169.254.169.254:80"), "metadata")
	require.True(t, w.comesToReach(a, "tcp", far+":80"), "the internet")
	require.True(t, w.comesToReach(w.pid, "tcp", address+":8000"), "the host reaches sessions")

	for _, ll := range append(w.linkLocal(b, "eth0"), w.linkLocal(w.pid, w.spec.Interface)...) {
		require.False(t, w.reaches(a, "tcp6", "["+ll+"%eth0]:7001"), "link-local %s", ll)
		require.False(t, w.reaches(a, "tcp6", "["+ll+"%eth0]:8000"), "link-local %s", ll)
	}
}

// linkLocal are the IPv6 addresses of an interface.
func (w *world) linkLocal(pid int, name string) (out []string) {
	w.in(pid, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		list, err := netlink.AddrList(l, netlink.FAMILY_V6)
		for _, a := range list {
			out = append(out, a.IP.String())
		}
		return err
	})
	return out
}

func TestEgressPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.network(func(c *network.Config) { c.Allow, c.Deny = []string{"10.99.0.1:7000"}, []string{"44.44.44.0/30"} })
	a, _ := w.session(n, ada, "open")
	b, _ := w.session(n, bob, "none")
	c, _ := w.session(n, carl, "proxy:"+private+":3128")
	d, _ := w.session(n, dora, "proxy:"+far+":3128")
	answers := func(expected bool, pid int, address string) bool {
		if expected {
			return w.comesToReach(pid, "tcp", address)
		}
		return w.reaches(pid, "tcp", address)
	}
	for _, x := range []struct {
		what             string
		address          string
		open, none, p, q bool
	}{
		{"the internet", far + ":80", true, false, false, false},
		{"a private proxy", private + ":3128", false, false, true, false},
		{"another proxy", far + ":3128", true, false, false, true},
		{"the proxy's host", private + ":80", false, false, false, false},
		{"a port of the host that the operator opened", "10.99.0.1:7000", true, false, false, false},
		{"a port of the host that he did not", "10.99.0.1:7001", false, false, false, false},
	} {
		require.Equal(t, x.open, answers(x.open, a, x.address), "open: %s", x.what)
		require.Equal(t, x.none, answers(x.none, b, x.address), "none: %s", x.what)
		require.Equal(t, x.p, answers(x.p, c, x.address), "proxy: %s", x.what)
		require.Equal(t, x.q, answers(x.q, d, x.address), "proxy: %s", x.what)
	}
	// A change holds for live sessions, and cuts connections that it does not include.
	var conn net.Conn
	w.in(a, func() (err error) { conn, err = net.DialTimeout("tcp", far+":80", patience); return err })
	defer conn.Close()
	n.SetEgress(ada, cluster.Egress{Mode: cluster.EgressNone})
	n.SetEgress(bob, cluster.Egress{Mode: cluster.EgressOpen})
	require.NoError(t, n.Check(t.Context()))
	require.False(t, w.reaches(a, "tcp", far+":80"))
	require.True(t, w.comesToReach(b, "tcp", far+":80"))
	_, err := conn.Write([]byte("x"))
	if err == nil {
		_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		_, err = io.ReadAll(conn) // the greeting, and then nothing more
	}
	require.Error(t, err)
	// A policy with a chain of its own that is not there yet.
	n.SetEgress(ada, cluster.Egress{Mode: cluster.EgressProxy, Proxy: netip.MustParseAddrPort(far + ":80")})
	require.NoError(t, n.Check(t.Context()))
	require.True(t, w.comesToReach(a, "tcp", far+":80"))
	require.False(t, w.reaches(a, "tcp", far+":3128"))
}

// TestFalseAddresses: a session that could send with any address reaches nothing with that of another.
func TestFalseAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.network()
	a, _ := w.session(n, ada, "none")
	b, address := w.session(n, bob, "open")
	require.True(t, w.comesToReach(b, "tcp", far+":80"))
	n.Release(bob) // so that the address is free on the wire, while its rules may linger
	p, err := n.Join(carl, cluster.Egress{})
	require.NoError(t, err)
	require.NotEqual(t, address, p.Address, "an address rests after its use")
	c := w.namespace()
	require.NoError(t, n.Connect(carl, c))
	require.True(t, w.comesToReach(c, "tcp", far+":80"))
	w.in(a, func() error { return addressed("eth0", p.Address+"/22") })
	w.in(a, func() error {
		d := net.Dialer{Timeout: 500 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.ParseIP(p.Address)}}
		c, err := d.Dial("tcp", far+":80")
		if err == nil {
			_ = c.Close()
			return fmt.Errorf("the address of another session lets through")
		}
		return nil
	})
	w.in(a, func() error { return addressed("eth0", address+"/22") })
	require.False(t, w.reaches(a, "tcp", far+":80"))
}

func TestRulesComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.network()
	a, _ := w.session(n, ada, "open")
	b, address := w.session(n, bob, "none")
	closed := func() {
		t.Helper()
		require.NoError(t, n.Check(t.Context()))
		require.False(t, w.reaches(a, "tcp", address+":8000"))
		require.False(t, w.reaches(a, "tcp", "10.99.0.1:7000"))
		require.False(t, w.reaches(b, "tcp", far+":80"))
		require.True(t, w.comesToReach(a, "tcp", far+":80"))
	}
	closed()
	flush := func(do func(c *nftables.Conn) error) {
		w.in(w.pid, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			return errors.Join(do(c), c.Flush())
		})
	}
	flush(func(c *nftables.Conn) error { c.FlushRuleset(); return nil })
	require.True(t, w.comesToReach(a, "tcp", "10.99.0.1:7000"), "the fence is down")
	closed()
	flush(func(c *nftables.Conn) error { // one rule
		rules, err := c.GetRules(&nftables.Table{Name: n.Table(), Family: nftables.TableFamilyINet}, &nftables.Chain{Name: "host"})
		if err != nil {
			return err
		}
		return c.DelRule(rules[len(rules)-1])
	})
	closed()
	flush(func(c *nftables.Conn) error { // one element
		s, err := c.GetSetByName(&nftables.Table{Name: n.Table(), Family: nftables.TableFamilyINet}, "closed")
		if err != nil {
			return err
		}
		c.FlushSet(s)
		return nil
	})
	closed()
	// The bridge itself: the engine makes it again, and the ports go back.
	w.in(w.pid, func() error { return netlink.LinkDel(link(w.spec.Interface)) })
	closed()
	require.Equal(t, 2, w.made)
	require.Positive(t, w.changed)

	w.refuse = fault.Unavailablef("the engine makes no bridge")
	w.in(w.pid, func() error { return netlink.LinkDel(link(w.spec.Interface)) })
	require.ErrorContains(t, n.Check(t.Context()), "the engine makes no bridge")
	_, err := n.Join(carl, cluster.Egress{})
	require.True(t, fault.Is(err, fault.Unavailable), "sessions wait: %v", err)
	require.ErrorIs(t, n.Problem(), err)
	w.refuse = nil
	closed()
	require.NoError(t, n.Problem())
}

// TestOneSessionDoesNotTakeAllConnections: the host remembers every connection in a table of fixed size, so a session has a part of it.
func TestOneSessionDoesNotTakeAllConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.network()
	a, _ := w.session(n, ada, "open")
	b, _ := w.session(n, bob, "open")
	number := func(name string) (v int) {
		w.in(w.pid, func() error {
			text, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
			if err != nil {
				return err
			}
			v, err = strconv.Atoi(strings.TrimSpace(string(text)))
			return err
		})
		return v
	}
	most := number("nf_conntrack_max") / 16
	// By default what nobody answers is forgotten after 30 s. On a busy machine that is sooner than the last line of this test.
	w.in(w.pid, func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte("3600"), 0o644)
	})
	require.LessOrEqual(t, most, 50000, "this kernel has too many connections for the test")
	flood := func(from int, to string) {
		var c net.PacketConn
		w.in(from, func() (err error) { c, err = net.ListenPacket("udp4", ":0"); return err })
		defer c.Close()
		// Each datagram costs the kernel a look at all connections of the session. A few at a time, so that the patience of w.in is for
		// those, not for all.
		const few = 256
		for first := 0; first < most+4096; first += few {
			w.in(from, func() error {
				for i := range few {
					_, err := c.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(to), Port: 1000 + first + i})
					if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EHOSTUNREACH) {
						return err
					}
				}
				return nil
			})
		}
	}
	flood(b, private)
	require.Less(t, number("nf_conntrack_count"), most, "what is refused is not remembered")
	require.True(t, w.comesToReach(b, "tcp", far+":80"), "and does not count")
	flood(a, far)
	require.Greater(t, number("nf_conntrack_count"), most/2, "connections are counted where the test looks")
	require.LessOrEqual(t, number("nf_conntrack_count"), most+64)
	require.False(t, w.reaches(a, "tcp", far+":80"))
	require.True(t, w.comesToReach(b, "tcp", far+":80"), "another session has its own part")
	require.NoError(t, n.Check(t.Context()))
	require.False(t, w.reaches(a, "tcp", far+":80"), "a check does not begin to count anew")
}

// TestAGuardIsKept: while the engine is being restarted its process is gone. That is no host without a guard.
func TestAGuardIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.network()
	a, _ := w.session(n, ada, "open")
	alive := w.pid
	for name, pid := range map[string]int{"its process has ended": 1 << 30, "its process is unknown": 0} {
		w.pid = pid
		require.Error(t, n.Check(t.Context()), name)
		_, err := n.Join(bob, cluster.Egress{})
		require.True(t, fault.Is(err, fault.Unavailable), "sessions wait: %s: %v", name, err)
		w.pid = alive
		require.NoError(t, n.Check(t.Context()), name)
	}
	b, address := w.session(n, bob, "none")
	require.True(t, w.comesToReach(a, "tcp", far+":80"))
	require.False(t, w.reaches(a, "tcp", address+":8000"))
	require.False(t, w.reaches(b, "tcp", far+":80"))
}

// TestTheFirstCheckWhileTheEngineRestarts: an agent that starts while its engine is being restarted has sessions wait for their guard.
func TestTheFirstCheckWhileTheEngineRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alive := w.pid
	for name, c := range map[string]struct {
		pid     int
		present []engine.Observed
	}{
		"its process has ended": {1 << 30, nil},
		"its process is unknown, and sessions were guarded": {0, []engine.Observed{{Identity: engine.Identity{Kernel: ada,
			Address: "10.222.0.9"}, Phase: engine.PhaseRunning}}},
	} {
		w.pid, w.present = c.pid, c.present
		n, err := network.New(w.options())
		require.NoError(t, err)
		for range 3 {
			require.Error(t, n.Check(t.Context()), name)
			_, err = n.Join(bob, cluster.Egress{})
			require.True(t, fault.Is(err, fault.Unavailable), "sessions wait: %s: %v", name, err)
		}
		w.pid = alive
		require.NoError(t, n.Check(t.Context()), name)
		p, err := n.Join(bob, cluster.Egress{})
		require.NoError(t, err)
		require.NotEmpty(t, p.Address, "%s: it is guarded", name)
	}
}

// TestNewAgentTakesOver: another process of the agent finds the sessions of the one before, and what they may do.
func TestNewAgentTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.network()
	a, first := w.session(old, ada, "open")
	b, second := w.session(old, bob, "none")
	c, third := w.session(old, carl, "proxy:"+private+":3128")
	for kernel, address := range map[cluster.KernelID]string{ada: first, bob: second, carl: third, dora: ""} {
		w.present = append(w.present, engine.Observed{Identity: engine.Identity{Kernel: kernel, Address: address}, Phase: engine.PhaseRunning})
	}
	n := w.network()
	require.Len(t, n.Warnings(), 1, "one is on another network")
	require.Contains(t, n.Warnings()[0], "1 sessions of an earlier version")
	require.True(t, w.comesToReach(a, "tcp", far+":80"))
	require.False(t, w.reaches(b, "tcp", far+":80"))
	require.True(t, w.comesToReach(c, "tcp", private+":3128"))
	p, err := n.Join("0b5e4a3c-0000-4000-8000-00000000000e", cluster.Egress{})
	require.NoError(t, err)
	require.NotContains(t, []string{first, second, third}, p.Address)
	n.Release(dora)
	require.NoError(t, n.Check(t.Context()))
	require.Empty(t, n.Warnings())

	o := w.options()
	require.NoError(t, network.Remove(t.Context(), o))
	w.in(w.pid, func() error {
		nft, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := nft.ListTables()
		if len(tables) != 0 {
			err = fmt.Errorf("%d tables are left", len(tables))
		}
		if _, lerr := netlink.LinkByName(w.spec.Interface); lerr == nil {
			err = errors.Join(err, errors.New("the bridge is left"))
		}
		return err
	})
	_ = unix.SIGKILL
}

// TestWithoutGuard: an agent that cannot guard says so, keeps no policy but open, and refuses everything where it must guard.
func TestWithoutGuard(t *testing.T) {
	t.Parallel()
	w := &world{TB: t, subnet: netip.MustParsePrefix("10.222.0.0/22")}
	n, err := network.New(w.options())
	require.NoError(t, err)
	_, err = n.Join(ada, cluster.Egress{})
	require.True(t, fault.Is(err, fault.Unavailable))
	require.NoError(t, n.Check(t.Context()))
	require.Len(t, n.Warnings(), 1)
	require.Contains(t, n.Warnings()[0], "not guarded")
	p, err := n.Join(ada, cluster.Egress{})
	require.NoError(t, err)
	require.Equal(t, []engine.Network{{Name: n.Name()}}, p.Networks)
	require.Empty(t, p.Address)
	_, err = n.Join(bob, cluster.Egress{Mode: cluster.EgressNone})
	require.True(t, fault.Is(err, fault.Conflict))

	n, err = network.New(w.options(func(c *network.Config) { c.Require = true }))
	require.NoError(t, err)
	require.Error(t, n.Check(t.Context()))
	_, err = n.Join(ada, cluster.Egress{})
	require.True(t, fault.Is(err, fault.Unavailable))
	require.ErrorContains(t, err, "sessions cannot be kept from each other")
}

// TestAKernelWithoutTables: an agent whose kernel has no tables of nftables for addresses says so once, and asks for them now and then: the
// module may be loaded later.
func TestAKernelWithoutTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var log bytes.Buffer
	o := w.options()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	n, err := network.New(o)
	require.NoError(t, err)
	refusal := network.Refusals(unix.EOPNOTSUPP, unix.ENOENT, unix.ENOENT) // as a kernel answers the messages of one transaction
	asked := n.Refuse(&refusal)
	const rounds = 45 // of 3 s
	for range rounds {
		require.NoError(t, n.Check(t.Context()))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "level=WARN")
	require.LessOrEqual(t, *asked, 4*(1+rounds/9), "four ways to make them, every 27 s at most")
	require.Len(t, n.Warnings(), 1)
	require.Contains(t, n.Warnings()[0], "not guarded")
	require.Contains(t, n.Warnings()[0], "CONFIG_NF_TABLES_INET")
	require.NotContains(t, n.Warnings()[0], "\n")
	require.NotContains(t, n.Warnings()[0], unix.ENOENT.Error(), "what follows from the first refusal")
	require.Equal(t, 1, w.changed)
	_, err = n.Join(ada, cluster.Egress{Mode: cluster.EgressNone})
	require.True(t, fault.Is(err, fault.Conflict), "a policy that cannot be kept is refused: %v", err)

	refusal = nil
	for range 10 {
		require.NoError(t, n.Check(t.Context()))
	}
	require.Empty(t, n.Warnings())
	a, _ := w.session(n, ada, "none")
	require.False(t, w.reaches(a, "tcp", far+":80"))

	// What was guarded is not left alone: sessions wait, and every check tries again.
	refusal = unix.EOPNOTSUPP
	w.in(w.pid, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.FlushRuleset()
		return c.Flush()
	})
	for range 3 {
		before := *asked
		require.Error(t, n.Check(t.Context()))
		require.Greater(t, *asked, before)
		_, err = n.Join(bob, cluster.Egress{})
		require.True(t, fault.Is(err, fault.Unavailable), "sessions wait: %v", err)
	}
	refusal = nil
	require.NoError(t, n.Check(t.Context()))
	require.False(t, w.reaches(a, "tcp", far+":80"))

	refusal = unix.EOPNOTSUPP
	n, err = network.New(w.options(func(c *network.Config) { c.Require = true }))
	require.NoError(t, err)
	n.Refuse(&refusal)
	require.NoError(t, network.Remove(t.Context(), w.options()))
	require.ErrorContains(t, n.Check(t.Context()), "sessions cannot be kept from each other")
	_, err = n.Join(bob, cluster.Egress{})
	require.True(t, fault.Is(err, fault.Unavailable), "an agent that must guard takes no session: %v", err)
}
