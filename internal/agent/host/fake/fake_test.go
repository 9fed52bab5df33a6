package fake_test

import (
	"path/filepath"
	"sync"
	"testing"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/host/conformance"
	hostfake "berth.dev/berth/internal/agent/host/fake"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Fixture {
		dir := filepath.Join(t.TempDir(), "kernels")
		var once sync.Once
		var h *hostfake.Host
		folder := cluster.FolderMount{Name: "data", Host: "local:volume1", Subpath: "."}
		gone := folder
		gone.Host = ""
		return conformance.Fixture{Folder: folder, Missing: gone, Open: func(_ *testing.T, rt *fake.Runtime) host.Host {
			once.Do(func() { h = hostfake.New(dir, rt.DialRunner) }) // it outlives agents
			return h
		}}
	})
}
