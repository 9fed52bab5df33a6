package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/loopdisk"
	"berth.dev/berth/internal/agent/scratch"
)

// The attacker of these stories is code in a container that writes as much as it can. Nothing here fills a disk of this machine: homes
// are small, and where a disk becomes full it is a small file system in a file.

// needDisks skips a story where kernels cannot have disks of their own.
func needDisks(t *testing.T) {
	t.Helper()
	needEngine(t)
	if os.Geteuid() != 0 {
		t.Skip("only root may mount file systems")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("this kernel has no loop devices")
	}
}

// smallDisk is the mount point of an ext4 file system in a file, which goes when the test ends.
func smallDisk(t *testing.T, size int64) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bd-") // short: unix sockets live below it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	disk := filepath.Join(dir, "d")
	require.NoError(t, loopdisk.Make(t.Context(), disk, size))
	t.Cleanup(func() {
		require.NoError(t, loopdisk.Remove(disk))
		require.NoError(t, os.RemoveAll(dir))
	})
	require.NoError(t, os.Chmod(loopdisk.Mount(disk), 0o755))
	return loopdisk.Mount(disk)
}

// upWith starts a cluster in a directory with more of a configuration; "" means an empty directory of its own.
func upWith(t *testing.T, dir string, environ ...string) *platform {
	t.Helper()
	if dir == "" {
		made, err := os.MkdirTemp("", "berth-e2e-")
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(made) })
		dir = made
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	p := &platform{t: t, dir: dir, more: environ}
	t.Cleanup(func() {
		if t.Failed() {
			p.dumpLog()
		}
		p.try("down", "--sessions")
		// What a failed story left mounted would keep the directory.
		_ = scratch.DetachAll(filepath.Join(dir, "agent", "kernels"))
	})
	p.start()
	return p
}

// openImage is the image of the stories with a directory that everybody may write to, as careless images have.
func openImage(t *testing.T) string {
	t.Helper()
	reference := "berth/open-" + strings.ToLower(t.Name()) + ":latest"
	id, err := docker("create", "--entrypoint", "/bin/sh", "berth/python:3.11", "-c", "mkdir -m 1777 /open")
	require.NoError(t, err)
	id = strings.TrimSpace(id)
	_, err = docker("start", "-a", id)
	require.NoError(t, err)
	_, err = docker("commit", "--change", "ENTRYPOINT []", id, reference)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = docker("rmi", "-f", reference) })
	_, err = docker("rm", id)
	require.NoError(t, err)
	return reference
}

// info is `berth session info` as JSON text.
func (p *platform) info(name string) string {
	p.t.Helper()
	return p.must("session", "info", name, "--json")
}

// dd writes in a session and returns what dd said.
func (p *platform) dd(session, file, megabytes string) result {
	p.t.Helper()
	return p.run("", "session", "exec", session, "--", "dd", "if=/dev/zero", "of="+file, "bs=1M", "count="+megabytes, "conv=fsync")
}

// TestAttackDiskOfOneSession: whatever a session writes where it may write ends at a bound, with an error that programs know, and
// nobody else notices.
func TestAttackDiskOfOneSession(t *testing.T) {
	t.Parallel()
	needDisks(t)
	image := openImage(t)
	p := upWith(t, "", "BERTH_AGENT__DISK__SCRATCH=64m", "BERTH_AGENT__DISK__LAYER=32m", "BERTH_AGENT__DISK__AHEAD=1")
	p.must("session", "create", "python", "--name", "quiet")
	p.must("session", "create", "python", "--name", "greedy")
	full := "No space left on device"

	for _, file := range []string{"/home/work/big", "/tmp/big", "/var/tmp/big", "/run/lock/big", "/.berth/user/big"} {
		r := p.dd("greedy", file, "200")
		require.NotZero(t, r.code, file)
		require.Contains(t, r.stdout+r.stderr, full, file)
		require.Zero(t, p.run("", "session", "exec", "greedy", "--", "rm", file).code)
	}
	// Together they have one bound, also for files without a name and for many small ones.
	r := p.run("", "session", "exec", "greedy", "--", "sh", "-c",
		"exec 3>/tmp/x; rm /tmp/x; dd if=/dev/zero bs=1M count=40 >&3; dd if=/dev/zero of=$HOME/y bs=1M count=40")
	require.Contains(t, r.stdout+r.stderr, full)

	require.NotZero(t, p.dd("greedy", "/home/work/big", "200").code)
	p.eventually("its owner is told why", func() bool { return strings.Contains(p.info("greedy"), "own disk of") })
	require.Contains(t, p.info("greedy"), "is full")

	// Nothing is left that the user may write to in the layer of the standard image. (find shows mount points, but not what is below.)
	r = p.run("", "session", "exec", "greedy", "--", "sh", "-c",
		`find / -xdev -type d -writable ! -path '/proc*' ! -path /dev ! -path /dev/shm ! -path /dev/mqueue 2>/dev/null | sort`)
	require.Equal(t, "/home/work\n/run/lock\n/tmp\n/var/tmp\n", r.stdout, "%s", r.stderr)

	// Others go on, and a restart of a session whose disk is full keeps its files.
	require.Zero(t, p.run("", "session", "exec", "quiet", "--", "sh", "-c", "echo fine > here && cat here").code)
	p.must("session", "restart", "greedy")
	p.eventually("it has its files after a restart", func() bool {
		return p.run("", "session", "exec", "greedy", "--", "test", "-f", "big").code == 0
	})
	require.NotZero(t, p.run("", "session", "exec", "greedy", "--", "test", "-e", "/tmp/big").code, "a restart begins with an empty /tmp")
	p.must("session", "destroy", "greedy")

	// A careless image lets the user write into the layer, which is watched.
	p.eventually("the image is known", func() bool {
		return p.run("", "session", "create", image, "--name", "careless").code == 0
	})
	r = p.dd("careless", "/open/big", "100")
	require.NotContains(t, r.stdout+r.stderr, full, "that is no bound of a file system")
	// The exit code is that of the program or of the session's end, whichever came first.
	p.eventually("it is ended", func() bool { return p.sessions()["careless"].Status == "TERMINATED" })
	require.Contains(t, p.info("careless"), "disk-full")
	require.Regexp(t, `wrote \d+ MiB outside of its home, /tmp and /var/tmp, 32 MiB are allowed`, p.must("session", "events", "careless"))
	require.Equal(t, "RUNNING", p.sessions()["quiet"].Status)
	p.must("session", "destroy", "quiet")
	p.eventually("all have ended", func() bool { return p.sessions()["quiet"].Status == "TERMINATED" })
	p.clean()
	p.must("down", "--sessions")
	require.Empty(t, mountedBelow(t, p.dir), "disks of kernels are left")
}

func mountedBelow(t *testing.T, dir string) (out []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			out = append(out, f[4])
		}
	}
	return out
}

// TestAttackDiskOfTheCluster: sessions that may have more together than the disk has fill the file system on which the database of the
// cluster and its agent lie. The largest grower is ended with words, the database never stops, and sessions can be ended and made.
func TestAttackDiskOfTheCluster(t *testing.T) {
	t.Parallel()
	needDisks(t)
	point := smallDisk(t, 1<<30)
	p := upWith(t, filepath.Join(point, "c"), "BERTH_AGENT__DISK__SCRATCH=400m", "BERTH_AGENT__DISK__AHEAD=1", "BERTH_AGENT__MIN_FREE=1m",
		"BERTH_AGENT__DISK__LOW_PERCENT=0", "BERTH_AGENT__DISK__LOW_BYTES=400m", "BERTH_AGENT__DISK__FULL_PERCENT=0",
		"BERTH_AGENT__DISK__FULL_BYTES=300m", "BERTH_AGENT__DISK__INTERVAL=100ms", "BERTH_STORAGE__RESERVE=1g")
	database := postmaster(t, p)
	reserve := filepath.Join(p.dir, "reserve")
	require.FileExists(t, reserve)
	for _, name := range []string{"quiet", "greedy-1", "greedy-2", "greedy-3"} {
		p.must("session", "create", "python", "--name", name)
	}
	p.must("folder", "create", "data")
	// They write in the background, as fast as they can, again and again.
	for _, name := range []string{"greedy-1", "greedy-2", "greedy-3"} {
		p.run("", "session", "exec", name, "--", "sh", "-c",
			"nohup sh -c 'while :; do dd if=/dev/zero of=big bs=4M conv=fsync; done' >/dev/null 2>&1 &")
	}
	ended := func() (out []sessionRow) {
		for name, s := range p.sessions() {
			if strings.HasPrefix(name, "greedy") && s.Status == "TERMINATED" {
				out = append(out, s)
			}
		}
		return out
	}
	p.eventually("one of them is ended", func() bool { return len(ended()) > 0 })
	words := p.must("session", "events", ended()[0].ID)
	require.Contains(t, words, "ended by agent ")
	require.Contains(t, words, "the disk of the agent was full")
	require.Contains(t, words, "keep large files in a folder")

	// Those that are left are still writing. Ending one works, and so does everything else.
	for name, s := range p.sessions() {
		if strings.HasPrefix(name, "greedy") && s.Status == "RUNNING" {
			r := p.run("", "session", "destroy", name)
			if r.code != 0 { // the agent ends it meanwhile, or has ended it
				require.Contains(t, []string{"TERMINATING", "TERMINATED"}, p.sessions()[name].Status, r.stderr)
			}
		}
	}
	p.eventually("all of them have ended", func() bool { return len(ended()) == 3 })
	require.Equal(t, "RUNNING", p.sessions()["quiet"].Status)
	require.Zero(t, p.run("", "session", "exec", "quiet", "--", "sh", "-c", "echo fine > here").code)
	require.Equal(t, database, postmaster(t, p), "the database stopped")
	p.eventually("there is room again", func() bool {
		return p.run("", "session", "create", "python", "--name", "after").code == 0
	})
	p.eventually("the reserve is there again", func() bool { _, err := os.Stat(reserve); return err == nil })

	// Somebody who is no session fills the disk to the last byte: nobody is ended for it at once, and ending still works.
	filler := filepath.Join(point, "filler")
	fillWith(t, filler)
	t.Cleanup(func() { _ = os.Remove(filler) }) // before the cluster is ended
	some := filepath.Join(t.TempDir(), "some")
	require.NoError(t, os.WriteFile(some, []byte("some"), 0o600))
	p.eventually("an upload is refused with words", func() bool {
		r := p.run("", "folder", "cp", some, "data:some")
		require.NotZero(t, r.code)
		return strings.Contains(r.stdout+r.stderr, "kept in reserve")
	})
	p.must("session", "destroy", "after")
	p.eventually("it has ended", func() bool { return p.sessions()["after"].Status == "TERMINATED" })
	p.eventually("its container is gone", func() bool {
		left, err := docker("ps", "-q", "--filter", "label=berth.session="+p.sessions()["after"].ID)
		return err == nil && strings.TrimSpace(left) == ""
	})
	r := p.run("", "doctor", "--json")
	require.Contains(t, r.stdout, "no kernels are started here")
	require.Equal(t, database, postmaster(t, p), "the database stopped")
	require.NoError(t, os.Remove(filler))
	p.eventually("sessions start again", func() bool {
		return p.run("", "session", "create", "python", "--name", "later").code == 0
	})
}

// postmaster is the process of the cluster's database.
func postmaster(t *testing.T, p *platform) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "postgres", "data", "postmaster.pid"))
	require.NoError(t, err)
	pid, _, _ := strings.Cut(string(text), "\n")
	return pid
}

// fillWith makes a file as large as the file system lets a user without privileges.
func fillWith(t *testing.T, path string) {
	t.Helper()
	out, _ := exec.Command("dd", "if=/dev/zero", "of="+path, "bs=1M", "conv=fsync").CombinedOutput()
	require.Contains(t, string(out), "No space left on device")
}
