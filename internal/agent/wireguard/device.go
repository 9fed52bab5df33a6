package wireguard

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"berth.dev/berth/internal/fault"
)

// Options are what a device needs; all are required.
type Options struct {
	Key Key
	// Port is the UDP port of encrypted packets, 0 for any.
	Port uint16
	// Space is the network namespace of the device, Underlay that of encrypted packets; descriptors that stay open as long as the device.
	Space, Underlay int
	// MTU is what fits into a packet inside of the tunnel.
	MTU int
	Log *slog.Logger
	Now func() time.Time
}

// Interface is the name of the device in its namespace.
const Interface = "wg0"

// Device is the tunnel of this agent. Close ends it and waits for all that it runs.
type Device struct {
	own PublicKey
	dev *device.Device

	mu    sync.Mutex
	peers map[PublicKey]netip.AddrPort
}

// Supported says why this host can have no device; nil when it can.
func Supported() error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return fault.Unavailablef("this host encrypts no networks of sessions: /dev/net/tun cannot be opened").WithCause(err).
			WithNext("load the kernel's module tun, and let the agent open the file")
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close /dev/net/tun: %w", err)
	}
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return fault.Unavailablef("this host encrypts no networks of sessions: its kernel has no IPv6, which packets inside of tunnels are of").
			WithCause(err).WithNext("start the kernel with IPv6; no address of it is needed")
	}
	return nil
}

// Open makes the device, without peers. One that an earlier process left is replaced.
func Open(o Options) (*Device, error) {
	d := &Device{own: o.Key.Public(), peers: map[PublicKey]netip.AddrPort{}}
	err := inside(o.Space, func() error {
		t, err := tun.CreateTUN(Interface, o.MTU)
		if err != nil {
			return fmt.Errorf("make the interface %s: %w", Interface, err)
		}
		d.dev = device.NewDevice(t, bindIn{conn.NewStdNetBind(), o.Underlay}, loggerOf(o))
		return nil
	})
	if err == nil {
		err = d.dev.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\n", o.Key.hex(), o.Port))
	}
	if err == nil {
		err = d.dev.Up()
	}
	if err == nil {
		err = configure(o.Space, d.own.Inner(), o.MTU)
	}
	if err != nil {
		d.Close()
		return nil, fault.Unavailablef("the encrypted tunnel to other agents cannot be made").WithCause(err).
			WithNext("see that the kernel has tun and IPv6, and that UDP port %d is free", o.Port)
	}
	return d, nil
}

// configure gives the device its address, from which all peers are on the link.
func configure(space int, own netip.Addr, mtu int) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(space), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(Interface)
	if err != nil {
		return fmt.Errorf("find the interface %s: %w", Interface, err)
	}
	if err := h.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", Interface, mtu, err)
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(8, 128)}, Flags: unix.IFA_F_NODAD}
	if err := h.AddrReplace(link, a); err != nil {
		return fmt.Errorf("give %s the address %s: %w", Interface, own, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("start %s: %w", Interface, err)
	}
	return nil
}

// Set makes these the peers of the device. Who is not among them is not heard any more when it returns.
func (d *Device) Set(list []Peer) error {
	want, err := peersOf(d.own, list)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	change := plan(d.peers, want)
	if change == "" {
		return nil
	}
	if err := d.dev.IpcSet(change); err != nil {
		// Half of it may hold. Nobody is heard until a later call has set all of them.
		err = errors.Join(err, d.dev.IpcSet("replace_peers=true\n"))
		clear(d.peers)
		return fmt.Errorf("set the peers of the encrypted tunnel: %w", err)
	}
	d.peers = maps.Clone(want)
	return nil
}

// Done is closed when the device has ended, whoever ended it.
func (d *Device) Done() <-chan struct{} { return d.dev.Wait() }

// Close ends the device. Its interface goes with it.
func (d *Device) Close() {
	if d.dev != nil {
		d.dev.Close()
	}
}

// quiet is the time between two lines about trouble: a way that is down would fill a log, as fast as kernels send.
const quiet = 10 * time.Second

func loggerOf(o Options) *device.Logger {
	var mu sync.Mutex
	var last time.Time
	left := 0
	return &device.Logger{Verbosef: device.DiscardLogf, Errorf: func(format string, v ...any) {
		mu.Lock()
		defer mu.Unlock()
		now := o.Now()
		if left++; !last.IsZero() && now.Sub(last) < quiet {
			return
		}
		o.Log.Warn("the encrypted tunnel has trouble", "what", fmt.Sprintf(format, v...), "times", left)
		last, left = now, 0
	}}
}

// bindIn opens the sockets of encrypted packets in a namespace, whoever asks.
type bindIn struct {
	conn.Bind
	space int
}

func (b bindIn) Open(port uint16) (fns []conn.ReceiveFunc, actual uint16, err error) {
	err = inside(b.space, func() (err error) {
		fns, actual, err = b.Bind.Open(port)
		return err
	})
	return fns, actual, err
}

// inside runs do in a network namespace. Its thread ends with it, unless it is back where it was.
func inside(space int, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("open the network namespace of this thread: %w", err)
			return
		}
		defer own.Close()
		if err := netns.Set(netns.NsHandle(space)); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		err = do()
		if netns.Set(own) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
