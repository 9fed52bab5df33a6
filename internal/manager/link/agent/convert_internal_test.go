package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/node"
)

func TestFactsOfTheDataPort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ address, socket, wantAddress, wantSocket string }{
		{"10.0.0.1:6010", "/var/lib/berth/agent/data.sock", "10.0.0.1:6010", "/var/lib/berth/agent/data.sock"},
		{"[fd00::1]:6010", "", "[fd00::1]:6010", ""},
		{"worker-1:1", "data.sock", "worker-1:1", ""},
		{":6010", "/run/docker.sock", "", ""},
		{"10.0.0.1:0", "/x/../data.sock", "", ""},
		{"10.0.0.1:66000", "/x/data.sock\x00", "", ""},
		{"10.0.0.1", "", "", ""},
	} {
		f, err := factsOf(&node.Facts{DataAddress: c.address, DataSocket: c.socket})
		require.NoError(t, err)
		require.Equal(t, c.wantAddress, f.DataAddress)
		require.Equal(t, c.wantSocket, f.DataSocket)
	}
}
