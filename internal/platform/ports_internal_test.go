package platform

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func services(p ports) []string {
	return []string{p.API, p.Agent, p.StorageClient, p.StorageManager, p.AppProxy, p.Web}
}

// TestPortsStay: a cluster that starts again listens where it did. No program can have been given one of its ports by the kernel while it
// was down; one that a program was told to use is replaced by a free one, and that is said.
func TestPortsStay(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	require.NoError(t, err)
	given, err := strconv.Atoi(strings.Fields(string(text))[0])
	require.NoError(t, err)
	p := &platform{dir: StateDir(t.TempDir()), settings: DefaultSettings(), o: Options{Ports: PortsAuto, Say: t.Logf}}
	t.Cleanup(func() { require.NoError(t, p.claim.Close()) })
	first := p.choosePorts()
	seen := map[string]bool{}
	for _, addr := range services(first) {
		_, text, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		port, err := strconv.Atoi(text)
		require.NoError(t, err)
		require.Greater(t, port, 1024)
		require.Less(t, port, given)
		require.NotContains(t, seen, text)
		require.False(t, first.AppPorts <= port && port < first.AppPorts+appPorts, "%d is a port of apps", port)
		seen[text] = true
	}
	require.Empty(t, p.report.Notes)

	require.NoError(t, p.dir.rememberPorts(first))
	require.Equal(t, first, p.choosePorts())

	other, err := net.Listen("tcp", first.Web)
	require.NoError(t, err)
	defer other.Close()
	second := p.choosePorts()
	require.NotEqual(t, first.Web, second.Web)
	require.NotContains(t, services(first), second.Web)
	require.Equal(t, []string{first.Web + " is taken by another program, choosing another port"}, p.report.Notes)
	second.Web = first.Web
	require.Equal(t, first, second)
}

// TestClustersHaveTheirOwnPorts: the second begins its search where the first did, before the first listens anywhere.
func TestClustersHaveTheirOwnPorts(t *testing.T) {
	dir := StateDir(t.TempDir())
	var all []string
	for range 3 {
		p := &platform{dir: dir, settings: DefaultSettings(), o: Options{Ports: PortsAuto, Say: t.Logf}}
		at := p.choosePorts()
		t.Cleanup(func() { require.NoError(t, p.claim.Close()) })
		for _, addr := range services(at) {
			require.NotContains(t, all, addr)
		}
		all = append(all, services(at)...)
	}
}
