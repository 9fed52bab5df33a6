package link

import (
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
