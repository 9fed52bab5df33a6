package e2e_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/embedded"
)

// sql changes what no command changes yet.
func (p *platform) sql(query string, args ...any) {
	p.t.Helper()
	sockets := embedded.SocketDir(p.dir, "pg", ".s.PGSQL.5432")
	db, err := pgx.Connect(p.t.Context(), (&url.URL{Scheme: "postgres", User: url.User("berth"), Path: "/berth",
		RawQuery: url.Values{"host": {sockets}}.Encode()}).String())
	require.NoError(p.t, err)
	defer func() { _ = db.Close(p.t.Context()) }()
	_, err = db.Exec(p.t.Context(), query, args...)
	require.NoError(p.t, err)
}

// onDisk makes a folder and returns its directory on disk.
func (p *platform) onDisk(name string) string {
	p.t.Helper()
	p.eventually("the storage proxy is known", func() bool { return strings.Contains(p.run("", "folder", "hosts").stdout, "local:volume1") })
	id := strings.TrimSpace(p.must("folder", "create", name))
	id = strings.ReplaceAll(id, "-", "")
	require.Len(p.t, id, 32)
	found, err := filepath.Glob(filepath.Join(p.dir, "volumes", "volume1", "*", id[:2], id[2:4], id[4:]))
	require.NoError(p.t, err)
	require.Len(p.t, found, 1)
	return found[0]
}

// put makes a file as the volume's owner would.
func put(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Lchown(path, 9001, 9001))
		require.NoError(t, os.Lchown(filepath.Dir(path), 9001, 9001))
	}
}

func ownerOf(t *testing.T, path string) int {
	t.Helper()
	st, err := os.Lstat(path)
	require.NoError(t, err)
	return int(st.Sys().(*syscall.Stat_t).Uid)
}

func (p *platform) noMounts() {
	p.t.Helper()
	p.eventually("mounts of folders are left", func() bool {
		points, err := mount.Attached(filepath.Join(p.dir, "agent", "mounts"))
		left, _ := filepath.Glob(filepath.Join(p.dir, "agent", "mounts", "*"))
		return err == nil && len(points) == 0 && len(left) == 0
	})
}

// TestFoldersInSessions is the life of files that a session leaves in a folder: who owns them, who may write, what
// stays, and what a crash of everything does to them.
func TestFoldersInSessions(t *testing.T) {
	t.Parallel()
	p := up(t)
	data := p.onDisk("data")
	put(t, filepath.Join(data, "sub", "deep.txt"), "deep\n")

	t.Run("read and write", func(t *testing.T) {
		require.Equal(t, "deep\n\n/home/work/data\n", p.must("run", "python", "-v", "data", "-c",
			`import os; print(open("/home/work/data/sub/deep.txt").read()); open("/home/work/data/made", "w").write("by a session"); `+
				`print(os.environ["BACKENDAI_PERSISTENT_PATHS"])`))
		require.Equal(t, "by a session", p.must("folder", "cat", "data:made"))
	})
	t.Run("read-only and a directory of it", func(t *testing.T) {
		r := p.run("", "run", "python", "-v", "data/sub:/mnt/sub:ro", "-c",
			"import os; print(os.listdir('/mnt/sub'))\ntry: open('/mnt/sub/no', 'w')\nexcept OSError as e: print(e.strerror)")
		require.Zero(t, r.code, r.stderr)
		require.Equal(t, "['deep.txt']\nRead-only file system\n", r.stdout)
	})
	t.Run("a dry run shows them", func(t *testing.T) {
		require.Contains(t, p.must("run", "python", "--dry-run", "-v", "data/sub:look:ro"), "data/sub:/home/work/look:ro")
	})
	t.Run("an automatic folder", func(t *testing.T) {
		p.onDisk(".local")
		require.Contains(t, p.must("run", "python", "-c", `open("/home/work/.local/tool", "w").write("kept"); print("ok")`), "ok")
		require.Equal(t, "kept", p.must("folder", "cat", ".local:tool"))
	})
	t.Run("another user number", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root may map ids")
		}
		p.sql(`UPDATE users SET container_uid = 1234, container_main_gid = 1235 WHERE email = 'admin@berth.local'`)
		defer p.sql(`UPDATE users SET container_uid = NULL, container_main_gid = NULL WHERE email = 'admin@berth.local'`)
		require.Equal(t, "1234 1234 1235\n", p.must("run", "python", "-v", "data", "-c",
			`import os; open("/home/work/data/other", "w").write("x"); s = os.stat("/home/work/data/made"); print(os.getuid(), s.st_uid, s.st_gid)`))
		require.Equal(t, 9001, ownerOf(t, filepath.Join(data, "other")), "owned by the volume's owner, whoever wrote it")
	})
	t.Run("refusals", func(t *testing.T) {
		for flag, want := range map[string]string{
			"nothing": "nothing", "data:/etc": "/etc", "data/../x": "..", "data/none": "none", "data:/proc/self": "/proc",
		} {
			r := p.run("", "run", "python", "-v", flag, "-c", "1")
			require.NotZero(t, r.code, flag)
			require.Contains(t, r.stdout+r.stderr, want, flag)
		}
		require.NoError(t, os.Symlink("/etc", filepath.Join(data, "out")))
		r := p.run("", "run", "python", "-v", "data/out", "-c", "import os; print(os.listdir('/home/work/data'))")
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "leads through a link out of the folder")
	})
	t.Run("in use", func(t *testing.T) {
		p.must("session", "create", "python", "--name", "user-of-data", "-v", "data")
		r := p.run("", "folder", "rm", "data")
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "user-of-data")
		require.Contains(t, p.must("session", "info", "user-of-data", "--json"), `"name": "data"`)

		// Everything dies; the session and its folder do not notice.
		p.kill()
		p.start()
		p.eventually("the session runs again", func() bool { return p.sessions()["user-of-data"].Status == "RUNNING" })
		p.eventually("its agent is reachable", func() bool {
			return p.run("", "session", "exec", "user-of-data", "--", "sh", "-c", "echo after >> data/made").code == 0
		})
		require.Contains(t, p.must("folder", "cat", "data:made"), "after")
		p.must("session", "restart", "user-of-data")
		p.eventually("it has the folder after a restart", func() bool {
			return p.run("", "session", "exec", "user-of-data", "--", "test", "-f", "data/made").code == 0
		})
		p.must("session", "destroy", "user-of-data")
		p.eventually("the session has ended", func() bool { return p.sessions()["user-of-data"].Status == "TERMINATED" })
	})
	t.Run("killed while sessions are made", func(t *testing.T) {
		for i := range 4 {
			name := fmt.Sprintf("made-%d", i)
			p.must("session", "create", "python", "--name", name, "-v", "data", "--detach")
			p.eventually("it is on its way", func() bool {
				s := p.sessions()[name].Status
				return s != "" && s != "PENDING" && (i%2 == 0 || s != "SCHEDULED")
			})
			p.kill()
			p.start()
		}
		for i := range 4 {
			name := fmt.Sprintf("made-%d", i)
			p.eventually(name+" runs", func() bool { return p.sessions()[name].Status == "RUNNING" })
			p.must("session", "destroy", name)
			p.eventually(name+" has ended", func() bool { return p.sessions()[name].Status == "TERMINATED" })
		}
	})
	p.noMounts()
	require.FileExists(t, filepath.Join(data, "sub", "deep.txt"))
	p.clean()
}

// TestHungVolume: a volume whose file system stops to answer on an agent holds up the sessions that need it, with that
// reason, and nobody else.
func TestHungVolume(t *testing.T) {
	t.Parallel()
	needEngine(t)
	if os.Geteuid() != 0 {
		t.Skip("only root may mount a file system that hangs")
	}
	dir, err := os.MkdirTemp("", "berth-e2e-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	seen := dir + "-seen" // the volume as the agent knows it
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "volumes", "volume1"), 0o755))
	require.NoError(t, os.Mkdir(seen, 0o755))
	require.NoError(t, unix.Mount(filepath.Join(dir, "volumes", "volume1"), seen, "", unix.MS_BIND, ""))
	p := &platform{t: t, dir: dir}
	t.Cleanup(func() {
		if t.Failed() {
			p.dumpLog()
		}
		p.try("down", "--sessions")
		for unix.Unmount(seen, unix.MNT_DETACH) == nil {
		}
		_ = os.Remove(seen)
		_ = os.RemoveAll(dir)
	})
	config := filepath.Join(dir, "berth.toml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "[agent.volumes]\n\"local:volume1\" = %q\n", seen), 0o600))
	p.must("up", "--detach", "--ports", "auto", "--config", config)
	put(t, filepath.Join(p.onDisk("data"), "file"), "text")
	read := []string{"run", "python", "-v", "data", "-c", `print(open("/home/work/data/file").read())`}
	require.Equal(t, "text\n", p.must(read...))

	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("a file system that hangs cannot be made here: %v", err)
	}
	if err := unix.Mount("hung", seen, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		_ = unix.Close(fd)
		t.Skipf("a file system that hangs cannot be mounted here: %v", err)
	}
	answered := false
	answer := func() {
		if !answered {
			answered = true
			_ = unix.Close(fd)
			_ = unix.Unmount(seen, unix.MNT_DETACH)
		}
	}
	defer answer()
	p.must("session", "create", "python", "--name", "waits", "-v", "data", "--detach")
	p.eventually("it says what it waits for", func() bool {
		return strings.Contains(p.sessions()["waits"].Info, "the file system of volume local:volume1 does not answer")
	})
	t.Log("it is ", p.sessions()["waits"].Status)
	require.Contains(t, p.must("session", "why", "waits"), "local:volume1 does not answer")
	began := time.Now()
	require.Equal(t, "42\n", p.must("run", "python", "-c", "print(6*7)"), "others are not touched by it")
	t.Log("another one took ", time.Since(began))
	p.must("session", "create", "python", "--name", "queued", "-v", "data", "--detach")
	p.eventually("the scheduler keeps it", func() bool {
		r := p.run("", "session", "why", "queued")
		return strings.Contains(r.stdout, "local:volume1 does not answer")
	})
	require.Equal(t, "PENDING", p.sessions()["queued"].Status)
	answer()
	for _, name := range []string{"waits", "queued"} {
		p.eventually(name+" runs", func() bool { return p.sessions()[name].Status == "RUNNING" })
		p.must("session", "destroy", name)
	}
	require.Equal(t, "text\n", p.must(read...))
	p.noMounts()
	p.clean()
}
