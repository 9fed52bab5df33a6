package e2e_test

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"berth.dev/berth/api"
)

// BenchmarkSessionsOverTwoAgents measures what a second host costs a session. How long a session of two kernels takes to RUNNING beside one
// of a single kernel, and the same ratio of containers that are started by hand, as all hosts share the processors of this machine. How
// fast its kernels send to each other beside two containers in an overlay network of Swarm, whose engines are in the same two networks.
// Peers take turns, so that what else the machine does meets both. It is a part of `make bench`.
func BenchmarkSessionsOverTwoAgents(b *testing.B) {
	const rounds = 9
	l := layLan(b, "fast-a", "fast-b")
	l.cordonOthers()
	l.must("policy", "set", "default", "--max-containers", "8")
	c, err := l.client()
	require.NoError(b, err)
	b.Cleanup(c.Close)
	// Each kernel asks for all cores of its agent, so that two lie on two.
	cores := strconv.Itoa(runtime.NumCPU())
	create := func(name string, kernels int) string {
		s, err := c.CreateSession(b.Context(), api.CreateSession{Name: name, Image: "berth/base:12", ClusterSize: kernels,
			ClusterMode: "multi-node", Config: api.SessionConfig{Resources: map[string]string{"cpu": cores, "mem": "128m"}}})
		require.NoError(b, err)
		require.Equal(b, "RUNNING", s.Status)
		return s.ID
	}
	took, peers := map[int][]float64{}, map[int][]float64{}
	engines := []*ownEngine{l.hosts["fast-a"].engine, l.hosts["fast-b"].engine}
	for round := range rounds + 1 {
		for _, kernels := range []int{1, 2} {
			name := fmt.Sprintf("speed-%d-%d", round, kernels)
			began := time.Now()
			create(name, kernels)
			if round > 0 { // the first one finds nothing warm
				took[kernels] = append(took[kernels], time.Since(began).Seconds())
			}
			l.must("session", "rm", name)
			l.nothingLeft()
			began = time.Now()
			startByHand(b, engines[:kernels])
			if round > 0 {
				peers[kernels] = append(peers[kernels], time.Since(began).Seconds())
			}
			l.nothingLeft()
		}
	}
	b.ReportMetric(1000*middle(took[1]), "ms/one")
	b.ReportMetric(1000*middle(took[2]), "ms/two")
	b.ReportMetric(middle(took[2])/middle(took[1]), "two-of-one")
	b.ReportMetric(middle(peers[2])/middle(peers[1]), "two-of-one-by-hand")

	names := []string{"main1", "sub1"}
	session := create("speed", 2)
	from, to := l.apart(session, names)
	require.NotEmpty(b, from)
	require.NotEmpty(b, to)
	source, sourceID := l.kernel(session, from)
	sink, sinkID := l.kernel(session, to)
	ours := flow{source.engine, sourceID, sink.engine, sinkID, to}
	swarm := l.swarm()
	ours.listen(b)
	swarm.listen(b)
	var kernels, peer []float64
	for range rounds {
		kernels = append(kernels, ours.send(b))
		peer = append(peer, swarm.send(b))
	}
	l.must("session", "rm", "speed")
	b.ReportMetric(middle(kernels), "MB/s")
	b.ReportMetric(middle(peer), "swarm-MB/s")
	b.ReportMetric(middle(kernels)/middle(peer), "of-swarm")
	b.ReportMetric(0, "ns/op") // says nothing
}

// startByHand starts and ends a container on each engine, all at once.
func startByHand(b *testing.B, on []*ownEngine) {
	b.Helper()
	var all errgroup.Group
	for _, e := range on {
		all.Go(func() error {
			out, err := e.command(nil, "docker", "run", "--rm", "--network", "none", "--entrypoint", "true", "berth/base:12")
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	require.NoError(b, all.Wait())
}

func middle(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// flow is a stream of bytes from one container to another.
type flow struct {
	source   *ownEngine
	sourceID string
	sink     *ownEngine
	sinkID   string
	address  string // of the sink, as the source knows it
}

func (f flow) listen(b *testing.B) {
	f.sink.must("docker", "exec", "-d", f.sinkID, "perl", "-MIO::Socket::INET", "-e", `my $s = IO::Socket::INET->new(LocalPort => 7001, `+
		`Listen => 9, ReuseAddr => 1) or die; while (my $c = $s->accept) { my $b; 1 while sysread($c, $b, 1 << 20) }`)
	require.Eventually(b, func() bool {
		_, err := f.source.command(nil, "docker", "exec", f.sourceID, "bash", "-c", "</dev/tcp/"+f.address+"/7001")
		return err == nil
	}, patience, 100*time.Millisecond)
}

// send sends a GiB and returns how many MB a second were received.
func (f flow) send(b *testing.B) float64 {
	b.Helper()
	out := f.source.must("docker", "exec", f.sourceID, "bash", "-c", `began=${EPOCHREALTIME/./}; perl -MIO::Socket::INET -e 'my $c = `+
		`IO::Socket::INET->new("`+f.address+`:7001") or die; my $b = "x" x (1 << 20); for (1 .. 1024) { for (my $o = 0; $o < length $b;) `+
		`{ $o += syswrite($c, $b, length($b) - $o, $o) // die } } shutdown($c, 1); sysread($c, $b, 1)' && echo $((${EPOCHREALTIME/./} - began))`)
	took, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	require.NoError(b, err)
	return (1 << 30) / took
}

// swarm makes two containers in an overlay network of two more engines, one in the network of each host.
func (l *lan) swarm() flow {
	l.t.Helper()
	var engines []*ownEngine
	archive := l.home + "/image.tar" // joinHost has made it
	for _, h := range []*lanHost{l.hosts["fast-a"], l.hosts["fast-b"]} {
		e := newOwnEngine(l.t, h.engine.inside...)
		e.env = append(e.env, "BERTH_ENGINE_FLAGS="+e.flags+" --live-restore=false") // Swarm does not go with it
		e.ensure()
		e.must("docker", "load", "-i", archive)
		engines = append(engines, e)
		if len(engines) == 1 {
			e.must("docker", "swarm", "init", "--advertise-addr", h.address)
			continue
		}
		e.must("docker", "swarm", "join", "--advertise-addr", h.address, "--token",
			engines[0].must("docker", "swarm", "join-token", "-q", "worker"), l.hosts["fast-a"].address+":2377")
	}
	engines[0].must("docker", "network", "create", "--driver", "overlay", "--attachable", "peer")
	start := func(e *ownEngine, name string) string {
		return e.must("docker", "run", "-d", "--network", "peer", "--name", name, "--entrypoint", "sleep", "berth/base:12", "infinity")
	}
	return flow{engines[0], start(engines[0], "source"), engines[1], start(engines[1], "sink"), "sink"}
}
