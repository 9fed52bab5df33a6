package wireguard_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/wireguard"
	"berth.dev/berth/internal/testkit/await"
)

// host is one end: the namespace of a host, that of its tunnel, and that of a kernel whose VXLAN interface was made beside the tunnel.
type host struct {
	testing.TB
	underlay, space, kernel netns.NsHandle
	key                     wireguard.Key
	endpoint                netip.AddrPort
	device                  *wireguard.Device
}

const (
	port      = 4798
	vxlanPort = 4799
	cableMTU  = 1500
)

// namespace makes a network namespace, which ends with the test.
func namespace(t testing.TB) netns.NsHandle {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root makes network namespaces")
	}
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Skipf("this process may make no network namespace: %v", err)
	}
	ns, err := netns.GetFromPid(cmd.Process.Pid)
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.NoError(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// in runs do in a namespace.
func in(t testing.TB, ns netns.NsHandle, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	require.NoError(t, await.Value(t, done))
}

func addressed(name, address string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	return errors.Join(netlink.AddrReplace(l, a), netlink.LinkSetUp(l))
}

// newHosts makes two hosts and a cable between them. Without /dev/net/tun the test is skipped.
func newHosts(t testing.TB) (a, b *host) {
	t.Helper()
	if err := wireguard.Supported(); err != nil {
		t.Skipf("%v", err)
	}
	make := func(address string) *host {
		h := &host{TB: t, underlay: namespace(t), space: namespace(t), kernel: namespace(t),
			endpoint: netip.AddrPortFrom(netip.MustParseAddr(address), port)}
		h.renew()
		return h
	}
	a, b = make("192.0.2.1"), make("192.0.2.2")
	in(t, a.underlay, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "cable", cableMTU
		return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "cable", PeerNamespace: netlink.NsFd(int(b.underlay)),
			PeerMTU: cableMTU}), addressed("cable", "192.0.2.1/24"))
	})
	in(t, b.underlay, func() error { return addressed("cable", "192.0.2.2/24") })
	return a, b
}

// renew gives a host the key of a new installation.
func (h *host) renew() {
	h.Helper()
	state, err := os.OpenRoot(h.TempDir())
	require.NoError(h, err)
	defer state.Close()
	h.key, err = wireguard.LoadKey(state, rand.Reader)
	require.NoError(h, err)
}

func (h *host) peer() wireguard.Peer {
	return wireguard.Peer{Key: h.key.Public(), Endpoint: h.endpoint}
}

// open starts a host's tunnel.
func (h *host) open(peers ...wireguard.Peer) {
	h.Helper()
	mtu, ok := wireguard.MTU(cableMTU, true)
	require.True(h, ok)
	d, err := wireguard.Open(wireguard.Options{Key: h.key, Port: port, Space: int(h.space), Underlay: int(h.underlay), MTU: mtu,
		Log: slog.New(slog.DiscardHandler), Now: time.Now})
	require.NoError(h, err)
	h.Cleanup(d.Close)
	h.device = d
	require.NoError(h, d.Set(peers))
}

// vxlan makes a session's interface beside the tunnel and moves it to the kernel, as agents do.
func (h *host) vxlan(to *host, address string) {
	h.Helper()
	in(h, h.space, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.Namespace = "vx1", 1370, netlink.NsFd(int(h.kernel))
		return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 77, SrcAddr: h.key.Public().Inner().AsSlice(),
			Group: to.key.Public().Inner().AsSlice(), Port: vxlanPort, Learning: true, NoAge: true})
	})
	in(h, h.kernel, func() error { return addressed("vx1", address) })
}

// wire looks at all packets of the cable.
type wire struct {
	fd       int
	mu       sync.Mutex
	sealed   int // packets between the ports of tunnels
	others   []string
	contents bool
	from     *host
	marks    int
}

const secretWord = "the-word-that-nobody-on-the-wire-may-read"

func (h *host) watch() *wire {
	h.Helper()
	w := &wire{from: h}
	in(h, h.underlay, func() (err error) {
		const all = unix.ETH_P_ALL
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all<<8)
		if err != nil {
			return err
		}
		return unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 1<<16)
		for {
			n, _, err := unix.Recvfrom(w.fd, b, 0)
			if err == nil {
				w.note(b[:n])
				continue
			}
			select {
			case <-end:
				return
			default:
			}
		}
	}()
	h.Cleanup(func() { close(end); <-ended; _ = unix.Close(w.fd) })
	return w
}

func (w *wire) note(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.contents = w.contents || bytes.Contains(p, []byte(secretWord))
	if len(p) < 42 || p[12] != 8 || p[13] != 0 {
		return // ARP, and what IPv6 says of itself
	}
	if p[23] == unix.IPPROTO_ICMP {
		return // a host whose tunnel is down says that nobody hears at its port, and quotes the sealed packet
	}
	if p[23] == unix.IPPROTO_UDP && int(p[36])<<8|int(p[37]) == 9 {
		w.marks++
		return
	}
	if p[23] == unix.IPPROTO_UDP && int(p[36])<<8|int(p[37]) == port {
		w.sealed++
		return
	}
	w.others = append(w.others, fmt.Sprintf("protocol %d, port %d", p[23], int(p[36])<<8|int(p[37])))
}

// clean fails when something was in clear among what has been sent so far. All of it has been seen when a mark that comes after it has.
func (w *wire) clean(t testing.TB) {
	t.Helper()
	w.mu.Lock()
	before := w.marks
	w.mu.Unlock()
	require.Eventually(t, func() bool {
		in(t, w.from.underlay, func() error {
			u, err := net.Dial("udp4", "192.0.2.2:9")
			if err != nil {
				return err
			}
			defer u.Close()
			_, _ = io.WriteString(u, "mark") // nobody listens
			return nil
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.marks > before
	}, 30*time.Second, 10*time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.False(t, w.contents, "the contents are on the wire")
	require.Empty(t, w.others)
	require.NotZero(t, w.sealed)
}

// talk opens a connection between two kernels; say fails when what is said does not come back.
func talk(t testing.TB, from, to *host, address string) (say func(), c net.Conn) {
	t.Helper()
	in(t, to.kernel, func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() {
			defer l.Close()
			if c, err := l.Accept(); err == nil {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}
		}()
		return nil
	})
	in(t, from.kernel, func() (err error) {
		c, err = net.DialTimeout("tcp", address, 30*time.Second)
		return err
	})
	t.Cleanup(func() { _ = c.Close() })
	return func() {
		t.Helper()
		require.NoError(t, c.SetDeadline(time.Now().Add(60*time.Second)))
		_, err := io.WriteString(c, secretWord)
		require.NoError(t, err)
		b := make([]byte, len(secretWord))
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
	}, c
}

// TestKernelsTalkThroughTheTunnel: VXLAN between two hosts is sealed on the wire. While a tunnel is down nothing is sent in clear, and
// connections live on when it is back.
func TestKernelsTalkThroughTheTunnel(t *testing.T) {
	a, b := newHosts(t)
	w := a.watch()
	a.open(b.peer())
	b.open(a.peer())
	a.vxlan(b, "10.223.0.1/26")
	b.vxlan(a, "10.223.0.2/26")
	say, c := talk(t, a, b, "10.223.0.2:9000")
	say()
	w.clean(t)

	b.device.Close()
	await.Value(t, b.device.Done())
	_, err := io.WriteString(c, secretWord[:1]) // waits in the connection
	require.NoError(t, err)
	in(t, b.kernel, func() error { // with no tunnel there is no way out
		u, err := net.Dial("udp", "10.223.0.1:5000")
		if err != nil {
			return err
		}
		defer u.Close()
		_, _ = io.WriteString(u, secretWord)
		return nil
	})
	b.open(a.peer())
	one := make([]byte, 1)
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadFull(c, one)
	require.NoError(t, err, "the connection did not live on")
	say()
	w.clean(t)
}

// TestTheWireIsSeen: what is sent in clear would be noticed.
func TestTheWireIsSeen(t *testing.T) {
	a, b := newHosts(t)
	w := a.watch()
	in(t, a.underlay, func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(b.endpoint.Addr(), vxlanPort).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, secretWord)
		return err
	})
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.contents && len(w.others) > 0
	}, 30*time.Second, 10*time.Millisecond)
}

// hear listens for UDP inside of a tunnel.
func (h *host) hear(heard chan<- string) {
	h.Helper()
	in(h, h.space, func() error {
		c, err := net.ListenPacket("udp6", "[::]:5000")
		if err != nil {
			return err
		}
		h.Cleanup(func() { _ = c.Close() })
		go func() {
			b := make([]byte, 64)
			for {
				n, _, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				select {
				case heard <- string(b[:n]):
				default:
				}
			}
		}()
		return nil
	})
}

// send sends words to another inside of the tunnel, from an address of its own or a false one.
func (h *host) send(to *host, from netip.Addr, text string) {
	h.Helper()
	in(h, h.space, func() error {
		c, err := net.DialUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.key.Public().Inner(), 5000)))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = io.WriteString(c, text)
		return err
	})
}

// until sends a word again and again until something is heard, and returns that.
func (h *host) until(to *host, heard <-chan string, text string) (first string) {
	h.Helper()
	require.Eventually(h, func() bool {
		h.send(to, h.key.Public().Inner(), text)
		select {
		case first = <-heard:
			return true
		default:
			return false
		}
	}, 60*time.Second, 20*time.Millisecond)
	return first
}

// TestPeersSpeakForThemselvesAlone: what a peer sends with the address of another is dropped.
func TestPeersSpeakForThemselvesAlone(t *testing.T) {
	a, b := newHosts(t)
	third := &host{TB: t, endpoint: netip.MustParseAddrPort("192.0.2.3:4798")}
	third.renew()
	a.open(b.peer())
	b.open(a.peer(), third.peer())
	heard := make(chan string, 64)
	b.hear(heard)
	require.Equal(t, "hello", a.until(b, heard, "hello"))
	false3 := third.key.Public().Inner()
	in(t, a.space, func() error { return addressed(wireguard.Interface, false3.String()+"/128") })
	for range 5 {
		a.send(b, false3, "forged")
	}
	a.send(b, a.key.Public().Inner(), "end")
	for word := ""; word != "end"; {
		word = await.Value(t, heard)
		require.NotEqual(t, "forged", word)
	}
}

// TestRemovedPeersAreNotHeard: an agent that was removed, and one that was installed anew until its new key is known.
func TestRemovedPeersAreNotHeard(t *testing.T) {
	a, b := newHosts(t)
	a.open(b.peer())
	b.open(a.peer())
	heard := make(chan string, 64)
	b.hear(heard)
	require.Equal(t, "hello", a.until(b, heard, "hello"))
	require.NoError(t, b.device.Set(nil))
	for range 5 {
		a.send(b, a.key.Public().Inner(), "removed")
	}
	a.device.Close()
	a.renew()
	a.open(b.peer())
	require.NoError(t, b.device.Set([]wireguard.Peer{a.peer()}))
	for word := "hello"; word != "anew"; { // what was said before the removal may be heard late
		require.Equal(t, "hello", word)
		word = a.until(b, heard, "anew")
	}
}

func TestDevicesEndWithNothingLeft(t *testing.T) {
	a, b := newHosts(t)
	before := goleak.IgnoreCurrent()
	a.open(b.peer())
	require.Error(t, a.device.Set([]wireguard.Peer{a.peer()}), "itself")
	a.device.Close()
	a.device.Close()
	goleak.VerifyNone(t, before)
	in(t, a.space, func() error {
		if _, err := netlink.LinkByName(wireguard.Interface); err == nil {
			return errors.New("the interface is left")
		}
		return nil
	})
}
