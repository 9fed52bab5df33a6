package e2e_test

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// extraImage builds an image of docs/cluster-sessions.md, unless it is there.
func extraImage(t *testing.T, name string) {
	t.Helper()
	needTools(t, "mmdebstrap")
	build := exec.CommandContext(t.Context(), "../images/build.sh", name)
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestClusterSession has a session of four kernels whose programs find each other: names, SSH, Open MPI, and a rendezvous at main1.
func TestClusterSession(t *testing.T) {
	t.Parallel()
	needEngine(t)
	extraImage(t, "mpi")
	p := up(t)
	p.must("session", "create", "mpi", "--name", "quartet", "--cluster-size", "4", "-r", "cpu=1", "-r", "mem=256m")
	inside := func(script string) string {
		t.Helper()
		r := p.inside("quartet", script)
		require.Zero(t, r.code, r.stdout+r.stderr)
		return r.stdout
	}
	hosts := []string{"main1", "sub1", "sub2", "sub3"}

	t.Run("every kernel knows the names", func(t *testing.T) {
		for _, from := range hosts {
			out := inside("ssh " + from + " getent hosts main1 sub1 sub2 sub3")
			for _, name := range hosts {
				require.Contains(t, out, name)
			}
		}
	})
	t.Run("ssh asks nothing", func(t *testing.T) {
		require.Equal(t, "sub2\n", inside("ssh sub2 hostname </dev/null"))
		require.Equal(t, "main1\n", inside("ssh sub1 ssh sub3 ssh main1 hostname"))
		require.Equal(t, "sub3 3\n", inside(`ssh sub3 'echo $BACKENDAI_CLUSTER_HOST $BACKENDAI_CLUSTER_IDX'`))
		require.Equal(t, "42", strings.TrimSpace(inside("echo 42 > x && scp -q x sub1:y && ssh sub1 cat y")))
	})
	t.Run("commands, files and logs choose a kernel", func(t *testing.T) {
		require.Equal(t, "sub2\n", p.must("session", "exec", "--kernel", "sub2", "quartet", "--", "hostname"))
		p.must("session", "exec", "--kernel", "sub3", "quartet", "--", "sh", "-c", "echo here >of-sub3")
		require.Contains(t, p.must("session", "ls", "--kernel", "sub3", "quartet"), "of-sub3")
		require.NotContains(t, p.must("session", "ls", "quartet"), "of-sub3")
		to := t.TempDir()
		p.must("session", "download", "--kernel", "sub3", "--dest", to, "quartet", "of-sub3")
		text, err := os.ReadFile(filepath.Join(to, "of-sub3"))
		require.NoError(t, err)
		require.Equal(t, "here\n", string(text))
		p.must("session", "upload", "--kernel", "sub1", "quartet", filepath.Join(to, "of-sub3"))
		require.Contains(t, p.must("session", "ls", "--kernel", "sub1", "quartet"), "of-sub3")
		p.must("session", "logs", "--kernel", "sub1", "quartet")
		r := p.run("", "session", "exec", "--kernel", "sub9", "quartet", "--", "true")
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "main1, sub1, sub2, sub3")
	})
	t.Run("apps and SSH choose a kernel", func(t *testing.T) {
		needTools(t, "ssh")
		require.Equal(t, "sub2\n", p.must("ssh", "--kernel", "sub2", "quartet", "hostname"))
		require.Equal(t, "main1\n", p.must("ssh", "quartet", "hostname"))
		dir := t.TempDir()
		config := filepath.Join(dir, "config")
		require.NoError(t, os.WriteFile(config, []byte(p.must("ssh-config")), 0o600))
		r := p.tool(dir, "", "ssh", "-F", config, "-o", "BatchMode=yes", "sub3.quartet.berth", "hostname")
		require.Equal(t, "sub3\n", r.stdout, r.stderr)
		p.must("session", "exec", "--kernel", "sub1", "quartet", "--", "sh", "-c",
			"mkdir -p www && hostname >www/name && cd www && setsid python3 -m http.server 8123 >/dev/null 2>&1 </dev/null &")
		p.eventually("the app of sub1 is noticed", func() bool {
			return strings.Contains(p.must("app", "list", "--kernel", "sub1", "quartet"), "port-8123")
		})
		require.NotContains(t, p.must("app", "list", "quartet"), "port-8123", "the main kernel has no such app")
		enter, err := url.Parse(strings.TrimSpace(p.must("app", "open", "--kernel", "sub1", "quartet", "8123", "--no-browser")))
		require.NoError(t, err)
		v := newVisitor(t, "").enters(published{Enter: enter.String()})
		_, body, _ := v.get(enter.Scheme + "://" + enter.Host + "/name")
		require.Equal(t, "sub1\n", body)
	})
	t.Run("mpirun", func(t *testing.T) {
		require.ElementsMatch(t, []string{"main1", "sub1"}, strings.Fields(inside("mpirun -H main1,sub1 hostname")))
		require.ElementsMatch(t, hosts, strings.Fields(inside(`mpirun -H $BACKENDAI_CLUSTER_HOSTS hostname`)))
		require.Contains(t, inside(`mpirun -H $BACKENDAI_CLUSTER_HOSTS python3 -c '
from mpi4py import MPI
c = MPI.COMM_WORLD
s = c.allreduce(c.Get_rank())
if c.Get_rank() == 0: print("sum", s, "of", c.Get_size())
'`), "sum 6 of 4")
	})
	t.Run("a rendezvous at main1", func(t *testing.T) {
		inside(`cat > meet.py <<'X'
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == 0:
    s = socket.create_server(("main1", 29500))
    s.settimeout(60)
    total = 0
    peers = [s.accept()[0] for _ in range(size - 1)]
    total = sum(int(c.recv(16)) for c in peers)
    for c in peers: c.sendall(str(total).encode())
else:
    end = time.monotonic() + 60
    while True:
        try: c = socket.create_connection(("main1", 29500), 20); break
        except OSError:
            if time.monotonic() > end: raise
            time.sleep(0.1)
    c.settimeout(60) # for the last one to come
    c.sendall(str(rank).encode())
    total = int(c.recv(16))
print("rank", rank, "total", total)
X
for h in sub1 sub2 sub3; do scp -q meet.py $h: ; done`)
		out := inside(`r=0; for h in main1 sub1 sub2 sub3; do ssh $h "RANK=$r WORLD_SIZE=4 python3 meet.py" & r=$((r+1)); done; wait`)
		for _, line := range []string{"rank 0 total 6", "rank 1 total 6", "rank 2 total 6", "rank 3 total 6"} {
			require.Contains(t, out, line)
		}
	})
	t.Run("what the user has comes first", func(t *testing.T) {
		inside(`mkdir -p .ssh && printf 'Host sub1\n    HostName sub2\n' > .ssh/config && chmod 600 .ssh/config`)
		require.Equal(t, "sub2\n", inside("ssh sub1 hostname"))
		inside("rm .ssh/config")
	})
	t.Run("strangers do not get in", func(t *testing.T) {
		address := strings.Fields(inside("getent ahostsv4 sub1"))[0]
		p.must("session", "create", "mpi", "--name", "pair", "--cluster-size", "2", "-r", "cpu=1", "-r", "mem=256m")
		r := p.inside("pair", "timeout 5 ssh -o ConnectTimeout=3 -o HostName="+address+" sub1 hostname")
		require.NotZero(t, r.code)
		r = p.inside("pair", "timeout 5 python3 -c 'import socket; socket.create_connection((\""+address+"\", 2200), 3)'")
		require.NotZero(t, r.code)
		p.must("session", "rm", "-y", "pair")
	})
	t.Run("the agent may be killed", func(t *testing.T) {
		pid := p.pid()
		p.kill()
		p.start()
		require.NotEqual(t, pid, p.pid())
		p.eventually("the session can be used", func() bool { return p.inside("quartet", "true").code == 0 })
		require.Equal(t, "sub2\n", inside("ssh sub2 hostname"))
	})
	p.must("session", "rm", "-y", "quartet")
	p.clean()
}

// TestClusterBatch: no command begins before all kernels run and know each other, and the session's result is that of main1.
func TestClusterBatch(t *testing.T) {
	t.Parallel()
	needEngine(t)
	p := up(t)
	script := `test $BACKENDAI_CLUSTER_ROLE = main && getent hosts main1 sub1 sub2 && for h in sub1 sub2; do ssh $h hostname || exit 3; done`
	p.must("session", "create", "python", "--name", "trio", "--cluster-size", "3", "-r", "cpu=1", "-r", "mem=256m", "--batch", script,
		"--detach")
	p.eventually("the batch ends", func() bool { return p.sessions()["trio"].Status == "TERMINATED" })
	require.Equal(t, "SUCCESS", p.sessions()["trio"].Result)
	p.clean()
}
