package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
)

// lan is a network of hosts on this machine: each is a network namespace with an engine and an agent of its own. The manager is on this
// machine itself, which they all reach.
type lan struct {
	*platform
	home  string
	id    string
	agent string // host:port where the manager hears agents
	hosts map[string]*lanHost
}

type lanHost struct {
	name, address string
	engine        *ownEngine
	process       *exec.Cmd
	config        string
}

// lanAddress is the first three bytes of the addresses on the lan.
const lanAddress = "10.231.77"

// layLan makes the network. It ends with the test, as all that is on it.
func layLan(t testing.TB, names ...string) *lan {
	t.Helper()
	needEngine(t)
	if os.Geteuid() != 0 {
		t.Skip("only root makes network namespaces")
	}
	l := &lan{id: fmt.Sprintf("blan%d", os.Getpid()%100_000), hosts: map[string]*lanHost{}}
	// The switch is in a namespace, too: what passes a bridge of this machine is filtered by the rules of its engine.
	hub := l.id + "sw"
	if err := command("ip", "netns", "add", hub); err != nil {
		t.Skipf("this machine allows no network namespaces: %v", err)
	}
	t.Cleanup(func() { _ = command("ip", "netns", "del", hub) })
	run := func(argv ...string) {
		t.Helper()
		require.NoError(t, command(argv...))
	}
	run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
	run("ip", "-n", hub, "link", "set", "br0", "up")
	run("ip", "link", "add", l.id, "type", "veth", "peer", "name", "p0", "netns", hub)
	run("ip", "-n", hub, "link", "set", "p0", "master", "br0", "up")
	run("ip", "addr", "add", lanAddress+".1/24", "dev", l.id)
	run("ip", "link", "set", l.id, "up")
	for i, name := range names {
		space, port := l.id+name, fmt.Sprintf("p%d", i+1)
		h := &lanHost{name: name, address: fmt.Sprintf("%s.%d", lanAddress, 10+i)}
		run("ip", "netns", "add", space)
		t.Cleanup(func() { _ = command("ip", "netns", "del", space) })
		run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
		run("ip", "-n", hub, "link", "set", port, "master", "br0", "up")
		for _, argv := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", h.address + "/24", "dev", "eth0"},
			{"link", "set", "eth0", "up"}, {"route", "add", "default", "via", lanAddress + ".1"}} {
			run(append([]string{"ip", "-n", space}, argv...)...)
		}
		// The agent's own mounts must outlive it, so it enters the network and nothing else (`ip netns exec` would make new mounts).
		h.engine = newOwnEngine(t, "nsenter", "--net=/run/netns/"+space)
		l.hosts[name] = h
	}
	port := freePort(t)
	l.agent = lanAddress + ".1:" + port
	dir, err := os.MkdirTemp("", "berth-lan-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	l.home = dir
	l.platform = &platform{t: t, dir: filepath.Join(dir, "up"), more: []string{"BERTH_MANAGER__AGENTS__LISTEN=" + l.agent}}
	t.Cleanup(func() {
		if t.Failed() {
			l.dumpLog()
		}
		l.try("down", "--sessions")
		_ = os.RemoveAll(dir)
	})
	l.start()
	for _, name := range names {
		l.joinHost(l.hosts[name])
	}
	return l
}

// joinHost brings the images to a host's engine and starts its agent.
func (l *lan) joinHost(h *lanHost) {
	l.t.Helper()
	h.engine.ensure()
	archive := filepath.Join(l.home, "image.tar")
	if _, err := os.Stat(archive); err != nil {
		_, err := docker("save", "-o", archive, "berth/base:12")
		require.NoError(l.t, err)
	}
	h.engine.must("docker", "load", "-i", archive)
	token := filepath.Join(l.home, h.name+".token")
	l.must("admin", "join-token", "create", "--role", "agent", "--name", h.name, "--out", token)
	h.config = filepath.Join(l.home, h.name+".toml")
	require.NoError(l.t, os.WriteFile(h.config, fmt.Appendf(nil, `
[agent]
id = %q
manager = %q
join_token_file = %q
state_dir = %q
`, h.name, l.agent, token, filepath.Join(l.home, h.name)), 0o600))
	forgetAt(l.t, agent.Config{ID: h.name, StateDir: filepath.Join(l.home, h.name)}, "unix://"+h.engine.dir+"/sock")
	l.startAgent(h)
	l.eventually("agent "+h.name+" has images", func() bool { return l.run("", "image", "import", "--agent", h.name, "berth/*").code == 0 })
}

func (l *lan) startAgent(h *lanHost) {
	l.t.Helper()
	argv := slices.Concat([]string{"env", "DOCKER_HOST=unix://" + h.engine.dir + "/sock"}, h.engine.inside,
		[]string{binary, "agent", "--config", h.config})
	h.process = process(l.t, l.home, h.name, argv...)
}

// cordonOthers leaves new sessions to the agents of the lan.
func (l *lan) cordonOthers() {
	l.t.Helper()
	var agents []struct {
		ID string `json:"id"`
	}
	require.NoError(l.t, json.Unmarshal([]byte(l.must("agent", "list", "--json")), &agents))
	for _, a := range agents {
		if l.hosts[a.ID] == nil {
			l.must("agent", "cordon", a.ID) // this machine's own
		}
	}
}

// container finds a session's container on a host by its name in the session; "" when it is not there.
func (h *lanHost) container(session, name string) string {
	out, err := h.engine.command(nil, "docker", "ps", "-q", "--no-trunc", "--filter", "label=berth.session="+session)
	if err != nil {
		return ""
	}
	for _, id := range strings.Fields(out) {
		if got, err := h.engine.command(nil, "docker", "inspect", "-f", "{{.Config.Hostname}}", id); err == nil && got == name {
			return id
		}
	}
	return ""
}

// kernel finds a kernel of a session on whichever host has it.
func (l *lan) kernel(session, name string) (*lanHost, string) {
	l.t.Helper()
	for _, h := range l.hosts {
		if id := h.container(session, name); id != "" {
			return h, id
		}
	}
	require.Failf(l.t, "it is nowhere", "kernel %s of session %s", name, session)
	return nil, ""
}

// in runs a shell command in a kernel, as its programs do.
func (l *lan) in(session, name, script string) (string, error) {
	l.t.Helper()
	h, id := l.kernel(session, name)
	return h.engine.command(nil, "docker", "exec", id, "bash", "-c", script)
}

// serve starts a program in a kernel that answers every connection to port 7000 with a word.
func (l *lan) serve(session, name, word string) {
	l.t.Helper()
	l.serveAt(session, name, "7000", word)
}

func (l *lan) serveAt(session, name, port, word string) {
	l.t.Helper()
	const script = `perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(LocalPort => $ARGV[0], Listen => 9, ReuseAddr => 1) or die; ` +
		`$SIG{CHLD} = "IGNORE"; while (my $c = $s->accept) { next if fork; print $c "$ARGV[1]\n"; while (<$c>) { print $c $_ } exit }' `
	h, id := l.kernel(session, name)
	h.engine.must("docker", "exec", "-d", id, "bash", "-c", script+port+" "+word)
	l.eventually(name+" listens", func() bool {
		out, err := l.in(session, name, "read -t 5 w </dev/tcp/127.0.0.1/"+port+"; echo $w")
		return err == nil && out == word
	})
}

// TestSessionsOverTwoAgents: the kernels of one session lie on two hosts, find each other by name, and are reached by nobody else; their
// connections live on while an agent is killed, and nothing is left when they have ended.
func TestSessionsOverTwoAgents(t *testing.T) {
	t.Parallel()
	l := layLan(t, "wide-a", "wide-b")
	l.cordonOthers()
	l.must("policy", "set", "default", "--max-containers", "8")
	create := func(name string, size int) string {
		r := l.must("session", "create", "berth/base:12", "--name", name, "--cluster-size", fmt.Sprint(size), "--cluster-mode", "multi-node",
			"-r", "cpu=1", "-r", "mem=128m", "--quiet", "--timeout", "3m")
		return strings.TrimSpace(r)
	}
	id := create("wide-one", 3)
	names := []string{"main1", "sub1", "sub2"}
	hosts := map[string]int{}
	for _, name := range names {
		h, _ := l.kernel(id, name)
		hosts[h.name]++
		l.serve(id, name, "i-am-"+name)
	}
	require.Len(t, hosts, 2, "the kernels are not on both hosts: %v", hosts)
	for _, from := range names {
		for _, to := range names {
			out, err := l.in(id, from, "read -t 60 w </dev/tcp/"+to+"/7000 && echo $w")
			require.NoError(t, err, "%s to %s: %s", from, to, out)
			require.Equal(t, "i-am-"+to, out)
		}
	}

	for _, to := range names {
		require.Equal(t, to, strings.TrimSpace(l.must("session", "exec", "wide-one", "--", "ssh", to, "hostname")))
	}

	// A stranger's session lies on a host beside them, and reaches none of them, whatever it knows.
	stranger := create("wide-two", 1)
	address, err := l.in(id, "main1", "getent hosts main1 | cut -d' ' -f1")
	require.NoError(t, err)
	_, err = l.in(stranger, "main1", "read -t 3 w </dev/tcp/"+address+"/7000")
	require.Error(t, err)
	for _, to := range []string{lanAddress + ".10", lanAddress + ".11", lanAddress + ".1"} {
		_, err = l.in(id, "main1", "timeout 3 bash -c '</dev/tcp/"+to+"/"+strings.Split(l.agent, ":")[1]+"'")
		require.Error(t, err, "a kernel reaches %s", to)
	}

	// A connection between two hosts lives on while an agent is killed and starts again.
	from, to := l.apart(id, names)
	h, _ := l.kernel(id, from)
	say := l.talk(id, from, to)
	say()
	killed(t, h.process.Process.Pid)
	say()
	l.startAgent(h)
	l.eventually("the agent is back", func() bool { return strings.Contains(l.must("agent", "info", h.name), "ALIVE") })
	say()

	l.must("session", "rm", "wide-one", "wide-two")
	l.nothingLeft()
	t.Run("encrypted", func(t *testing.T) { l.encryptedSession(t, create) })
	l.nothingLeft()
	t.Run("in the network of their hosts", func(t *testing.T) { l.sessionInHosts(t) })
	l.nothingLeft()
	l.clean()
}

// sessionInHosts is the part of TestSessionsOverTwoAgents whose kernels are in the networks of their two hosts: they find each other at the
// addresses of these, by SSH at ports that are theirs.
func (l *lan) sessionInHosts(t *testing.T) {
	l.must("resource-group", "set", "default", "--host-network")
	id := strings.TrimSpace(l.must("session", "create", "berth/base:12", "--name", "on-hosts", "--network", "host", "--cluster-size", "3",
		"--cluster-mode", "multi-node", "-r", "cpu=1", "-r", "mem=128m", "--quiet", "--timeout", "3m"))
	names := []string{"main1", "sub1", "sub2"}
	from, to := l.apart(id, names)
	require.NotEmpty(t, from)
	require.NotEmpty(t, to)
	for _, name := range names {
		h, _ := l.kernel(id, name)
		out, err := l.in(id, name, "readlink /proc/self/ns/net")
		require.NoError(t, err, out)
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", h.process.Process.Pid)) // the agent's
		require.NoError(t, err)
		require.Equal(t, own, out)
		for _, other := range names {
			at, _ := l.kernel(id, other)
			out, err = l.in(id, name, "getent ahostsv4 "+other+" | head -1 | cut -d' ' -f1") // these hosts reach no resolver to ask for more
			require.NoError(t, err)
			require.Equal(t, at.address, out, "%s as %s finds it", other, name)
			require.Equal(t, other, strings.TrimSpace(l.must("session", "exec", "--kernel", name, "on-hosts", "--", "ssh", other, "hostname")))
		}
	}
	// A program serves at a port that is leased to its kernel, and is found on the other host.
	port := strings.TrimSpace(l.must("session", "exec", "--kernel", to, "on-hosts", "--", "sh", "-c", "echo $BERTH_FREE_PORTS | cut -d, -f1"))
	require.NotEmpty(t, port)
	l.must("resource-group", "set", "default", "--host-network=false")
	l.serveAt(id, to, port, "i-am-"+to)
	out, err := l.in(id, from, "read -t 60 w </dev/tcp/"+to+"/"+port+" && echo $w")
	require.NoError(t, err, out)
	require.Equal(t, "i-am-"+to, out)
	l.must("session", "rm", "on-hosts")
}

// nothingLeft waits until no host has containers or interfaces of sessions.
func (l *lan) nothingLeft() {
	l.t.Helper()
	for _, h := range l.hosts {
		l.eventually("nothing is left on "+h.name, func() bool {
			left, err := h.engine.command(nil, "sh", "-c", "docker ps -aq; ls /run/netns | grep ^berth- | while read n; do "+
				"ip -n $n -o link | grep -v ' lo:'; done; true")
			return err == nil && left == ""
		})
	}
}

// apart are two kernels of a session on two hosts, the first on the one whose name ends with -a.
func (l *lan) apart(session string, names []string) (from, to string) {
	l.t.Helper()
	for _, name := range names {
		if h, _ := l.kernel(session, name); strings.HasSuffix(h.name, "-a") {
			from = name
		} else {
			to = name
		}
	}
	return from, to
}

// talk opens a connection from one kernel to what serve started in another; say fails when what is said does not come back.
func (l *lan) talk(session, from, to string) (say func()) {
	l.t.Helper()
	h, container := l.kernel(session, from)
	talk := exec.Command("docker", "exec", "-i", container, "bash", "-c",
		"exec 3<>/dev/tcp/"+to+"/7000; read w <&3; while read line; do echo $line >&3; read back <&3; echo $back; done")
	talk.Env = h.engine.env
	in, err := talk.StdinPipe()
	require.NoError(l.t, err)
	var heard lockedBuffer
	talk.Stdout = &heard
	require.NoError(l.t, talk.Start())
	l.t.Cleanup(func() { _ = talk.Process.Kill(); _ = talk.Wait() })
	said := 0
	return func() {
		l.t.Helper()
		said++
		want := fmt.Sprintf("%s %d\n", spoken, said)
		_, err := fmt.Fprint(in, want)
		require.NoError(l.t, err)
		l.eventually("the answer "+want, func() bool { return strings.HasSuffix(heard.String(), want) })
	}
}

// spoken is how all lines begin that kernels say to each other.
const spoken = "what-kernels-say-to-each-other"
