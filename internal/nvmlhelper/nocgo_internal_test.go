//go:build !cgo

package nvmlhelper

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/await"
)

func TestABuildWithoutCgoSaysSo(t *testing.T) {
	t.Parallel()
	c := open(io.Discard)
	_, err := c.Look()
	require.Contains(t, text(err), "built without cgo and cannot load NVIDIA's library; next: build it with make nvml")
	_, err = c.Sample()
	require.Error(t, err)
	k := start(t, c)
	k.say(`{"id":1,"method":"look"}`)
	require.Contains(t, await.Value(t, k.out).Error, "without cgo")
	require.NoError(t, k.end())
}
