package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tool runs one of the programs of a user's machine, in the user's environment and directory.
func (p *platform) tool(dir, stdin, name string, args ...string) result {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir, cmd.Stdin = append(p.environ(), p.env()...), dir, strings.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(p.t, err)
	}
	require.NoError(p.t, ctx.Err(), "%s %s did not end: %s", name, strings.Join(args, " "), stderr.String())
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// prefix begins a command line that runs in the user's environment.
func (p *platform) prefix() []string {
	return append([]string{"env", "BERTH_STATE_DIR=" + p.dir}, p.env()...)
}

// needTools skips a story where a program of a user's machine is missing, but never in CI, which installs them.
func needTools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil && os.Getenv("CI") == "" {
			t.Skipf("needs the program %s: run scripts/install-deps.sh test", name)
		}
	}
}

// tree makes a directory with files of several kinds.
func tree(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "deep", "er"), 0o755))
	for name, text := range map[string]string{"a.txt": "forty-two\n", "deep/empty": "", "deep/er/with space.txt": "spaces\n",
		"deep/big": strings.Repeat("0123456789abcdef", 1<<17)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\necho ran\n"), 0o755))
	require.NoError(t, os.Symlink("a.txt", filepath.Join(dir, "link")))
}

// same asserts that two trees hold the same files.
func same(t *testing.T, want, got string) {
	t.Helper()
	out, err := exec.Command("diff", "-r", "--no-dereference", want, got).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestOpenSSH uses the programs that people have, through what berth ssh-config says.
func TestOpenSSH(t *testing.T) {
	t.Parallel()
	needEngine(t)
	needTools(t, "ssh", "scp", "sftp", "rsync")
	p := up(t)
	p.session("python", "crate")
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(config, []byte(p.must("ssh-config")), 0o600))
	require.Contains(t, p.must("ssh-config"), "crate.berth")
	ssh := func(stdin string, args ...string) result {
		t.Helper()
		return p.tool(dir, stdin, "ssh", append([]string{"-F", config, "-o", "BatchMode=yes"}, args...)...)
	}
	ok := func(r result) string {
		t.Helper()
		require.Zero(t, r.code, r.stdout+r.stderr)
		return r.stdout
	}

	t.Run("ssh runs a command", func(t *testing.T) {
		require.Equal(t, "hi\n", ok(ssh("", "crate.berth", "echo", "hi")))
		require.Equal(t, 3, ssh("", "crate.berth", "exit 3").code)
		require.Equal(t, "Ada", ok(ssh("Ada", "crate.berth", "cat")))
		r := ssh("", "crate.berth", "echo out; echo err >&2")
		require.Equal(t, "out\n", r.stdout)
		require.Contains(t, r.stderr, "err\n")
		require.Equal(t, "/home/work\n", ok(ssh("", "crate.berth", "pwd")))
		require.Equal(t, "work\n", ok(ssh("", "crate.berth", "id -un || whoami")))
	})
	t.Run("ssh has a terminal", func(t *testing.T) {
		out := ok(ssh("tty; stty size; exit\n", "-tt", "crate.berth"))
		require.Contains(t, out, "/dev/pts/")
	})
	t.Run("the host key is the session's, and is checked", func(t *testing.T) {
		require.Equal(t, "hi\n", ok(ssh("", "-o", "StrictHostKeyChecking=yes", "crate.berth", "echo", "hi")))
	})
	t.Run("berth ssh", func(t *testing.T) {
		require.Equal(t, "42\n", p.must("ssh", "crate", "python3", "-c", "'print(6*7)'"))
		require.Equal(t, 5, p.run("", "ssh", "crate", "exit 5").code)
	})
	t.Run("scp -r there and back", func(t *testing.T) {
		tree(t, filepath.Join(dir, "up"))
		require.NoError(t, os.Remove(filepath.Join(dir, "up", "link"))) // scp follows links
		ok(p.tool(dir, "", "scp", "-F", config, "-r", "up", "crate.berth:scp"))
		ok(p.tool(dir, "", "scp", "-F", config, "-r", "crate.berth:scp", "down"))
		same(t, filepath.Join(dir, "up"), filepath.Join(dir, "down"))
		ok(p.tool(dir, "", "scp", "-O", "-F", config, "-r", "up", "crate.berth:old-scp"))
		require.Equal(t, "ran\n", ok(ssh("", "crate.berth", "old-scp/run.sh")))
	})
	t.Run("sftp", func(t *testing.T) {
		tree(t, filepath.Join(dir, "ftp"))
		batch := "mkdir s\ncd s\nput -R ftp\nrename ftp/a.txt ftp/b.txt\nls -l ftp\nchmod 600 ftp/b.txt\nget -R ftp ftp-back\nrm ftp/b.txt\n" +
			"df .\npwd\n"
		out := ok(p.tool(dir, batch, "sftp", "-F", config, "-b", "-", "crate.berth"))
		require.Contains(t, out, "b.txt")
		require.Contains(t, out, "/home/work/s")
		back, err := os.ReadFile(filepath.Join(dir, "ftp-back", "b.txt"))
		require.NoError(t, err)
		require.Equal(t, "forty-two\n", string(back))
	})
	t.Run("rsync", func(t *testing.T) {
		from := filepath.Join(dir, "sync")
		tree(t, from)
		shell := "ssh -F " + config
		ok(p.tool(dir, "", "rsync", "-a", "-e", shell, from+"/", "crate.berth:sync/"))
		require.NoError(t, os.WriteFile(filepath.Join(from, "a.txt"), []byte("changed\n"), 0o644))
		require.NoError(t, os.Remove(filepath.Join(from, "deep", "big")))
		ok(p.tool(dir, "", "rsync", "-a", "--delete", "-e", shell, from+"/", "crate.berth:sync/"))
		ok(p.tool(dir, "", "rsync", "-a", "-e", shell, "crate.berth:sync/", filepath.Join(dir, "sync-back")+"/"))
		same(t, from, filepath.Join(dir, "sync-back"))
	})
	t.Run("local port forwarding", func(t *testing.T) {
		local := freePort(t)
		ok(ssh("", "crate.berth", "mkdir -p www && echo forwarded > www/index.html && cd www && (nohup python3 -m http.server --bind 127.0.0.1 "+
			"8123 </dev/null >/dev/null 2>&1 &)"))
		process(t, dir, "forward", append(p.prefix(), "ssh", "-F", config, "-N", "-o", "ExitOnForwardFailure=yes", "-L",
			"127.0.0.1:"+local+":127.0.0.1:8123", "crate.berth")...)
		p.eventually("the page comes through the tunnel", func() bool { return page200(t, "http://127.0.0.1:"+local+"/", "forwarded") })
	})
	t.Run("berth port-forward", func(t *testing.T) {
		local := freePort(t)
		process(t, dir, "port-forward", append(p.prefix(), binary, "port-forward", "crate", "8123:"+local)...)
		p.eventually("the page comes through", func() bool { return page200(t, "http://127.0.0.1:"+local+"/", "forwarded") })
	})
	t.Run("another user's session is closed", func(t *testing.T) {
		other := p.member("eve")
		r := p.tool(dir, "", "env", append(other, binary, "ssh", "crate", "echo", "in")...)
		require.NotZero(t, r.code)
		require.NotContains(t, r.stdout, "in\n")
	})
	t.Run("a session that ended is gone", func(t *testing.T) {
		p.must("session", "rm", "--yes", "crate")
		p.eventually("ssh fails with words", func() bool {
			r := ssh("", "crate.berth", "true")
			return r.code != 0 && strings.Contains(r.stderr, "crate")
		})
	})
	p.clean()
}

// page200 reports whether an address shows a page that holds text.
func page200(t *testing.T, address, text string) bool {
	t.Helper()
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Get(address)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, _ = b.ReadFrom(http.MaxBytesReader(nil, resp.Body, 1<<20))
	return resp.StatusCode == 200 && strings.Contains(b.String(), text)
}

// app runs `backend.ai app` until the test ends and returns the address where the app is then.
func (o *official) app(session, app string) string {
	o.t.Helper()
	port := freePort(o.t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd, _, _ := o.command(ctx, "", "app", session, app, "-b", "127.0.0.1:"+port)
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(o.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	o.t.Cleanup(func() { cancel(); <-ended })
	require.Eventually(o.t, func() bool {
		select {
		case <-ended:
			o.t.Errorf("backend.ai app %s ended: %s", app, out.String())
			return true
		default:
			return strings.Contains(out.String(), "is available at")
		}
	}, patience, 100*time.Millisecond, "backend.ai app %s", app)
	require.False(o.t, o.t.Failed())
	return "http://127.0.0.1:" + port
}

// TestOfficialClientApps reaches apps with the unmodified official command line.
func TestOfficialClientApps(t *testing.T) {
	t.Parallel()
	needEngine(t)
	needTools(t, "ssh", "scp")
	p := up(t)
	o := newOfficial(t, p.env())
	for _, line := range o.env {
		if home, is := strings.CutPrefix(line, "HOME="); is {
			require.NoError(t, os.MkdirAll(filepath.Join(home, ".ssh"), 0o700)) // the client puts the session's key there
		}
	}
	o.must("session", "create", "--name", "official", "-r", "cpu=1", "-r", "mem=512m", "python")
	with := func(t *testing.T) *official {
		c := *o
		c.t = t
		return &c
	}

	t.Run("apps", func(t *testing.T) {
		out := with(t).must("apps", "official", "-l")
		for _, app := range []string{"sshd", "ttyd", "jupyter"} {
			require.Contains(t, out, app)
		}
	})
	t.Run("app ttyd", func(t *testing.T) {
		base := with(t).app("official", "ttyd")
		require.True(t, page200(t, base+"/", "xterm"), "the page of the terminal")
	})
	t.Run("app jupyter", func(t *testing.T) {
		base := with(t).app("official", "jupyter")
		require.Eventually(t, func() bool { return page200(t, base+"/api", "version") }, patience, 200*time.Millisecond)
		require.True(t, page200(t, base+"/tree", "Jupyter"), "Jupyter asks for no token of its own")
	})
	t.Run("ssh", func(t *testing.T) {
		r := with(t).run("", "ssh", "-p", freePort(t), "official", "echo hi; id -un; exit 7")
		require.Equal(t, 7, r.code, r.stdout+r.stderr)
		require.Contains(t, r.stdout, "hi\nwork\n")
	})
	t.Run("scp", func(t *testing.T) {
		o := with(t)
		o.write("up/a.txt", "forty-two\n")
		o.write("up/deep/b.txt", fmt.Sprintln(strings.Repeat("b", 100_000)))
		o.must("scp", "-p", freePort(t), "-r", "official", "up", "work@localhost:copied")
		o.must("scp", "-p", freePort(t), "-r", "official", "work@localhost:copied", "back")
		same(t, filepath.Join(o.dir, "up"), filepath.Join(o.dir, "back"))
	})
	o.must("session", "destroy", "official")
	p.clean()
}
