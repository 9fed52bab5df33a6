package wireguard_test

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"berth.dev/berth/internal/testkit/await"
)

// BenchmarkTunnel measures how fast kernels on two hosts send to each other through the tunnel, beside the same VXLAN in clear. Both send
// in turn, so that what else the machine does meets both.
func BenchmarkTunnel(t *testing.B) {
	a, b := newHosts(t)
	a.open(b.peer())
	b.open(a.peer())
	a.vxlan(b, "10.223.0.1/26")
	b.vxlan(a, "10.223.0.2/26")
	clearA, clearB := &host{TB: t, kernel: namespace(t)}, &host{TB: t, kernel: namespace(t)}
	for _, end := range []struct {
		under, kernel *host
		to            netip.Addr
		address       string
	}{{a, clearA, b.endpoint.Addr(), "10.9.9.1/24"}, {b, clearB, a.endpoint.Addr(), "10.9.9.2/24"}} {
		in(t, end.under.underlay, func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.MTU, attrs.Namespace = "vx1", cableMTU-50, netlink.NsFd(int(end.kernel.kernel))
			return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, VxlanId: 77, SrcAddr: end.under.endpoint.Addr().AsSlice(),
				Group: end.to.AsSlice(), Port: vxlanPort, Learning: true, NoAge: true})
		})
		in(t, end.kernel.kernel, func() error { return addressed("vx1", end.address) })
	}
	var sealed, clear []float64
	for t.Loop() {
		sealed = append(sealed, flow(t, a, b, "10.223.0.2:9000"))
		clear = append(clear, flow(t, clearA, clearB, "10.9.9.2:9000"))
	}
	slices.Sort(sealed)
	slices.Sort(clear)
	middle := len(clear) / 2
	t.ReportMetric(sealed[middle]/1e6, "MB/s")
	t.ReportMetric(clear[middle]/1e6, "clear-MB/s")
	t.ReportMetric(sealed[middle]/clear[middle], "of-clear")
}

// flow sends for a second from a kernel to another and returns bytes a second.
func flow(t testing.TB, from, to *host, address string) float64 {
	t.Helper()
	got := make(chan float64, 1)
	in(t, to.kernel, func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() {
			defer l.Close()
			c, err := l.Accept()
			if err != nil {
				got <- 0
				return
			}
			defer c.Close()
			began := time.Now()
			n, _ := io.Copy(io.Discard, c)
			got <- float64(n) / time.Since(began).Seconds()
		}()
		return nil
	})
	var c net.Conn
	in(t, from.kernel, func() (err error) {
		c, err = net.DialTimeout("tcp", address, 20*time.Second)
		return err
	})
	buffer := make([]byte, 256<<10)
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		_, err := c.Write(buffer)
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	return await.Value(t, got)
}
