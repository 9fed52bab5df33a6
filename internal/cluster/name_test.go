package cluster_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Names are part of host names, file names and commands: their letters and lengths are the wire's.
func TestBoundsOfSessionNames(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"AZaz", "0990", "_.-_", "a..b", strings.Repeat("n", 64), "Z--Z", "zz.9"} {
		require.NoError(t, cluster.CheckSessionName(ok), ok)
	}
	for _, bad := range []string{"abcZ[", "@abc", "ab`c", "ab{c", "ab/c", "ab:c", "a-/c", "a.b c", "abc.", strings.Repeat("n", 65), "abé"} {
		err := cluster.CheckSessionName(bad)
		require.Equal(t, fault.Invalid, fault.KindOf(err), bad)
		require.NotEmpty(t, fault.NextOf(err), bad)
	}
}

func TestDashesOfUUIDsAreInTheirPlaces(t *testing.T) {
	t.Parallel()
	for _, at := range []int{8, 13, 18, 23} {
		text := []byte(scopeUUID)
		text[at] = '0'
		_, ok := cluster.CanonicalUUID(string(text))
		require.False(t, ok, string(text))
	}
	_, ok := cluster.CanonicalUUID("0123abcd04567089ef001230456789abcdef")
	require.False(t, ok)
	for _, n := range []int{31, 33, 35, 37, 64} {
		_, ok := cluster.CanonicalUUID(strings.Repeat("0", n))
		require.False(t, ok, n)
	}
}

// What an image's label can claim.
func TestBoundsOfServicePorts(t *testing.T) {
	t.Parallel()
	ports := func(label string) (out []int) {
		for _, p := range cluster.ParseServicePorts(label) {
			out = append(out, p.Ports...)
		}
		return out
	}
	for _, reserved := range []string{"2000", "2001", "2002", "2003", "2200", "2201", "7681"} {
		require.Empty(t, ports("x:http:"+reserved), reserved)
	}
	require.Equal(t, []int{1999, 2004, 2199, 2202, 7680, 7682}, ports("x:tcp:[1999,2004,2199,2202,7680,7682]"))
	for _, name := range []string{"A", "Z", "a", "z", "0", "9", "a.", "b-", strings.Repeat("n", 64)} {
		require.Equal(t, []int{8080}, ports(name+":http:8080"), name)
	}
	for _, name := range []string{"a@", "a[", "a`", "a{", "a/", "a:", ".a", "_a", "a b", "é"} {
		require.Empty(t, ports(name+":http:8080"), name)
	}
	// Brackets where none belong spoil their own entry alone.
	require.Equal(t, []int{8082}, ports("[a,x:http:8081],y:http:8082"))
	require.Equal(t, []int{8082}, ports("a]:http:8081,y:http:8082"))
	require.Empty(t, ports("x:http:8080:1"))
}
