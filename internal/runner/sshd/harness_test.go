package sshd_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/sshd"
)

// asProxy makes the test binary connect its standard input and output to a socket: what ssh's ProxyCommand does.
const asProxy = "connect-to-socket"

func TestMain(m *testing.M) {
	if code, ok := sshd.FileServer(os.Args); ok {
		os.Exit(code)
	}
	if len(os.Args) == 3 && os.Args[1] == asProxy {
		os.Exit(proxy(os.Args[2]))
	}
	code := m.Run()
	if d := executable.dir; d != "" {
		_ = os.RemoveAll(d)
	}
	os.Exit(code)
}

func proxy(socket string) int {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 1
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(*net.UnixConn).CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, conn)
	return 0
}

// One table for the whole process: it waits for every child, so programs are started through it.
var table = sync.OnceValue(proc.NewTable)

// executable is a copy of the test binary that every user can execute.
var executable struct {
	once sync.Once
	dir  string
	file string
	err  error
}

func testBinary(t testing.TB) string {
	executable.once.Do(func() {
		executable.err = func() error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			if executable.dir, err = os.MkdirTemp("/tmp", "bs"); err != nil {
				return err
			}
			if err := os.Chmod(executable.dir, 0o755); err != nil {
				return err
			}
			in, err := os.Open(self)
			if err != nil {
				return err
			}
			defer in.Close()
			executable.file = filepath.Join(executable.dir, "berth-runner")
			out, err := os.OpenFile(executable.file, os.O_CREATE|os.O_WRONLY, 0o755)
			if err != nil {
				return err
			}
			_, err = io.Copy(out, in)
			if cerr := out.Close(); err == nil {
				err = cerr
			}
			return err
		}()
	})
	require.NoError(t, executable.err)
	return executable.file
}

// box is a server with a home of its own, on a socket for OpenSSH.
type box struct {
	t      testing.TB
	cfg    sshd.Config
	srv    *sshd.Server
	ctx    context.Context
	home   string
	socket string
	key    ssh.Signer // of somebody whom the configuration names
}

func uids() (uid, gid int) {
	if os.Getuid() == 0 {
		return 65534, 65534 // nobody: OpenSSH's programs want a name
	}
	return os.Getuid(), os.Getgid()
}

func start(t testing.TB, change ...func(*sshd.Config)) *box {
	dir, err := os.MkdirTemp("/tmp", "bs")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711))
	uid, gid := uids()
	b := &box{t: t, home: filepath.Join(dir, "home"), socket: filepath.Join(dir, "s")}
	var user *proc.Credential
	if os.Getuid() == 0 {
		user = &proc.Credential{UID: uid, GID: gid}
	}
	for _, d := range []string{b.home, filepath.Join(dir, "user")} {
		require.NoError(t, os.Mkdir(d, 0o755))
		require.NoError(t, os.Chown(d, uid, gid))
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	b.key, err = ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	b.cfg = sshd.Config{Name: "work", Home: b.home, User: user, Shell: "/bin/sh", Dir: func() string { return b.home },
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + b.home, "SESSION=yes", "TERM=xterm"}, Table: table(),
		Executable: testBinary(t),
		HostKey:    filepath.Join(dir, "host_key"), Sockets: filepath.Join(dir, "user"),
		Authorized: []string{string(ssh.MarshalAuthorizedKey(b.key.PublicKey()))},
		Log:        slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	for _, c := range change {
		c(&b.cfg)
	}
	b.srv = sshd.New(b.cfg)
	ctx, cancel := context.WithCancel(context.Background())
	b.ctx = ctx
	t.Cleanup(cancel)
	b.serve(b.srv, b.socket)
	return b
}

// serve serves a socket until the test ends.
func (b *box) serve(srv *sshd.Server, socket string) {
	l, err := net.Listen("unix", socket)
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(b.ctx)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { srv.Serve(ctx, conn) })
		}
	})
	b.t.Cleanup(func() {
		l.Close()
		cancel()
		served.Wait()
	})
}

// other serves another server of the same session and connects to it.
func (b *box) other(srv *sshd.Server) net.Conn {
	file := filepath.Join(b.t.TempDir(), "s")
	b.serve(srv, file)
	conn, err := net.Dial("unix", file)
	require.NoError(b.t, err)
	return conn
}

// alone serves one connection; done is closed when all of it has ended.
func (b *box) alone() (near net.Conn, done <-chan struct{}) {
	l, err := net.Listen("unix", filepath.Join(b.t.TempDir(), "s"))
	require.NoError(b.t, err)
	defer l.Close()
	near, err = net.Dial("unix", l.Addr().String())
	require.NoError(b.t, err)
	far, err := l.Accept()
	require.NoError(b.t, err)
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.srv.Serve(b.ctx, far)
	}()
	b.t.Cleanup(func() { near.Close() })
	return near, over
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// dial logs in with a key; files chooses app sftp.
func (b *box) dial(user string, key ssh.Signer) (*ssh.Client, error) {
	conn, err := net.Dial("unix", b.socket)
	require.NoError(b.t, err)
	return login(conn, user, key)
}

// patience bounds everything that a test waits for; nothing that works takes so long.
const patience = time.Minute

func login(conn net.Conn, user string, key ssh.Signer) (*ssh.Client, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil { // whatever a client waits for ends with its connection
		return nil, err
	}
	c, chans, reqs, err := ssh.NewClientConn(conn, "session", &ssh.ClientConfig{User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), Timeout: 20 * time.Second})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return ssh.NewClient(c, chans, reqs), nil
}

func (b *box) client() *ssh.Client {
	c, err := b.dial("work", b.key)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { c.Close() })
	return c
}

func (b *box) session(c *ssh.Client) *ssh.Session {
	s, err := c.NewSession()
	require.NoError(b.t, err)
	b.t.Cleanup(func() { s.Close() })
	return s
}

func (b *box) output(c *ssh.Client, command string) string {
	out, err := b.session(c).CombinedOutput(command)
	require.NoError(b.t, err, command)
	return string(out)
}

// result is what a program wrote and its exit code.
type result struct {
	out, err string
	code     int
}

// program runs a program of this machine through the table.
func (b *box) program(stdin string, argv ...string) result {
	file, err := exec.LookPath(argv[0])
	if err != nil {
		b.t.Skipf("%s is not installed here", argv[0])
	}
	dir := b.t.TempDir()
	names := []string{"in", "out", "err"}
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, "in"), []byte(stdin), 0o600))
	files := make([]*os.File, 3)
	for i, n := range names {
		files[i], err = os.OpenFile(filepath.Join(dir, n), os.O_CREATE|os.O_RDWR, 0o600)
		require.NoError(b.t, err)
		defer files[i].Close()
	}
	p, err := table().Start(proc.Spec{Path: file, Argv: argv, Env: append(os.Environ(), "HOME="+dir), Dir: dir, Files: files})
	require.NoError(b.t, err)
	select {
	case <-p.Done():
	case <-time.After(patience):
		p.Signal(syscall.SIGKILL)
		b.t.Fatalf("%v is still running after %v", argv, patience)
	}
	r := result{code: p.Status().Code}
	out, err := os.ReadFile(filepath.Join(dir, "out"))
	require.NoError(b.t, err)
	text, err := os.ReadFile(filepath.Join(dir, "err"))
	require.NoError(b.t, err)
	r.out, r.err = string(out), string(text)
	return r
}

// openSSH returns the options with which OpenSSH's programs reach the box with the session's own key.
func (b *box) openSSH() []string {
	require.NoError(b.t, sshd.EnsureSessionKey(b.home, b.cfg.User))
	text, err := os.ReadFile(filepath.Join(b.home, sshd.SessionKey))
	require.NoError(b.t, err)
	key := filepath.Join(b.t.TempDir(), "key")
	require.NoError(b.t, os.WriteFile(key, text, 0o600))
	return []string{"-F", "none", "-i", key, "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "BatchMode=yes", "-o",
		"StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		"-o", "ProxyCommand=" + testBinary(b.t) + " " + asProxy + " " + b.socket}
}

func (b *box) ssh(stdin string, args ...string) result {
	return b.program(stdin, append(append([]string{"ssh"}, b.openSSH()...), args...)...)
}
