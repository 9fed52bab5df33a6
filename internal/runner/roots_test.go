package runner_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	rt "runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
)

// static builds a program without cgo, once per test run.
var static = struct {
	sync.Mutex
	dir  string
	done map[string]string
}{done: map[string]string{}}

func buildStatic(t *testing.T, name string, args ...string) string {
	static.Lock()
	defer static.Unlock()
	if file := static.done[name]; file != "" {
		return file
	}
	if static.dir == "" {
		var err error
		static.dir, err = os.MkdirTemp("", "berth-static")
		require.NoError(t, err)
	}
	file := filepath.Join(static.dir, name)
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", file}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	static.done[name] = file
	return file
}

// helperSource is a program for roots that have nothing else.
const helperSource = `package main

import ("fmt"; "os"; "io"; "strconv")

func main() {
	in, _ := io.ReadAll(os.Stdin)
	fmt.Println("uid", os.Getuid(), "pid", os.Getpid(), "args", os.Args[1:], "in", string(in), "home", os.Getenv("HOME"))
	if len(os.Args) > 2 && os.Args[1] == "exit" {
		n, _ := strconv.Atoi(os.Args[2])
		os.Exit(n)
	}
}
`

func copyFile(t *testing.T, from, to string) {
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	require.NoError(t, os.WriteFile(to, data, 0o755))
}

// newRoot makes a root file system with the runner and a helper, and nothing else.
func newRoot(t *testing.T) string {
	if os.Getuid() != 0 {
		t.Skip("needs root to change the root directory; make test says how to run it")
	}
	root := shortDir(t)
	require.NoError(t, os.Chmod(root, 0o755))
	src := filepath.Join(t.TempDir(), "helper.go")
	require.NoError(t, os.WriteFile(src, []byte(helperSource), 0o644))
	copyFile(t, buildStatic(t, "helper", src), filepath.Join(root, "helper"))
	copyFile(t, buildStatic(t, "berth-runner", "berth.dev/berth/cmd/berth-runner"), filepath.Join(root, ".berth-runner"))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "home"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(root, ".berth"), 0o711))
	return root
}

// enter starts the runner as PID 1 with another root directory.
func enter(t *testing.T, root string, cfg run.Config) *box {
	cfg.Version, cfg.Token, cfg.KernelID, cfg.Dir = run.Version, token, "k-root", "/.berth"
	cfg.User = run.User{UID: 4242, GID: 4243}
	cfg.Env = map[string]string{"PATH": "/:/bin:/usr/bin"}
	require.NoError(t, run.WriteConfig(filepath.Join(root, ".berth/config.json"), cfg))
	b := &box{t: t, cfg: cfg.WithDefaults(), out: &buffer{}, exit: make(chan struct{})}
	b.cmd = &exec.Cmd{Path: "/.berth-runner", Args: []string{"/.berth-runner", "/.berth/config.json"}, Dir: "/",
		Env:    []string{"LD_PRELOAD=/no/such/library.so", "VIRTUAL_ENV=/no/such/venv", "PYTHONHOME=/nowhere"},
		Stdout: b.out, Stderr: b.out,
		SysProcAttr: &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}}
	began := make(chan error)
	go func() {
		rt.LockOSThread()
		defer rt.UnlockOSThread()
		err := b.cmd.Start()
		began <- err
		if err == nil {
			_ = b.cmd.Wait()
			b.code = b.cmd.ProcessState.ExitCode()
		}
		close(b.exit)
	}()
	require.NoError(t, await.Value(t, began))
	b.c = run.NewClient(run.Options{Dial: run.UnixDialer(filepath.Join(root, ".berth/run.sock")), Token: token})
	t.Cleanup(func() {
		_ = b.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-b.exit:
		case <-time.After(patience):
			_ = b.cmd.Process.Kill()
			await.Value(t, b.exit)
			t.Error("PID 1 did not end in time")
		}
		b.c.Close()
		if t.Failed() {
			t.Logf("log of the runner:\n%s", b.out)
		}
	})
	return b
}

func (b *box) up() *box {
	require.Eventually(b.t, func() bool {
		_, err := b.c.Hello(ctx(b.t))
		return err == nil
	}, patience, 2*time.Millisecond, "the runner does not serve: %s", b.out)
	return b
}

// TestScratchRoot runs the runner as PID 1 in a root with two programs and nothing else: no
// shell, no libc, no /tmp, no /dev, no /etc/passwd.
func TestScratchRoot(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	b := enter(t, root, run.Config{}).up()
	h, err := b.c.Hello(ctx(t))
	require.NoError(t, err)
	require.Equal(t, 1, h.PID)
	require.Equal(t, "none", h.Runtime.How)
	require.NotContains(t, h.Capabilities, run.CanPTY)
	r := b.query("q", "print(1)")
	require.Equal(t, 127, r.exit)
	require.Contains(t, r.stderr, "no Python and no shell")
	r = b.shell("plain", "helper exit '4 2'")
	require.Contains(t, r.stdout, "uid 4242")
	require.Contains(t, r.stdout, "args [exit 4 2]")
	require.Contains(t, r.stdout, "home /home/work")
	require.Equal(t, 4, b.shell("exit", "helper exit 4").exit)
	r = b.shell("needs-shell", "helper | helper")
	require.Equal(t, 127, r.exit)
	require.Contains(t, r.stderr, "no shell")
	s, err := b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"/helper", "exit", "9"}})
	require.NoError(t, err)
	_, err = s.Write([]byte("typed"))
	require.NoError(t, err)
	require.NoError(t, s.CloseInput())
	var out bytes.Buffer
	exit, err := s.Wait(&out, nil)
	require.NoError(t, err)
	require.Equal(t, 9, exit.Code)
	require.Contains(t, out.String(), "in typed")
	s.Close()
	_, err = b.c.PTY(ctx(t), run.PTYStart{})
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	b.put("x/y.txt", "data")
	list, err := b.c.Files(ctx(t), "x")
	require.NoError(t, err)
	require.Len(t, list.Entries, 1)
	b.cfg.Socket = filepath.Join(root, b.cfg.Socket)
	conn := b.ssh(filepath.Join(root, "home/work"))
	f, err := sftp.NewClient(conn) // the runner brings what it takes
	require.NoError(t, err)
	text, err := f.Open("x/y.txt")
	require.NoError(t, err)
	data, err := io.ReadAll(text)
	require.NoError(t, err)
	require.Equal(t, "data", string(data))
	require.NoError(t, f.Mkdir("z"))
	fi, err := os.Stat(filepath.Join(root, "home/work/z"))
	require.NoError(t, err)
	require.EqualValues(t, 4242, fi.Sys().(*syscall.Stat_t).Uid)
	require.NoError(t, b.c.Shutdown(ctx(t), time.Second))
	require.Equal(t, 0, b.wait())
}

func TestScratchRootBatch(t *testing.T) {
	t.Parallel()
	root := newRoot(t)
	b := enter(t, root, run.Config{SessionType: "batch", Batch: &run.BatchCommand{Command: "/helper exit 6"}})
	require.Equal(t, 6, b.wait())
	require.Contains(t, b.log(), "uid 4242")
	require.FileExists(t, filepath.Join(root, ".berth/result.json"))
}

// TestMuslRoot has the musl C library and a program linked against it, as Alpine images do.
func TestMuslRoot(t *testing.T) {
	t.Parallel()
	cc, err := exec.LookPath("musl-gcc")
	if err != nil {
		t.Skip("musl-gcc is not installed (Debian: musl-tools); the scratch root covers a runner without glibc")
	}
	root := newRoot(t)
	src := filepath.Join(t.TempDir(), "hello.c")
	require.NoError(t, os.WriteFile(src, []byte("#include <stdio.h>\n#include <unistd.h>\nint main(int n, char **a) { printf(\"musl %d %d\\n"+
		"\", n, getuid()); fflush(stdout); return n; }\n"), 0o644))
	out, err := exec.Command(cc, "-o", filepath.Join(root, "hello"), src).CombinedOutput()
	require.NoError(t, err, string(out))
	loaders, err := filepath.Glob("/lib/ld-musl-*.so.1")
	require.NoError(t, err)
	require.NotEmpty(t, loaders)
	for _, l := range loaders {
		copyFile(t, l, filepath.Join(root, l))
	}
	b := enter(t, root, run.Config{}).up()
	// The image's LD_PRELOAD of the test's environment only makes the loader complain.
	r := b.shell("hello", "hello a b")
	require.Contains(t, r.stdout, "musl 3 4242")
	require.Equal(t, 3, r.exit)
}
