package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inside runs a script in a session as its user.
func (p *platform) inside(session, script string) result {
	p.t.Helper()
	return p.run("", "session", "exec", session, "--", "sh", "-c", script)
}

// info is why a session ended, for people.
func (p *platform) ended(session string) string {
	p.t.Helper()
	p.eventually(session+" has ended", func() bool {
		switch p.sessions()[session].Status {
		case "TERMINATED", "CANCELLED", "ERROR":
			return true
		}
		return false
	})
	return p.must("session", "info", session)
}

// TestAttackMountPoints is code in a container that wants a folder of its own mounted over the runner, so that its program is PID 1.
func TestAttackMountPoints(t *testing.T) {
	t.Parallel()
	p := up(t)
	evil := p.onDisk("evil")
	// What the runner's directory has, in the attacker's version: a program that says who it is.
	put(t, filepath.Join(evil, "runner"), "#!/bin/sh\nid -u > /.berth/pwned\nexec sleep 600\n")
	require.NoError(t, os.Chmod(filepath.Join(evil, "runner"), 0o755))
	put(t, filepath.Join(evil, "config.json"), "{}")

	t.Run("a link in the home, and a restart", func(t *testing.T) {
		for name, script := range map[string]string{
			"root": "ln -s / a", "magic": "ln -s /proc/1/root a", "inside": "mkdir b && ln -s b a",
		} {
			session := "link-" + name
			p.must("session", "create", "python", "--name", session, "-v", "evil:/home/work/a/.berth")
			p.eventually("it can be used", func() bool { return p.inside(session, "true").code == 0 })
			// The mount point itself is busy, its parent is the user's: put aside, it makes room for a link.
			r := p.inside(session, "mv a aside && "+script)
			require.Zero(t, r.code, "%s: %s%s", name, r.stdout, r.stderr)
			p.run("", "session", "restart", session)
			require.Contains(t, p.ended(session), "symbolic link", name)
			require.NoFileExists(t, filepath.Join(evil, "pwned"))
		}
	})
	t.Run("targets that are the platform's", func(t *testing.T) {
		for _, target := range []string{"/.berth", "/.berth/x", "/", "/etc", "/proc/1", "/usr/bin", "/home/work", "/home/config", "/tmp/x",
			"/run/x", "/home/work/../../.berth"} {
			r := p.run("", "session", "create", "python", "--name", "refused", "-v", "evil:"+target)
			require.NotZero(t, r.code, target)
		}
	})
	t.Run("one folder over another", func(t *testing.T) {
		p.onDisk("outer")
		r := p.run("", "session", "create", "python", "--name", "nested", "-v", "outer:/home/work/o", "-v", "evil:/home/work/o/in")
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "mounted over each other")
	})
	t.Run("a link in an image", func(t *testing.T) {
		image := "berth-test/attack-links:1"
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM berth/python:3.11\nRUN ln -s / /data\n"), 0o644))
		out, err := docker("build", "-q", "--network=none", "-t", image, dir)
		require.NoError(t, err, out)
		t.Cleanup(func() { _, _ = docker("rmi", "-f", image) })
		p.eventually("the image is known", func() bool {
			r := p.run("", "session", "create", image, "--name", "linked", "-v", "evil:/data/.berth", "--detach")
			return r.code == 0
		})
		require.Contains(t, p.ended("linked"), "/data is a symbolic link in image")
	})
	t.Run("folders are where they belong", func(t *testing.T) {
		p.must("session", "create", "python", "--name", "good", "-v", "evil:/home/work/deep/in", "-v", "outer:/mnt/outer")
		p.eventually("it can be used", func() bool { return p.inside("good", "cat deep/in/config.json && touch /mnt/outer/x").code == 0 })
		p.must("session", "restart", "good")
		p.eventually("also after a restart", func() bool { return p.inside("good", "cat deep/in/config.json && ls /mnt/outer/x").code == 0 })
		p.must("session", "rm", "--yes", "good")
	})
	p.noMounts()
	p.clean()
}

// forkBomb takes every process that there is and keeps it. A bomb of the shell ends by itself now and then: a shell that cannot fork
// gives up.
const forkBomb = `python3 -c '
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(1)
' > /dev/null 2>&1 &`

// smallOnes starts 200 programs that keep a little memory each, far more than there is in all, and says when it has started the last.
const smallOnes = `for i in $(seq 200); do python3 -c "import time; x = bytearray(8 << 20); time.sleep(3600)" & done; touch ~/all; wait`

// TestAttackBombs is code in a container that takes all processes and all memory it can get. The session can still be looked at and
// ended, and goes on when the bomb is gone.
func TestAttackBombs(t *testing.T) {
	t.Parallel()
	p := up(t)
	t.Run("processes", func(t *testing.T) {
		p.must("session", "create", "python", "--name", "forks", "-r", "mem=4g")
		p.eventually("it can be used", func() bool { return p.inside("forks", "true").code == 0 })
		p.inside("forks", forkBomb)
		p.eventually("the bomb meets its limit", func() bool {
			r := p.run("", "session", "exec", "forks", "--", "bash", "-c", "ls & wait")
			return strings.Contains(r.stderr, "Resource temporarily unavailable") || strings.Contains(r.stderr, "Cannot fork")
		})
		// The runner starts programs, which can end the bomb: kill is the shell's own, and needs no process.
		p.eventually("the bomb can be killed", func() bool {
			p.run("", "session", "exec", "forks", "--", "bash", "-c", "kill -9 -1")
			return p.inside("forks", "ls / > /dev/null").code == 0
		})
		require.Equal(t, "RUNNING", p.sessions()["forks"].Status)
		// Once more, and now the session is ended with the bomb in it.
		p.inside("forks", forkBomb)
		p.must("session", "rm", "--yes", "forks")
		p.ended("forks")
	})
	t.Run("memory", func(t *testing.T) {
		p.must("session", "create", "python", "--name", "eats", "-r", "mem=512m")
		p.eventually("it can be used", func() bool { return p.inside("eats", "true").code == 0 })
		for range 3 {
			r := p.inside("eats", "python3 -c 'x = bytearray(4 << 30)'")
			require.Contains(t, []int{1, 137}, r.code, r.stderr)
		}
		// Many small ones, of which none is larger than the runner. They stay until they are killed.
		p.inside("eats", "setsid sh -c '"+smallOnes+"' > /dev/null 2>&1 < /dev/null &")
		p.eventually("the kernel ends some of them", func() bool {
			return p.inside("eats", "test -e ~/all && test $(ls -d /proc/[0-9]* | wc -l) -lt 190").code == 0
		})
		p.eventually("the others can be killed", func() bool {
			p.inside("eats", "kill -9 -1")
			return p.inside("eats", "true").code == 0
		})
		require.Equal(t, "RUNNING", p.sessions()["eats"].Status)
		p.must("session", "rm", "--yes", "eats")
		p.ended("eats")
	})
	p.clean()
}

// forbidden asks the kernel for what a session must not get, and prints what it got, by number: a program needs no library for that.
const forbidden = `
import ctypes, errno, json, mmap, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(nr, *args):
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_long(a) for a in args])
    return "ok" if r >= 0 else errno.errorcode[ctypes.get_errno()]
x86 = platform.machine() == "x86_64"
n = lambda a, b: a if x86 else b
out = {
    "io_uring_setup": call(425, 8, 0), "keyctl": call(n(250, 219), 0, -3, 0), "add_key": call(n(248, 217), 0, 0, 0, 0, 0),
    "request_key": call(n(249, 218), 0, 0, 0, 0), "bpf": call(n(321, 280), 0, 0, 0),
    "perf_event_open": call(n(298, 241), 0, 0, -1, -1, 0),
    "userfaultfd": call(n(323, 282), 0), "mount": call(n(165, 40), 0, 0, 0, 0, 0), "fsopen": call(430, 0, 0),
    "open_tree": call(428, -1, 0, 0),
    "unshare": call(n(272, 97), 0x10000000), "setns": call(n(308, 268), -1, 0),
    "clone of a user namespace": call(n(56, 220), 0x10000011, 0, 0, 0, 0),
    "clone3": call(435, 0, 0), "AF_VSOCK": call(n(41, 198), 40, 1, 0), "AF_ALG": call(n(41, 198), 38, 5, 0),
    "AF_PACKET": call(n(41, 198), 17, 3, 0),
    "AF_NETLINK, netfilter": call(n(41, 198), 16, 3, 12), "open_by_handle_at": call(n(304, 265), -1, 0, 0),
    "kexec_load": call(n(246, 104), 0, 0, 0, 0),
    "chroot": call(n(161, 51), 0), "quotactl": call(n(179, 60), 0, 0, 0, 0), "pidfd_getfd": call(438, -1, 0, 0),
    "file_setattr": call(469, -1, 0, 0, 0, 0), "a call of a later kernel": call(999),
    "AF_INET": call(n(41, 198), 2, 1, 0), "AF_UNIX": call(n(41, 198), 1, 1, 0), "AF_NETLINK, routes": call(n(41, 198), 16, 3, 0),
}
if x86:  # socketcall(SYS_SOCKET, {AF_VSOCK, SOCK_STREAM, 0}) of 32-bit programs
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page[512:524] = (40).to_bytes(4, "little") + (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    page[0:19] = b"\x53\xb8\x66\x00\x00\x00\xbb\x01\x00\x00\x00\xb9" + ((at + 512) & 0xffffffff).to_bytes(4, "little") + b"\xcd\x80\x5b"
    page[19:20] = b"\xc3"
    r = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
    out["AF_VSOCK of 32-bit programs"] = "ok" if r >= 0 else errno.errorcode[-r]
print(json.dumps(out))
`

// TestAttackSystemCalls is code in a container that talks to the kernel's less tried parts.
func TestAttackSystemCalls(t *testing.T) {
	t.Parallel()
	p := up(t)
	r := p.run("", "run", "python", "-c", forbidden)
	require.Zero(t, r.code, r.stderr)
	var got map[string]string
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &got), r.stdout)
	for name, answer := range got {
		switch name {
		case "AF_INET", "AF_UNIX", "AF_NETLINK, routes":
			require.Equal(t, "ok", answer, name)
		case "io_uring_setup", "keyctl", "add_key", "request_key", "clone3", "a call of a later kernel", "AF_VSOCK of 32-bit programs":
			require.Equal(t, "ENOSYS", answer, "%s: programs fall back to others", name)
		case "file_setattr":
			require.Contains(t, []string{"EPERM", "ENOSYS"}, answer, name)
		default:
			require.Equal(t, "EPERM", answer, name)
		}
	}
	// What programs do need goes on working.
	r = p.run("", "run", "python", "-c", `
import multiprocessing, os, socket, subprocess, tempfile, threading
t = threading.Thread(target=lambda: None); t.start(); t.join()
with multiprocessing.Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
c = socket.create_connection(s.getsockname()); c.close()
assert subprocess.run(["sh", "-c", "ls / | cat"], capture_output=True).returncode == 0
m = os.memfd_create("x"); os.write(m, b"y")
with open("/proc/self/status") as f: status = dict(l.split(":\t") for l in f.read().splitlines() if ":\t" in l)
print(status["CapEff"], status["CapPrm"], status["NoNewPrivs"], status["Seccomp"])
`)
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, "0000000000000000 0000000000000000 1 2\n", r.stdout)
	p.clean()
}

// TestAttackHost is code in a container that takes what all sessions of a host share, and that looks for the others.
func TestAttackHost(t *testing.T) {
	t.Parallel()
	p := up(t)
	for _, name := range []string{"greedy", "other"} {
		p.must("session", "create", "python", "--name", name)
	}
	t.Run("it takes all terminals", func(t *testing.T) {
		r := p.inside("greedy", `nohup python3 -c '
import os, time
n = 0
try:
    while True: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY); n += 1
except OSError: print(n, flush=True)
time.sleep(600)' > /tmp/taken 2> /dev/null & while ! grep -q . /tmp/taken; do sleep 0.1; done; cat /tmp/taken`)
		require.Equal(t, "128\n", r.stdout, r.stderr)
		r = p.inside("other", "python3 -c 'import os; os.openpty(); print(os.ttyname(os.openpty()[1]))'")
		require.Zero(t, r.code, "another session has terminals: %s", r.stderr)
	})
	t.Run("it looks for the disks of others", func(t *testing.T) {
		r := p.inside("greedy", "cat /sys/block/*/loop/backing_file /sys/devices/virtual/block/*/loop/backing_file; ls /sys/fs/ext4; "+
			"df . > /dev/null || echo df")
		require.Empty(t, r.stdout)
	})
	for _, name := range []string{"greedy", "other"} {
		p.must("session", "rm", "--yes", name)
	}
	p.clean()
}
