package fake_test

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/conformance"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// box plays the program of the conformance images.
func box(spec runtime.Spec) fake.Program {
	if spec.Entry[0] != "/box" {
		return fake.Program{StartError: "exec: " + spec.Entry[0] + ": no such file or directory"}
	}
	args := append(spec.Entry[1:], "", "")
	switch args[0] {
	case "exit":
		code, _ := strconv.Atoi(args[1])
		return fake.Program{Runs: -1, ExitCode: code}
	case "wait":
		return fake.Program{Output: "waiting\n", Farewell: "asked to end\n"}
	case "stubborn":
		return fake.Program{Output: "staying\n", Stubborn: true}
	case "print":
		var out strings.Builder
		n, _ := strconv.Atoi(args[1])
		for i := range n {
			out.WriteString("out " + strconv.Itoa(i) + "\nerr " + strconv.Itoa(i) + "\n")
		}
		return fake.Program{Output: out.String()}
	case "eat":
		return fake.Program{Runs: -1, Signal: 9, OOM: true}
	case "write":
		return fake.Program{Output: "written\n", Files: map[string]string{args[1]: args[2]}}
	}
	return fake.Program{Runs: -1, ExitCode: 2}
}

func files() map[string][]byte {
	out := map[string][]byte{}
	for name, text := range conformance.ImageFiles {
		out[name] = []byte(text)
	}
	return out
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) (runtime.Runtime, conformance.Fixture) {
		e := fake.NewEngine(fake.Options{
			Program: box,
			HasDevice: func(name string) bool {
				return slices.Contains([]string{"/dev/null", "/dev/zero", "berth.test/box=0"}, name)
			},
			HasNetwork: func(name string) bool { return name == "second" },
		})
		t.Cleanup(e.Close)
		img := e.AddImage(runtime.Image{References: []string{"berth-test/box:1"}, Labels: maps.Clone(conformance.ImageLabels)}, files())
		e.LinkInImage(img.ID, conformance.ImageLink)
		const remoteID = "sha256:aaaa"
		e.AddRemote("registry.test/box:1", fake.Remote{Image: runtime.Image{ID: remoteID}, Files: files()})
		e.AddRemote("registry.test/broken:1", fake.Remote{Err: fault.Unavailablef("connection reset by registry")})
		open := func(t *testing.T, clusterID string, agent cluster.AgentID) runtime.Runtime {
			rt := e.Runtime(clusterID, agent)
			t.Cleanup(func() { _ = rt.Close() })
			return rt
		}
		fix := conformance.Fixture{
			Cluster: uuid.NewString(), Agent: "i-test", Image: "berth-test/box:1", ImageID: img.ID, Open: open,
			BreakStart: func() func() {
				return e.Inject(fake.Fault{Method: fake.Start, Err: context.DeadlineExceeded})
			},
			Lose:    func() func() { e.Lose(); return e.Restore },
			Network: "second", CDI: "berth.test/box=0",
			Remote: "registry.test/box:1", RemoteID: remoteID, Broken: "registry.test/broken:1", Missing: "registry.test/none:1",
		}
		return open(t, fix.Cluster, fix.Agent), fix
	})
}
