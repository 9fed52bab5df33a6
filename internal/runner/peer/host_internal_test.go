package peer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/run"
)

// TestKernelsOfOneHost: they have an address in common, and each a port.
func TestKernelsOfOneHost(t *testing.T) {
	t.Parallel()
	list, err := Parse([]run.Peer{{Name: "sub1", Address: "192.0.2.7", Port: 30005}, {Name: "main1", Address: "192.0.2.7", Port: 30000}})
	require.NoError(t, err)
	c := Client{Identity: "id", KnownHosts: "known", User: "work", Port: 30000}
	require.Equal(t, `# Berth keeps this file. What stands in ~/.ssh/config comes first.
Host main1
    Port 30000
Host sub1
    Port 30005
Host main1 sub1
    Port 30000
    User work
    IdentityFile id
    UserKnownHostsFile known
    HostKeyAlias berth-session
    StrictHostKeyChecking yes
`, string(c.text(list)))
	_, err = Parse([]run.Peer{{Name: "sub1", Address: "192.0.2.7", Port: 30005}, {Name: "main1", Address: "192.0.2.7", Port: 30005}})
	require.ErrorContains(t, err, "named twice")
	_, err = Parse([]run.Peer{{Name: "sub1", Address: "192.0.2.7", Port: 70000}})
	require.ErrorContains(t, err, "is none")
}
