package host_test

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestDotfiles(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		".vimrc": ".vimrc", "a/b": "a/b", "/home/work/.x": ".x", "./y": "y",
		"../z": "", "/etc/passwd": "", "/home/other/.x": "", "": "", "a/../../b": "", "/home/work/../other/x": "", "/home/work": "",
	} {
		f, err := host.Dotfile(cluster.Dotfile{Path: path, Perm: "600"})
		if want == "" {
			require.True(t, fault.Is(err, fault.Invalid), "%q: %v", path, err)
			continue
		}
		require.NoError(t, err, path)
		require.Equal(t, want, f.Path)
		require.Equal(t, fs.FileMode(0o600), f.Mode)
	}
	_, err := host.Dotfile(cluster.Dotfile{Path: "x", Perm: "4755"})
	require.Error(t, err)
}

func TestGroups(t *testing.T) {
	t.Parallel()
	require.Equal(t, "work:x:9001:\nroot:x:0:\nvideo:x:44:me,work\ngroup77:x:77:work\n",
		string(host.Group([]byte("root:x:0:\nwork:x:1:\nvideo:x:44:me\nbroken\n"), 9001, []int{44, 77})))
	require.Equal(t, "work:x:9001:9001::/home/work:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n", string(host.Passwd(nil, 9001, 9001, "")))
}
