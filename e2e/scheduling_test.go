package e2e_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// explained is what `berth session why --json` and a dry run say.
type explained struct {
	Waits      bool              `json:"waits"`
	Status     string            `json:"status"`
	Reason     string            `json:"reason"`
	Msg        string            `json:"msg"`
	Rejected   map[string]int    `json:"rejectedAgents"`
	Shortfall  map[string]string `json:"shortfall"`
	Position   int               `json:"position"`
	Remedies   []string          `json:"remedies"`
	Placements []struct{ Agent string }
}

// why asks until the session waits for the reason, and returns what people and programs read then.
func (p *platform) why(session, reason string) (text string, e explained) {
	p.t.Helper()
	defer func() {
		if e.Reason != reason {
			p.t.Logf("session %s: %+v", session, e)
		}
	}()
	p.eventually("session "+session+" waits for "+reason, func() bool {
		e = explained{}
		require.NoError(p.t, json.Unmarshal([]byte(p.must("session", "why", session, "--json")), &e))
		return e.Reason == reason
	})
	return p.must("session", "why", session), e
}

// node is the one agent of a platform and its number of cpu.
func (p *platform) node() (id string, cpu int) {
	p.t.Helper()
	var agents []struct {
		ID  string            `json:"id"`
		Has map[string]string `json:"available_slots"`
	}
	p.eventually("an agent", func() bool {
		require.NoError(p.t, json.Unmarshal([]byte(p.must("agent", "list", "--json")), &agents))
		return len(agents) == 1 && agents[0].Has["cpu"] != ""
	})
	cpu, err := strconv.Atoi(agents[0].Has["cpu"])
	require.NoError(p.t, err)
	return agents[0].ID, cpu
}

func (p *platform) reaches(session, status string) {
	p.t.Helper()
	p.eventually("session "+session+" is "+status, func() bool { return p.sessions()[session].Status == status })
}

// TestWhySessionsWait fills a cluster in every way and reads what it says about sessions that wait.
func TestWhySessionsWait(t *testing.T) {
	t.Parallel()
	needEngine(t)
	foreign := foreignImage(t)
	p := up(t)
	o := newOfficial(t, p.env())
	agent, cpu := p.node()
	queue := func(name string, args ...string) {
		t.Helper()
		p.must(append([]string{"session", "create", "python", "--name", name, "-r", "mem=128m", "--detach"}, args...)...)
	}
	limit := func(args ...string) {
		t.Helper()
		o.must(append(append([]string{"admin", "keypair-resource-policy", "update"}, args...), "default")...)
	}
	dry := func(args ...string) (e explained) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(p.must(append([]string{"session", "create", "python", "--dry-run", "--json"}, args...)...)), &e))
		return e
	}

	t.Run("a dry run of what fits says where it would start", func(t *testing.T) {
		e := dry("-r", "cpu=1")
		require.False(t, e.Waits, e.Msg)
		require.Len(t, e.Placements, 1)
		require.Equal(t, agent, e.Placements[0].Agent)
		require.Contains(t, p.must("run", "python", "--dry-run"), "would start at once")
		require.Empty(t, p.sessions(), "nothing was created")
	})
	t.Run("a cordoned agent", func(t *testing.T) {
		p.must("agent", "cordon", agent)
		require.Contains(t, p.must("agent", "list"), "ALIVE, cordoned")
		queue("cordoned", "-r", "cpu=1")
		text, e := p.why("cordoned", "no-agent")
		require.Contains(t, text, "1 cordoned")
		require.Equal(t, 1, e.Rejected["not-schedulable"])
		require.NotEmpty(t, e.Remedies)
		require.Equal(t, "no-agent", dry("-r", "cpu=1").Reason)
		require.Contains(t, p.must("session", "list"), "no-agent", "the short reason")
		p.must("agent", "uncordon", agent)
		p.reaches("cordoned", "RUNNING")
		require.Contains(t, p.must("session", "why", "cordoned"), "does not wait: it is RUNNING")
		p.must("session", "rm", "-y", "cordoned")
	})
	t.Run("more than any agent has", func(t *testing.T) {
		for _, dryRun := range []string{"--detach", "--dry-run"} {
			r := p.run("", "session", "create", "python", "--name", "huge", "-r", fmt.Sprintf("cpu=%d", cpu+7), "--fail-if-impossible", dryRun)
			require.NotZero(t, r.code)
			require.Contains(t, r.stderr, "no agent could ever run this session: cpu")
			require.Contains(t, r.stderr, "7 too much")
		}
		// Each container would fit, both never do.
		limit("--max-containers-per-session", "8")
		queue("twins", "-r", fmt.Sprintf("cpu=%d", cpu-1), "--cluster-size", "2", "--cluster-mode", "multi-node")
		text, _ := p.why("twins", "too-big")
		require.Contains(t, text, "more than any agent has")
		p.must("session", "rm", "-fy", "twins")
	})
	t.Run("waiting for capacity", func(t *testing.T) {
		queue("filler", "-r", fmt.Sprintf("cpu=%d", cpu-1))
		p.reaches("filler", "RUNNING")
		queue("squeezed", "-r", "cpu=3")
		text, e := p.why("squeezed", "capacity")
		require.Contains(t, text, "squeezed waits: it asks for 3 cpu")
		require.Contains(t, text, "lacks 2 cpu now")
		require.Equal(t, map[string]string{"cpu": "2"}, e.Shortfall)
		require.Equal(t, map[string]int{"cpu": 1}, e.Rejected)
		require.Contains(t, strings.Join(e.Remedies, "; "), "ask for 1 cpu")
		require.Equal(t, "capacity", dry("-r", "cpu=3").Reason)
		require.Contains(t, p.must("session", "info", "squeezed", "--explain"), "what helps")
		require.Contains(t, p.must("scheduler", "status"), "1 capacity")
		// What it says helps does help.
		p.must("session", "rm", "-y", "filler")
		p.reaches("squeezed", "RUNNING")
		p.must("session", "rm", "-y", "squeezed")
		p.reaches("squeezed", "TERMINATED") // until then it counts
	})
	t.Run("a quota", func(t *testing.T) {
		limit("--total-resource-slots", `{"cpu":"2"}`)
		queue("quota", "-r", "cpu=3")
		text, e := p.why("quota", "quota")
		require.Contains(t, text, "quota of 2 cpu")
		require.Equal(t, map[string]string{"cpu": "1"}, e.Shortfall)
		limit("--total-resource-slots", `{}`)
		p.reaches("quota", "RUNNING")
	})
	t.Run("a number of sessions", func(t *testing.T) {
		limit("--max-concurrent-sessions", "1")
		queue("another")
		text, _ := p.why("another", "concurrency")
		require.Contains(t, text, "1")
		require.Contains(t, text, "limit")
		limit("--max-concurrent-sessions", "30")
		p.reaches("another", "RUNNING")
		p.must("session", "rm", "-y", "another", "quota")
	})
	t.Run("a dependency", func(t *testing.T) {
		queue("first", "--batch", "while [ ! -e /home/work/go ]; do sleep 0.2; done")
		queue("second", "--batch", "true", "--depends", "first")
		text, _ := p.why("second", "dependency")
		require.Contains(t, text, "session first")
		p.reaches("first", "RUNNING")
		p.must("session", "exec", "first", "--", "touch", "/home/work/go")
		p.eventually("both succeed", func() bool {
			s := p.sessions()
			return s["first"].Result == "SUCCESS" && s["second"].Result == "SUCCESS"
		})
	})
	t.Run("a start time", func(t *testing.T) {
		before := time.Now()
		queue("later", "--batch", "true", "--starts-at", "1h")
		text, _ := p.why("later", "start-time")
		at := func(asked time.Time) string { return "it starts at " + asked.UTC().Add(time.Hour).Format("2006-01-02") }
		require.True(t, strings.Contains(text, at(before)) || strings.Contains(text, at(time.Now())), text) // midnight may be between
		p.must("session", "rm", "-fy", "later")
		queue("soon", "--batch", "true", "--starts-at", "2s")
		p.eventually("it starts by itself", func() bool { return p.sessions()["soon"].Result == "SUCCESS" })
	})
	t.Run("no agent of that architecture", func(t *testing.T) {
		p.must("session", "create", foreign, "--name", "foreign", "-r", "mem=128m", "--detach")
		text, e := p.why("foreign", "no-agent")
		require.Contains(t, text, "1 of another architecture")
		require.Contains(t, text, "aarch64")
		require.Equal(t, 1, e.Rejected["architecture"])
		p.must("session", "rm", "-fy", "foreign")
	})
	t.Run("draining", func(t *testing.T) {
		queue("guest", "-r", "cpu=1")
		p.reaches("guest", "RUNNING")
		r := p.run("", "agent", "drain", agent, "--timeout", "1s")
		require.Equal(t, 5, r.code, r.stderr)
		require.Contains(t, r.stderr, "stays cordoned with 1 session left (guest of admin@berth.local)")
		require.Equal(t, "RUNNING", p.sessions()["guest"].Status)
		require.Contains(t, p.must("agent", "info", agent), "cordoned")
		r = p.run("", "agent", "drain", agent, "--force")
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stderr, "is drained")
		require.Equal(t, "TERMINATED", p.sessions()["guest"].Status)
		p.must("agent", "uncordon", agent)
	})
	p.clean()
}

// foreignImage puts an image of another architecture into the engine and takes it away in the end.
func foreignImage(t *testing.T) string {
	t.Helper()
	return madeImage(t, "foreign", "arm64", nil)
}

// madeImage puts an image of some empty files into the engine and takes it away in the end.
func madeImage(t *testing.T, name, architecture string, files []string) (reference string) {
	t.Helper()
	reference = fmt.Sprintf("berth-e2e/%s:%x", name, time.Now().UnixNano()&0xffffff)
	var layer, image bytes.Buffer
	content := tar.NewWriter(&layer)
	for _, file := range files {
		require.NoError(t, content.WriteHeader(&tar.Header{Name: file, Mode: 0o644}))
	}
	require.NoError(t, content.Close())
	archive := tar.NewWriter(&image)
	for file, content := range map[string][]byte{
		"layer.tar": layer.Bytes(),
		"config.json": fmt.Appendf(nil, `{"architecture":%q,"os":"linux","config":{"Labels":{"ai.backend.role":"COMPUTE"},"Cmd":["true"]},
			"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, architecture, sha256.Sum256(layer.Bytes())),
		"manifest.json": fmt.Appendf(nil, `[{"Config":"config.json","RepoTags":[%q],"Layers":["layer.tar"]}]`, reference),
	} {
		require.NoError(t, archive.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(content))}))
		_, err := archive.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	_, err := dockerTo(&image, "load")
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = docker("rmi", "-f", reference) })
	return reference
}

// TestSchedulingPolicy changes how a full group is served while it is full.
func TestSchedulingPolicy(t *testing.T) {
	t.Parallel()
	p := up(t)
	_, cpu := p.node()
	pid := p.pid()
	queue := func(name string, n int) {
		t.Helper()
		p.must("session", "create", "python", "--name", name, "-r", "mem=128m", "-r", fmt.Sprintf("cpu=%d", n), "--detach")
	}
	place := func(session string) int {
		_, e := p.why(session, "capacity")
		return e.Position
	}
	queue("filler", cpu)
	p.reaches("filler", "RUNNING")
	queue("older", cpu)
	queue("younger", cpu)
	require.Equal(t, 1, place("older"))
	require.Equal(t, 2, place("younger"))

	p.must("scheduler", "policy", "default", "--order", "lifo")
	p.eventually("the younger goes first", func() bool { return place("younger") == 1 && place("older") == 2 })
	for _, order := range []string{"drf", "fair-share", "fifo"} {
		require.Contains(t, p.must("scheduler", "policy", "default", "--order", order), order)
		p.eventually("order "+order, func() bool { return strings.Contains(p.must("scheduler", "status"), order) })
		// Of one owner's sessions the older goes first under all of them.
		p.eventually("the older goes first", func() bool { return place("older") == 1 })
	}
	p.must("scheduler", "policy", "default", "--order", "fair-share", "--order-option", "half_life_days=3", "--placement", "spread")
	p.eventually("placement spread", func() bool { return strings.Contains(p.must("scheduler", "status"), "spread") })
	r := p.run("", "scheduler", "policy", "default", "--order", "astrology")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "fifo, lifo, drf, fair-share")
	r = p.run("", "scheduler", "policy", "default", "--order-option", "luck=1")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "half_life_days")

	p.must("session", "rm", "-y", "filler")
	p.reaches("older", "RUNNING")
	require.Equal(t, "PENDING", p.sessions()["younger"].Status)
	require.Equal(t, pid, p.pid(), "nothing restarted")
	p.must("session", "rm", "-fy", "younger", "older")
	p.clean()
}

// TestOfficialClientSchedules walks the official command line through what it knows of scheduling.
func TestOfficialClientSchedules(t *testing.T) {
	t.Parallel()
	p := up(t)
	o := newOfficial(t, p.env())
	agent, _ := p.node()
	create := func(name string, args ...string) string {
		t.Helper()
		return o.must(append(append([]string{"session", "create", "--name", name, "-r", "cpu=1", "-r", "mem=128m"}, args...), "python")...)
	}

	t.Run("a cluster on one node", func(t *testing.T) {
		r := o.run("", "session", "create", "--name", "crowd", "--cluster-size", "17", "python")
		require.Contains(t, r.stdout+r.stderr, "16 containers", "the policy of the first keypair allows so many")
		require.Contains(t, create("trio", "--cluster-size", "3", "--cluster-mode", "single-node"), "is created and ready")
		env := p.must("session", "exec", "trio", "--", "sh", "-c", "hostname; env")
		for _, line := range []string{"main1\n", "BACKENDAI_CLUSTER_SIZE=3\n", "BACKENDAI_CLUSTER_HOSTS=main1,sub1,sub2\n",
			"BACKENDAI_CLUSTER_REPLICAS=main:1,sub:2\n",
			"BACKENDAI_CLUSTER_HOST=main1\n", "BACKENDAI_CLUSTER_ROLE=main\n", "BACKENDAI_CLUSTER_IDX=1\n", "BACKENDAI_CLUSTER_LOCAL_RANK=0\n"} {
			require.Contains(t, env, line)
		}
		require.Contains(t, p.must("agent", "info", agent), "cpu 3", "three containers hold a cpu each")
		require.Equal(t, "sub2\n", p.must("session", "exec", "trio", "--", "ssh", "sub2", "hostname"))
		o.must("session", "destroy", "trio")
	})
	t.Run("a cluster on any nodes", func(t *testing.T) {
		require.Contains(t, create("spread", "--cluster-size", "3", "--cluster-mode", "multi-node"), "is created and ready")
		require.Equal(t, "sub1\n", p.must("session", "exec", "spread", "--", "ssh", "sub1", "hostname"))
		o.must("session", "destroy", "spread")
	})
	t.Run("dependencies and a start time", func(t *testing.T) {
		create("prepare", "--type", "batch", "-c", "while [ ! -e /home/work/go ]; do sleep 0.2; done", "--enqueue-only")
		create("train", "--type", "batch", "-c", "true", "--depends", "prepare", "--enqueue-only")
		create("report", "--type", "batch", "-c", "true", "--starts-at", "5s", "--enqueue-only")
		p.why("train", "dependency")
		p.reaches("prepare", "RUNNING")
		p.must("session", "exec", "prepare", "--", "touch", "/home/work/go")
		for _, name := range []string{"prepare", "train", "report"} {
			require.Eventually(t, func() bool { s, found := o.session(name); return found && s.Result == "SUCCESS" }, patience, time.Second, name)
		}
	})
	t.Run("a failed dependency", func(t *testing.T) {
		create("fails", "--type", "batch", "-c", "exit 1", "--enqueue-only")
		create("after", "--type", "batch", "-c", "true", "--depends", "fails", "--enqueue-only")
		p.reaches("after", "CANCELLED")
		require.Contains(t, p.sessions()["after"].Info, "depend")
	})
	t.Run("a priority", func(t *testing.T) {
		p.must("agent", "cordon", agent)
		p.must("session", "create", "python", "--name", "patient", "-r", "mem=128m", "--detach")
		p.must("session", "create", "python", "--name", "urgent", "-r", "mem=128m", "--priority", "90", "--no-preempt", "--detach")
		_, urgent := p.why("urgent", "no-agent")
		p.eventually("the urgent one goes first", func() bool { _, e := p.why("patient", "no-agent"); return e.Position > urgent.Position })
		p.must("agent", "uncordon", agent)
		p.reaches("patient", "RUNNING")
		p.must("session", "rm", "-fy", "patient", "urgent")
	})
	t.Run("a chosen agent", func(t *testing.T) {
		require.Contains(t, create("there", "--assign-agent", agent), "is created and ready")
		o.must("session", "destroy", "there")
		r := o.run("", "session", "create", "--name", "nowhere", "--assign-agent", "i-nobody", "python")
		require.Contains(t, r.stdout+r.stderr, "No such agent")
	})
	t.Run("resource groups", func(t *testing.T) {
		o.must("admin", "scaling-group", "add", "--driver", "static", "--scheduler", "drf", "--driver-opts", "{}", "--scheduler-opts", "{}",
			"night")
		require.Contains(t, o.must("admin", "scaling-group", "list"), "night")
		o.must("admin", "scaling-group", "associate-scaling-group", "night", "default")
		require.Contains(t, o.must("admin", "scaling-group", "get-available", "default"), "night")
		o.must("admin", "scaling-group", "update", "--scheduler", "fair-share", "night")
		require.Contains(t, o.must("admin", "scaling-group", "info", "night"), "fair-share")
		p.must("session", "create", "python", "--name", "stargazer", "-r", "mem=128m", "--resource-group", "night", "--detach")
		text, _ := p.why("stargazer", "no-agent")
		require.Contains(t, text, "night")
		p.must("session", "rm", "-fy", "stargazer")
		// The client trips over its own reply, but only after the association has gone.
		o.run("", "admin", "scaling-group", "dissociate-scaling-group", "night", "default")
		require.NotContains(t, o.must("admin", "scaling-group", "get-available", "default"), "night")
		r := o.run("", "admin", "scaling-group", "delete", "default")
		require.Contains(t, r.stdout+r.stderr, "stays")
	})
	p.clean()
}
