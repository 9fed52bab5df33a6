package link

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/node"
)

func TestMountsAreRead(t *testing.T) {
	t.Parallel()
	raw, err := proto.Marshal(&node.DesiredKernel{KernelId: "0b5e4a3c-0000-4000-8000-000000000001", Generation: 1,
		Spec: &node.KernelSpec{Image: "img", Mounts: []*node.Mount{{
			FolderId: "0b5e4a3c-0000-4000-8000-000000000002", Name: "data", Host: "local:volume1",
			Scope:     "user:0b5e4a3c-0000-4000-8000-000000000003",
			UsageMode: "general", Permission: "rw", Subpath: ".", Target: "/home/work/data", VolumePath: "/srv/v",
			OwnerUid: 9001, OwnerGid: 9002}}}})
	require.NoError(t, err)
	var p node.DesiredKernel
	require.NoError(t, proto.Unmarshal(raw, &p))
	d, err := desiredOf(&p)
	require.NoError(t, err)
	require.Equal(t, []cluster.FolderMount{{
		Folder: "0b5e4a3c-0000-4000-8000-000000000002", Name: "data", Host: "local:volume1", Scope: "user:0b5e4a3c-0000-4000-8000-000000000003",
		Usage: "general", Perm: cluster.ReadWrite, Subpath: ".", Target: "/home/work/data", VolumePath: "/srv/v", OwnerUID: 9001, OwnerGID: 9002,
	}}, d.Spec.Mounts)
}

// TestVersionOneIsRead decodes a message as version 1 wrote it.
func TestVersionOneIsRead(t *testing.T) {
	t.Parallel()
	// kernel_id, generation 1, spec{image: "img", local_rank: 1}
	raw := append([]byte{0x0a, 36}, "0b5e4a3c-0000-4000-8000-000000000001"...)
	raw = append(raw, 0x18, 1, 0x42, 8, 0x0a, 3, 'i', 'm', 'g', 0xe0, 0x01, 1)
	var p node.DesiredKernel
	require.NoError(t, proto.Unmarshal(raw, &p))
	d, err := desiredOf(&p)
	require.NoError(t, err)
	require.Equal(t, "img", d.Spec.Image)
	require.Equal(t, 1, d.Spec.LocalRank)
	require.Empty(t, d.Spec.Mounts)
}

// TestEncryptedNetworksAreRead: of an encrypted network nothing is taken but keys and tunnels, and of one in clear none of these.
func TestEncryptedNetworksAreRead(t *testing.T) {
	t.Parallel()
	const key = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	read := func(encrypted bool, key, endpoint string) cluster.NetworkMember {
		t.Helper()
		n, err := networkOf(&node.SessionNetwork{Number: 1, Subnet: "10.223.0.0/26", Encrypted: encrypted, Members: []*node.NetworkMember{
			{KernelId: "k", Address: "10.223.0.1", AgentId: "a", Host: "192.0.2.1", TunnelKey: key, TunnelEndpoint: endpoint}}})
		require.NoError(t, err)
		require.Equal(t, encrypted, n.Encrypted)
		return n.Members[0]
	}
	m := read(true, key, "192.0.2.1:4798")
	require.False(t, m.Host.IsValid())
	require.Equal(t, cluster.Tunnel{Key: key, Endpoint: netip.MustParseAddrPort("192.0.2.1:4798")}, m.Tunnel)
	m = read(false, key, "192.0.2.1:4798")
	require.Equal(t, "192.0.2.1", m.Host.String())
	require.Zero(t, m.Tunnel)
	for _, bad := range [][2]string{{key, "127.0.0.1:4798"}, {key, "192.0.2.1:0"}, {key, "host:4798"}, {"", "192.0.2.1:4798"},
		{"short", "192.0.2.1:4798"}, {"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "192.0.2.1:4798"},
		{key + "\nallowed_ip=::/0", "192.0.2.1:1"}} {
		require.Zero(t, read(true, bad[0], bad[1]).Tunnel, "%v", bad)
	}
}
