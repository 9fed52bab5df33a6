package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// greedy takes what the kernel of the host bounds for each user number, and keeps it.
const greedy = `
import ctypes, fcntl, os, time
libc, n = ctypes.CDLL(None, use_errno=True), 0
while libc.inotify_init1(0) >= 0: n += 1
pipes = []
for _ in range(8000):
    try: pipes.append(os.pipe())
    except OSError: break
    if fcntl.fcntl(pipes[-1][0], 1032) < 65536: break
print(n, len(pipes), fcntl.fcntl(pipes[-1][0], 1032), flush=True)
open("/home/work/took", "w").close()
time.sleep(600)
`

// modest needs a little of the same: an inotify instance, and a pipe of the usual size.
const modest = `
import ctypes, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
print("inotify", libc.inotify_init1(0) >= 0, "pipe", fcntl.fcntl(os.pipe()[0], 1032))
`

// TestAttackUserNumbers: sessions of one host share no user number, so that one cannot use up what the host's kernel bounds for each; other
// users of the host do not read folders; and nobody who looks at a folder or an image sees the numbers.
func TestAttackUserNumbers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only an agent that is root gives out user numbers")
	}
	p := up(t)
	mallory := p.member("mallory")
	in := func(env []string, session, script string) result {
		return p.runAs(env, "session", "exec", session, "--", "sh", "-c", script)
	}
	text := func(env []string, session, script string) string {
		t.Helper()
		r := in(env, session, script)
		require.Zero(t, r.code, "%s: %s%s", script, r.stdout, r.stderr)
		return strings.TrimSpace(r.stdout)
	}
	number := func(env []string, session string) int {
		t.Helper()
		n, err := strconv.Atoi(text(env, session, "id -u"))
		require.NoError(t, err)
		return n
	}
	create := func(env []string, args ...string) {
		t.Helper()
		r := p.runAs(env, append([]string{"session", "create"}, args...)...)
		require.Zero(t, r.code, "%s%s", r.stdout, r.stderr)
	}
	const image = "python"
	team := p.onDisk("team")
	create(p.env(), image, "--name", "ada-main", "-r", "mem=512m", "-v", "team")
	create(p.env(), image, "--name", "colleague", "-v", "team:/mnt/team")
	create(mallory, image, "--name", "evil", "-r", "mem=512m")
	ada, colleague, evil := number(p.env(), "ada-main"), number(p.env(), "colleague"), number(mallory, "evil")

	t.Run("every session has a number of its own", func(t *testing.T) {
		require.NotEqual(t, ada, evil)
		require.NotEqual(t, ada, colleague)
		for _, n := range []int{ada, colleague, evil} {
			require.GreaterOrEqual(t, n, 2_000_000)
		}
		require.Equal(t, "work work /home/work work", text(mallory, "evil", `echo $(id -un) $(id -gn) ~ $(stat -c %U ~)`))
		require.Equal(t, "ok", text(mallory, "evil", "touch /tmp/x /var/tmp/x /dev/shm/x ~/x && echo ok"))
	})
	t.Run("limits of the host's kernel are not shared", func(t *testing.T) {
		require.Equal(t, "ok", text(mallory, "evil", "cat > /tmp/greedy.py <<'EOF'\n"+greedy+"EOF\n"+
			"setsid python3 /tmp/greedy.py > ~/log 2>&1 < /dev/null & echo ok"))
		p.eventually("it took what it can", func() bool { return in(mallory, "evil", "test -e ~/took").code == 0 })
		require.Equal(t, "inotify True pipe 65536", text(p.env(), "ada-main", "python3 - <<'EOF'\n"+modest+"EOF"), "%s",
			text(mallory, "evil", "cat ~/log"))
		mine := text(mallory, "evil", "python3 - <<'EOF'\n"+modest+"EOF")
		require.Contains(t, mine, "inotify False", "the attack works on who makes it")
	})
	t.Run("no signals and no looks between sessions", func(t *testing.T) {
		require.Equal(t, "none", text(mallory, "evil", "kill -9 -1 2>/dev/null; grep -l ada-main /proc/[0-9]*/environ 2>/dev/null || echo none"))
		require.Equal(t, "alive", text(p.env(), "ada-main", "echo alive"))
	})
	t.Run("a folder is its users' alone", func(t *testing.T) {
		text(p.env(), "ada-main", "umask 022; mkdir ~/team/dir && echo by-ada > ~/team/dir/file")
		require.Equal(t, "by-ada\nwork", text(p.env(), "colleague", "cd /mnt/team/dir && cat file && stat -c %U file"))
		text(p.env(), "colleague", "cd /mnt/team/dir && echo more >> file && touch new")
		require.Equal(t, "by-ada\nmore", text(p.env(), "ada-main", "rm ~/team/dir/new && cat ~/team/dir/file"))
		require.Equal(t, 9001, ownerOf(t, filepath.Join(team, "dir", "file")))
		fi, err := os.Stat(team)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
		// A user of the host, who knows the path.
		cat := exec.Command("cat", filepath.Join(team, "dir", "file"))
		cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
		out, err := cat.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "Permission denied")
	})
	t.Run("after a crash of everything", func(t *testing.T) {
		p.kill()
		p.start()
		p.eventually("the session can be used", func() bool { return in(p.env(), "ada-main", "true").code == 0 })
		require.Equal(t, ada, number(p.env(), "ada-main"))
		require.Equal(t, "ok", text(p.env(), "ada-main", "echo again >> ~/team/dir/file && touch ~/y && echo ok"))
		create(p.env(), image, "--name", "next", "-v", "team")
		next := number(p.env(), "next")
		require.NotContains(t, []int{ada, colleague, evil}, next)
		require.Equal(t, "ok", text(p.env(), "next", "echo next >> ~/team/dir/file && rm -r ~/team/dir && echo ok"))
		p.must("session", "restart", "ada-main")
		p.eventually("it can be used again", func() bool { return in(p.env(), "ada-main", "true").code == 0 })
		require.Equal(t, ada, number(p.env(), "ada-main"), "its home is of that number")
		require.Equal(t, "work", text(p.env(), "ada-main", "stat -c %U ~/y"))
	})
	t.Run("an image of a session", func(t *testing.T) {
		open := "berth-test/open-" + uuid.NewString()[:8] + ":1"
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"),
			[]byte("FROM berth/python:3.11\nRUN mkdir -m 1777 /opt/open\n"), 0o644))
		out, err := docker("build", "-q", "--network=none", "-t", open, dir)
		require.NoError(t, err, out)
		t.Cleanup(func() { _, _ = docker("rmi", "-f", open) })
		me := p.imageTenant(p.env())
		p.forgetCommits(me.user)

		clean, err := me.commit("next", "clean")
		require.NoError(t, err)
		create(p.env(), clean, "--name", "of-clean")
		require.GreaterOrEqual(t, number(p.env(), "of-clean"), 2_000_000, "nothing of the session's user is in the image")

		p.eventually("the image is known", func() bool {
			return p.run("", "session", "create", open, "--name", "writer").code == 0
		})
		writer := number(p.env(), "writer")
		require.GreaterOrEqual(t, writer, 2_000_000)
		text(p.env(), "writer", "mkdir /opt/open/lib && echo one > /opt/open/lib/file && chmod 4755 /opt/open/lib/file && ln -s / /opt/open/root")
		kept, err := me.commit("writer", "kept")
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(writer)+" 4755", text(p.env(), "writer", "stat -c '%u %a' /opt/open/lib/file"),
			"the session has its files back")
		require.Equal(t, "ok", text(p.env(), "writer", "echo two >> /opt/open/lib/file && rm /opt/open/root && echo ok"))
		create(p.env(), kept, "--name", "of-kept")
		require.Equal(t, 9001, number(p.env(), "of-kept"))
		require.Equal(t, "one\nthree", text(p.env(), "of-kept", "cd /opt/open/lib && echo three >> file && touch new && cat file"))
		agent, _ := p.node()
		p.eventually("the agent tells who shares a number", func() bool {
			return strings.Contains(p.must("agent", "info", agent), "share the user number 9001")
		})
	})
}

// TestKilledCommitsGiveFilesBack: while an image is made of a session, the session's files in its container belong to the number that
// sessions share. When everything is killed just then, the session has its files back after the next start, and the same number.
func TestKilledCommitsGiveFilesBack(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only an agent that is root gives out user numbers")
	}
	needEngine(t)
	open := "berth-test/open-" + uuid.NewString()[:8] + ":1"
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM berth/python:3.11\nRUN mkdir -m 1777 /opt/open\n"), 0o644))
	out, err := docker("build", "-q", "--network=none", "-t", open, dir)
	require.NoError(t, err, out)
	t.Cleanup(func() { _, _ = docker("rmi", "-f", open) })
	p := up(t)
	me := p.imageTenant(p.env())
	p.forgetCommits(me.user)
	r := p.run("", "session", "create", open, "--name", "writer", "-r", "mem=512m")
	require.Zero(t, r.code, r.stdout+r.stderr)
	in := func(script string) string {
		t.Helper()
		r := p.inside("writer", script)
		require.Zero(t, r.code, "%s: %s%s", script, r.stdout, r.stderr)
		return strings.TrimSpace(r.stdout)
	}
	number := in("id -u")
	require.NotEqual(t, "9001", number)
	// Enough that making the image takes a while: the bytes do not compress.
	in("mkdir /opt/open/d && echo one > /opt/open/d/file && chmod 4755 /opt/open/d/file && head -c 250000000 /dev/urandom > /opt/open/big")
	containers, err := docker("ps", "-q", "--no-trunc", "--filter", "label=berth.session="+p.sessions()["writer"].ID)
	require.NoError(t, err)
	pid, err := docker("inspect", "--format", "{{.State.Pid}}", strings.TrimSpace(containers))
	require.NoError(t, err)
	file := filepath.Join("/proc", strings.TrimSpace(pid), "root/opt/open/d/file")
	owner := func() string { return strconv.Itoa(ownerOf(t, file)) }
	require.Equal(t, number, owner())
	// cut kills everything while the files are 9001's; it fails where the image was made before this test got to it.
	cut := func() bool {
		t.Helper()
		pid := p.pid()
		task, err := me.c.CommitSession(t.Context(), "writer", "cut")
		require.NoError(t, err)
		made := make(chan struct{})
		go func() {
			defer close(made)
			_, _ = me.c.FollowTask(t.Context(), task, func(api.TaskEvent) {}) // it ends with the manager, too
		}()
		for owner() == number {
			select {
			case <-made:
				return false
			default:
			}
		}
		killed(t, pid)
		return owner() == "9001"
	}
	for tries := 1; !cut(); tries++ {
		require.Less(t, tries, 5, "the files are never the number's that sessions share for long enough")
		if p.run("", "status").code != 0 {
			p.start()
			p.eventually("the session can be used", func() bool { return p.inside("writer", "true").code == 0 })
		}
	}
	p.start()
	p.eventually("the files are the session's again", func() bool { return owner() == number })
	p.eventually("the session can be used", func() bool { return p.inside("writer", "true").code == 0 })
	require.Equal(t, number+" 4755", in("stat -c '%u %a' /opt/open/d/file"))
	in("echo two >> /opt/open/d/file && rm /opt/open/big && touch /opt/open/new")
	require.Equal(t, number, in("stat -c %u /opt/open/d /opt/open/new | sort -u"))
	var again string
	p.eventually("the commit that was cut off is given up", func() bool {
		again, err = me.commit("writer", "whole")
		return err == nil
	})
	r = p.run("", "session", "create", again, "--name", "of-it", "-r", "mem=512m")
	require.Zero(t, r.code, r.stdout+r.stderr)
	require.Equal(t, "one\ntwo", strings.TrimSpace(p.inside("of-it", "cat /opt/open/d/file").stdout))
}
