package doctor

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestLowLimitsOfTheHostAreNamed(t *testing.T) {
	t.Parallel()
	sys := func(files, aio string) fstest.MapFS {
		return fstest.MapFS{"fs/file-max": {Data: []byte(files)}, "fs/aio-max-nr": {Data: []byte(aio)}}
	}
	require.Empty(t, lowLimits(sys("9223372036854775807\n", "1048576\n")))
	require.Empty(t, lowLimits(fstest.MapFS{}), "what cannot be read is not judged")
	found := lowLimits(sys("100000\n", "65536\n"))
	require.Len(t, found, 2)
	for i, want := range []string{"fs.file-max", "fs.aio-max-nr"} {
		require.Equal(t, want, found[i].Object)
		require.True(t, found[i].Warning, "the machine works all the same")
		require.Contains(t, found[i].Next, "sysctl -w "+want+"=")
	}
	require.Contains(t, found[1].Problem, "share 65536 requests of asynchronous I/O")
}
