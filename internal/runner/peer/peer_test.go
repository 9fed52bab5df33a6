package peer_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/runner/peer"
	"berth.dev/berth/internal/wire/run"
)

func kernels(t require.TestingT, list ...run.Peer) []peer.Peer {
	out, err := peer.Parse(list)
	require.NoError(t, err)
	return out
}

// TestNamesFollowTheKernels: kernels come, move and go; what the engine and the user wrote stays, but for other addresses of the names.
func TestNamesFollowTheKernels(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hosts")
	engine := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n172.17.0.2\tmain1 alias # own\n172.17.0.3\tsub1\n"
	require.NoError(t, os.WriteFile(file, []byte(engine), 0o644))
	before, err := os.Stat(file)
	require.NoError(t, err)
	read := func() string {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(b)
	}
	rest := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n172.17.0.2\talias # own\n"
	require.NoError(t, peer.Hosts(file, kernels(t, run.Peer{Name: "sub1", Address: "10.9.0.2"}, run.Peer{Name: "main1", Address: "10.9.0.1"})))
	require.Equal(t, rest+"# kernels of this session; Berth keeps these lines\n10.9.0.1\tmain1\n10.9.0.2\tsub1\n"+
		"# end of the kernels of this session\n", read())
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString("10.1.1.1 mine\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, peer.Hosts(file, kernels(t, run.Peer{Name: "main1", Address: "fd00::1"})))
	require.Equal(t, rest+"10.1.1.1 mine\n# kernels of this session; Berth keeps these lines\nfd00::1\tmain1\n"+
		"# end of the kernels of this session\n", read())
	require.NoError(t, peer.Hosts(file, nil))
	require.Equal(t, rest+"10.1.1.1 mine\n", read())
	after, err := os.Stat(file)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "a mounted file cannot be replaced")
}

// TestHostsStayWhole: whatever kernels came before, those that are told are in the file, once each, and lines of others stay.
func TestHostsStayWhole(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hosts")
	rapid.Check(t, func(t *rapid.T) {
		others := rapid.SliceOfN(rapid.StringMatching(`10\.0\.0\.[1-9] (x|y)[a-z]{0,5}`), 0, 5).Draw(t, "others")
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(append(others, ""), "\n")), 0o644))
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			var list []run.Peer
			n := rapid.IntRange(0, 6).Draw(t, "kernels")
			for i := range n {
				list = append(list, run.Peer{Name: "sub" + string(rune('1'+i)),
					Address: netip.AddrFrom4([4]byte{10, 1, byte(rapid.IntRange(0, 255).Draw(t, "net")), byte(i + 1)}).String()})
			}
			require.NoError(t, peer.Hosts(file, kernels(t, list...)))
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, p := range list {
				require.Equal(t, 1, strings.Count(string(text), p.Address+"\t"+p.Name+"\n"))
			}
			require.Equal(t, n, strings.Count(string(text), "\tsub"))
			for _, line := range others {
				require.Contains(t, string(text), line+"\n")
			}
		}
	})
}

func TestWhatIsNoKernel(t *testing.T) {
	t.Parallel()
	for name, list := range map[string][]run.Peer{
		"line break":    {{Name: "main1\n10.0.0.1 deb.debian.org", Address: "10.9.0.1"}},
		"two words":     {{Name: "main1 deb.debian.org", Address: "10.9.0.1"}},
		"dots":          {{Name: "deb.debian.org", Address: "10.9.0.1"}},
		"localhost":     {{Name: "localhost", Address: "10.9.0.1"}},
		"pattern":       {{Name: "*", Address: "10.9.0.1"}},
		"no name":       {{Address: "10.9.0.1"}},
		"no address":    {{Name: "main1"}},
		"unspecified":   {{Name: "main1", Address: "0.0.0.0"}},
		"zone":          {{Name: "main1", Address: "fe80::1%eth0"}},
		"same name":     {{Name: "main1", Address: "10.9.0.1"}, {Name: "main1", Address: "10.9.0.2"}},
		"same address":  {{Name: "main1", Address: "10.9.0.1"}, {Name: "sub1", Address: "10.9.0.1"}},
		"mapped, twice": {{Name: "main1", Address: "10.9.0.1"}, {Name: "sub1", Address: "::ffff:10.9.0.1"}},
		"too many":      make([]run.Peer, run.MaxPeers+1),
	} {
		_, err := peer.Parse(list)
		require.Error(t, err, name)
	}
}

// TestImagesLeadNowhere: a symbolic link of an image at a place that is written to does not lead out of the container's own files.
func TestImagesLeadNowhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder := filepath.Join(dir, "folder")
	require.NoError(t, os.Mkdir(folder, 0o755))
	list := kernels(t, run.Peer{Name: "main1", Address: "10.9.0.1"})

	require.NoError(t, os.Symlink(filepath.Join(folder, "hosts"), filepath.Join(dir, "hosts")))
	require.Error(t, peer.Hosts(filepath.Join(dir, "hosts"), list))
	require.NoError(t, os.Symlink(folder, filepath.Join(dir, "ssh_config.d")))
	c := peer.Client{File: filepath.Join(dir, "ssh_config.d", "50-berth.conf"), User: "work", Port: 2200}
	require.Error(t, c.Configure(list))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "etc"), 0o755))
	c.File = filepath.Join(dir, "etc", "berth.conf")
	require.NoError(t, os.Symlink(filepath.Join(folder, "victim"), c.File))
	require.NoError(t, os.Symlink(filepath.Join(folder, "victim"), c.File+".new"))
	require.NoError(t, c.Configure(list))
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left)
	text, err := os.ReadFile(c.File)
	require.NoError(t, err)
	require.Contains(t, string(text), "Host main1\n")
	require.NoError(t, c.Configure(nil))
	text, err = os.ReadFile(c.File)
	require.NoError(t, err)
	require.NotContains(t, string(text), "Host ", "a line without names would be for all hosts")
}
