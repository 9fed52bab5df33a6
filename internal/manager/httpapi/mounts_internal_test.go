package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
)

func TestMountsAreDecoded(t *testing.T) {
	t.Parallel()
	p, err := paramsOf(t, "POST", "/session", "application/json", `{"name":"n","image":"i","config":{
		"mounts":["data","other/sub"],"mount_map":{"data":"/srv"},"mount_ids":["0b5e4a3c00004000800000000000000f"],
			"mount_id_map":{"0b5e4a3c00004000800000000000000f":"in-home"},
		"mount_options":{"data":{"type":"bind","permission":"ro"},"a|b":{"perm":"readonly","subpath":"x","mount_destination":"/y"},
			"none":null}}}`)
	require.NoError(t, err)
	r := createRequest(p, p.Need)
	require.NoError(t, p.Err())
	require.Equal(t, []string{"data", "other/sub"}, r.Mounts)
	require.Equal(t, []string{"0b5e4a3c00004000800000000000000f"}, r.MountIDs)
	require.Equal(t, map[string]string{"data": "/srv"}, r.MountMap)
	require.Equal(t, map[string]string{"0b5e4a3c00004000800000000000000f": "in-home"}, r.MountIDMap)
	require.Equal(t, map[string]folder.MountOption{
		"data": {Permission: cluster.ReadOnly}, "a|b": {Permission: cluster.ReadOnly, Subpath: "x", Target: "/y"}, "none": {},
	}, r.MountOptions)
}

func TestBadMountsAreRefused(t *testing.T) {
	t.Parallel()
	for _, config := range []string{
		`{"mount_options":{"data":{"type":"tmpfs"}}}`, `{"mount_options":{"data":"ro"}}`, `{"mount_options":[]}`, `{"mount_map":["x"]}`,
		`{"mounts":[{}]}`,
	} {
		p, err := paramsOf(t, "POST", "/session", "application/json", `{"name":"n","image":"i","config":`+config+`}`)
		require.NoError(t, err)
		createRequest(p, p.Need)
		require.Equal(t, fault.Invalid, fault.KindOf(p.Err()), config)
	}
}
