// Package conformance holds the tests that every runtime.Runtime must pass: one per sentence of
// the contract. It starts real containers where the runtime does; only tests import it.
//
// The image of a Fixture holds the program /box (see the directory box) and the files of ImageFiles.
package conformance

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// patience bounds every wait; only a broken runtime ever takes so long.
const patience = time.Minute

// ImageFiles are the files, beside /box, that the fixture's image must hold.
var ImageFiles = map[string]string{
	"/etc/passwd":  "root:x:0:0:root:/root:/box\n",
	"/etc/group":   "root:x:0:\n",
	"/data/colour": "green\n",
}

// ImageLink is a symbolic link that the fixture's image must hold, to /data.
const ImageLink = "/link"

// ImageLabels are the labels that the fixture's image must carry.
var ImageLabels = map[string]string{"ai.backend.role": "COMPUTE"}

// Fixture is what the suite needs around one runtime.
type Fixture struct {
	// Cluster and Agent are whom the runtime serves; every test must get its own.
	Cluster string
	Agent   cluster.AgentID
	// Image is present on the host; ImageID is its content id.
	Image, ImageID string
	// Open returns another runtime over the same engine.
	Open func(t *testing.T, clusterID string, agent cluster.AgentID) runtime.Runtime
	// BreakStart makes starts fail before they reach the engine, as if the agent were killed between
	// create and start; the returned function repairs it.
	BreakStart func() (repair func())
	// Lose makes the engine stop answering the runtime; the returned function brings it back.
	Lose func() (restore func())
	// Remote can be pulled and then has the id RemoteID. The pull of Broken begins and then
	// fails. No registry has Missing.
	Remote, RemoteID, Broken, Missing string
	// Network is a network beside the default one, CDI a CDI device that the engine can inject; "" where there is none.
	Network, CDI string
	// Real says that containers are processes of this host, with the limits of their spec.
	Real bool
}

// Run runs the suite; open is called once for every test.
func Run(t *testing.T, open func(t *testing.T) (runtime.Runtime, Fixture)) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			t.Cleanup(cancel)
			rt, fix := open(t)
			c.run(&world{T: t, ctx: ctx, rt: rt, fix: fix})
		})
	}
}

var cases = []struct {
	name string
	run  func(w *world)
}{
	{"ensure runs a container and describes it", ensureRuns},
	{"ensure twice is one container", ensureTwice},
	{"ensure at the same time is one container", ensureConcurrently},
	{"ensure starts what was only created", ensureCreated},
	{"ensure does not start an exited container again", ensureExited},
	{"ensure refuses another generation", ensureGeneration},
	{"ensure refuses what belongs to somebody else", ensureForeign},
	{"ensure names a missing image", ensureMissingImage},
	{"ensure checks the digest", ensureDigest},
	{"ensure refuses a spec that cannot run", ensureInvalid},
	{"ensure keeps what could not be started, with the reason", ensureStartFails},
	{"ensure applies the limits", ensureLimits},
	{"device files are inside with their permissions, and no others", devicesAreInside},
	{"a device that the host lacks is named", devicesMissing},
	{"CDI devices are injected", devicesByCDI},
	{"additional groups are those of its processes", groupsAreGiven},
	{"networks are joined", networksAreJoined},
	{"the network of the host", hostNetwork},
	{"a network that the host lacks is named", networksMissing},
	{"mounts are written through, and only where they may be", mountsHold},
	{"list includes exited containers", listExited},
	{"a second runtime adopts running and exited containers", adopt},
	{"other clusters and agents are invisible", invisible},
	{"inspect of an absent container is not found", inspectAbsent},
	{"stop asks first", stopAsks},
	{"stop kills after the grace", stopKills},
	{"stop without grace kills at once", stopNow},
	{"stop of a stopped container is no error", stopTwice},
	{"remove deletes a running container", removeRunning},
	{"remove of an absent container is no error", removeAbsent},
	{"a kernel id that cannot be a name is refused", badKernelID},
	{"exit codes are kept", exitCode},
	{"running out of memory is told", outOfMemory},
	{"logs are complete and in order", logsComplete},
	{"logs can be limited to the last lines", logsTail},
	{"logs follow until the end", logsFollow},
	{"logs end with their reader", logsCancel},
	{"logs of an absent container are not found", logsAbsent},
	{"commit keeps the files and the labels and nothing of the session", commit},
	{"commits of one name are told apart by their content", commitMoves},
	{"commit of an absent container is not found", commitAbsent},
	{"pull fetches with progress", pull},
	{"pull checks the digest", pullDigest},
	{"pull names what failed", pullFails},
	{"images are listed with their labels", images},
	{"image files are read without a container", imageFiles},
	{"links in images are found without a container", imageLinks},
	{"stats are known while it runs", stats},
	{"stats of a stopped container are refused", statsStopped},
	{"watch hints at a start and an end", watch},
	{"watch ends with its context", watchEnds},
	{"watch survives a lost engine", watchReconnects},
	{"a lost engine is unavailable and recovers", lostEngine},
	{"a call ends with its context", cancelled},
	{"close leaves containers alone", closing},
	{"info describes the engine", info},
}

// world is one test with its runtime.
type world struct {
	*testing.T
	ctx context.Context
	rt  runtime.Runtime
	fix Fixture
}

// kernel returns a new kernel id whose container is removed at the end.
func (w *world) kernel() cluster.KernelID {
	k := cluster.KernelID(uuid.NewString())
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), patience)
		defer cancel()
		if err := w.rt.Remove(ctx, k); err != nil {
			w.Errorf("remove kernel %s at the end: %v", k, err)
		}
	})
	return k
}

// spec describes a container of the fixture's image that runs /box with the given arguments.
func (w *world) spec(k cluster.KernelID, args ...string) runtime.Spec {
	return runtime.Spec{
		Identity: runtime.Identity{
			Cluster: w.fix.Cluster, Agent: w.fix.Agent, Kernel: k, Session: cluster.SessionID(uuid.NewString()),
			Generation: 1, Allocation: `{"cpu":{"0":1000}}`, Schema: 1, Address: "10.222.0.7",
		},
		Image: w.fix.Image, Hostname: "main1", Entry: append([]string{"/box"}, args...), MemoryMax: 64 << 20,
	}
}

// ensure starts a container that must start.
func (w *world) ensure(args ...string) runtime.Observed {
	w.Helper()
	o, err := w.rt.Ensure(w.ctx, w.spec(w.kernel(), args...))
	require.NoError(w, err)
	return o
}

// until waits for hints and looks at the container until it is as wanted.
func (w *world) until(k cluster.KernelID, what string, ok func(runtime.Observed) bool) runtime.Observed {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	hints := w.rt.Watch(ctx)
	for {
		o, err := w.rt.Inspect(ctx, k)
		require.NoError(w, err)
		if ok(o) {
			return o
		}
		if _, open := <-hints; !open {
			require.FailNow(w, "the container did not get there", "wanted: %s; is: %+v", what, o)
		}
	}
}

func (w *world) untilExited(k cluster.KernelID) runtime.Observed {
	w.Helper()
	return w.until(k, "exited", func(o runtime.Observed) bool { return o.Phase == runtime.PhaseExited })
}

// untilLine follows the container's log until a line begins with prefix, and returns it.
func (w *world) untilLine(k cluster.KernelID, prefix string) string {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	log, err := w.rt.Logs(ctx, k, runtime.LogOptions{Follow: true})
	require.NoError(w, err)
	defer log.Close()
	return lineOf(w, log, prefix)
}

// lineOf reads until a line begins with prefix.
func lineOf(t testing.TB, log io.Reader, prefix string) string {
	t.Helper()
	var text strings.Builder
	var b [1]byte
	start := 0
	for {
		_, err := io.ReadFull(log, b[:])
		require.NoError(t, err, "the log ended before a line %q; it was:\n%s", prefix, text.String())
		text.WriteByte(b[0])
		if b[0] != '\n' {
			continue
		}
		if line := text.String()[start:]; strings.HasPrefix(line, prefix) {
			return strings.TrimSuffix(line, "\n")
		}
		start = text.Len()
	}
}

// wholeLog returns the log as it is now.
func (w *world) wholeLog(k cluster.KernelID, opt runtime.LogOptions) string {
	w.Helper()
	log, err := w.rt.Logs(w.ctx, k, opt)
	require.NoError(w, err)
	defer log.Close()
	b, err := io.ReadAll(log)
	require.NoError(w, err)
	return string(b)
}
