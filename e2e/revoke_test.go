package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// holders are programs that keep a folder in every way that a container has, each in a session of its own. They write as long as they can
// and say "refused" into their home when they cannot.
var holders = map[string]struct {
	script string
	ends   bool // the session, because nothing proves that the folder is gone
}{
	"writes":          {script: `while echo x >>/home/work/way/data/written; do sleep 0.01; done; echo refused >/home/work/refused`},
	"keeps a file":    {script: `exec 3>>/home/work/way/data/kept; while :; do echo x >&3; sleep 0.01; done`},
	"works in it":     {script: `cd /home/work/way/data; while :; do echo x >>worked; sleep 0.01; done`},
	"renames the way": {script: `cd /home/work; while :; do mv way other; mv other way; done`},
	"keeps a directory": {script: `exec python3 -c '
import os, time
d = os.open("/home/work/way/data", os.O_RDONLY)
while True:
    os.close(os.open("through", os.O_WRONLY | os.O_CREAT, dir_fd=d)); time.sleep(0.01)'`},
	"maps a file": {script: `exec python3 -c '
import mmap, os, time
f = os.open("/home/work/way/data/mapped", os.O_RDWR | os.O_CREAT); os.ftruncate(f, 4096)
m = mmap.mmap(f, 4096); os.close(f)
while True:
    m[0] = (m[0] + 1) % 256; time.sleep(0.01)'`},
	"sends itself a descriptor": {ends: true, script: `exec python3 -c '
import os, socket, time
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
d = os.open("/home/work/way/data", os.O_RDONLY)
socket.send_fds(a, [b"x"], [d]); os.close(d)
open("/home/work/sent", "w").close()
time.sleep(600)'`},
}

// TestARightThatEnds is a user who has a share of a folder in running sessions, and loses it. Whatever the programs do, the folder is gone
// from the containers, or the container is gone. The owner's session keeps it, and no file is lost.
func TestARightThatEnds(t *testing.T) {
	t.Parallel()
	needEngine(t)
	if os.Geteuid() != 0 {
		t.Skip("taking mounts out of containers needs root")
	}
	p := up(t)
	data := p.onDisk("data")
	put(t, filepath.Join(data, "kept-by-owner"), "mine\n")
	owner, env := newConsole(t, p.env()), p.member("mallory")
	mallory := newConsole(t, env)
	as := func(args ...string) string {
		t.Helper()
		r := p.runAs(env, args...)
		require.Zero(t, r.code, "%v: %s%s", args, r.stdout, r.stderr)
		return r.stdout
	}
	owner.send(201, "POST", "/folders/data/invite", `{"permission":"rw","emails":["mallory@berth.local"]}`)
	var open struct{ Invitations []struct{ ID string } }
	mallory.into(&open, 200, "GET", "/folders/invitations/list", "")
	require.Len(t, open.Invitations, 1)
	mallory.send(200, "POST", "/folders/invitations/accept", `{"inv_id":"`+open.Invitations[0].ID+`"}`)

	p.must("session", "create", "python", "--name", "owners", "-r", "cpu=1", "-r", "mem=256m", "-v", "data")
	background := func(session, script string) {
		t.Helper()
		as("session", "exec", session, "--", "sh", "-c",
			"setsid sh -c '"+strings.ReplaceAll(script, "'", `'\''`)+"' >/dev/null 2>&1 & echo started")
	}
	name := func(kind string) string { return strings.ReplaceAll(kind, " ", "-") }
	for kind, h := range holders {
		as("session", "create", "python", "--name", name(kind), "-r", "cpu=1", "-r", "mem=256m", "-v", "data:/home/work/way/data")
		background(name(kind), h.script)
	}
	for _, made := range []string{"written", "kept", "worked", "through", "mapped"} {
		p.eventually(made+" is written", func() bool { _, err := os.Stat(filepath.Join(data, made)); return err == nil })
	}
	p.eventually("the descriptor is under way", func() bool {
		return p.runAs(env, "session", "exec", "sends-itself-a-descriptor", "--", "test", "-e", "/home/work/sent").code == 0
	})

	owner.send(200, "DELETE", "/folders/data/unshare", `{"emails":["mallory@berth.local"]}`)
	for kind, h := range holders {
		if h.ends {
			p.eventually(kind+": the session ends", func() bool {
				return strings.Contains(p.runAs(env, "session", "info", name(kind)).stdout, "right-ended")
			})
			continue
		}
		p.eventually(kind+": the folder is gone from the container", func() bool {
			r := p.runAs(env, "session", "exec", name(kind), "--", "sh", "-c",
				"grep -c "+filepath.Base(data)+" /proc/self/mountinfo; echo asked")
			if r.code != 0 {
				require.NotContains(t, p.runAs(env, "session", "info", name(kind)).stdout, "right-ended", "%s: the session ended instead", kind)
			}
			return strings.HasPrefix(r.stdout, "0\n")
		})
		p.eventually(kind+": its owner is told", func() bool {
			return strings.Contains(as("session", "events", name(kind)), "session_folder_withheld")
		})
	}
	p.eventually("the program is refused", func() bool {
		return p.runAs(env, "session", "exec", "writes", "--", "test", "-e", "/home/work/way/data/written").code != 0
	})
	// Nobody writes any more: what is on the disk stays as it is while the owner writes.
	state := func() (out []string) {
		for _, made := range []string{"written", "kept", "worked", "mapped"} {
			text, err := os.ReadFile(filepath.Join(data, made))
			require.NoError(t, err)
			out = append(out, string(text))
		}
		return out
	}
	before := state()
	for range 3 {
		require.Zero(t, p.inside("owners", "cat data/kept-by-owner && echo more >>data/owners").code, "the owner's session keeps the folder")
	}
	require.Equal(t, before, state())
	require.FileExists(t, filepath.Join(data, "kept-by-owner"))
	r := p.runAs(env, "session", "create", "python", "--name", "again", "-v", "data")
	require.NotZero(t, r.code)

	// A permission that becomes less makes the folder read-only where it is mounted.
	owner.send(201, "POST", "/folders/data/invite", `{"permission":"rw","emails":["mallory@berth.local"]}`)
	mallory.into(&open, 200, "GET", "/folders/invitations/list", "")
	mallory.send(200, "POST", "/folders/invitations/accept", `{"inv_id":"`+open.Invitations[0].ID+`"}`)
	as("session", "create", "python", "--name", "lowered", "-r", "cpu=1", "-r", "mem=256m", "-v", "data")
	background("lowered", `exec 3>>data/lowered; while :; do echo x >&3; sleep 0.01; done`)
	p.eventually("it is written", func() bool { _, err := os.Stat(filepath.Join(data, "lowered")); return err == nil })
	p.sql(`UPDATE folder_permissions SET permission = 'ro'`)
	p.eventually("it is read-only", func() bool {
		return p.runAs(env, "session", "exec", "lowered", "--", "sh", "-c", "echo x >data/new").code != 0
	})
	require.Equal(t, "mine\n", as("session", "exec", "lowered", "--", "cat", "data/kept-by-owner"))
}

// TestAnSSHKeyThatChanges: a new key reaches running sessions, and the old one is out at once.
func TestAnSSHKeyThatChanges(t *testing.T) {
	t.Parallel()
	needEngine(t)
	needTools(t, "ssh", "ssh-keygen")
	p := up(t)
	owner := newConsole(t, p.env())
	dir := t.TempDir()
	key := func(name string) string {
		var pair struct {
			Private string `json:"ssh_private_key"`
		}
		owner.into(&pair, 200, "PATCH", "/auth/ssh-keypair", "")
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(pair.Private), 0o600))
		return file
	}
	first := key("first")
	p.session("python", "crate")
	var lines []string
	for _, line := range strings.Split(p.must("ssh-config"), "\n") {
		if !strings.Contains(line, "IdentityFile") { // the session's own key stays
			lines = append(lines, line)
		}
	}
	config := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(config, []byte(strings.Join(lines, "\n")), 0o600))
	ssh := func(key string, args ...string) result {
		t.Helper()
		return p.tool(dir, "", "ssh", append([]string{"-F", config, "-i", key, "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
			"-o", "BatchMode=yes", "crate.berth"}, args...)...)
	}
	r := ssh(first, "echo", "hi")
	require.Equal(t, "hi\n", r.stdout, r.stderr)
	ended := make(chan result, 1)
	go func() { ended <- ssh(first, "touch open; exec sleep 600") }()
	p.eventually("the connection is open", func() bool { return p.inside("crate", "test -e open").code == 0 })

	second := key("second")
	p.eventually("the new key is let in", func() bool { return ssh(second, "echo", "hi").stdout == "hi\n" })
	require.NotZero(t, ssh(first, "echo", "hi").code, "the old key is refused")
	require.NotZero(t, (<-ended).code, "what was open with it has ended")
	public, err := exec.Command("ssh-keygen", "-y", "-f", first).Output()
	require.NoError(t, err)
	require.NotContains(t, p.inside("crate", "cat .ssh/authorized_keys").stdout, strings.Fields(string(public))[1])
}
