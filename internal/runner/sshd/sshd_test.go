package sshd_test

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"berth.dev/berth/internal/runner/sshd"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/tunnel"
)

func newSigner(t testing.TB) ssh.Signer {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	s, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	return s
}

func TestWhoMayLogIn(t *testing.T) {
	t.Parallel()
	b := start(t)
	stranger := newSigner(t)
	refused := func(user string, key ssh.Signer) {
		t.Helper()
		_, err := b.dial(user, key)
		require.ErrorContains(t, err, "unable to authenticate")
	}
	admitted := func(key ssh.Signer) {
		t.Helper()
		c, err := b.dial("work", key)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	admitted(b.key)
	refused("root", b.key)
	refused("work", stranger)

	// The session's own key: made once, readable by the user alone, good for logging in.
	require.NoError(t, sshd.EnsureSessionKey(b.home, b.cfg.User))
	text, err := os.ReadFile(filepath.Join(b.home, sshd.SessionKey))
	require.NoError(t, err)
	require.NoError(t, sshd.EnsureSessionKey(b.home, b.cfg.User))
	again, err := os.ReadFile(filepath.Join(b.home, sshd.SessionKey))
	require.NoError(t, err)
	require.Equal(t, text, again)
	uid, gid := uids()
	fi, err := os.Stat(filepath.Join(b.home, sshd.SessionKey))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode())
	require.EqualValues(t, uid, fi.Sys().(*syscall.Stat_t).Uid)
	require.EqualValues(t, gid, fi.Sys().(*syscall.Stat_t).Gid)
	own, err := ssh.ParsePrivateKey(text)
	require.NoError(t, err)
	admitted(own)

	// authorized_keys: read each time, only when nobody else can have written it, and without lines that restrict.
	file := filepath.Join(b.home, ".ssh/authorized_keys")
	line := string(ssh.MarshalAuthorizedKey(stranger.PublicKey()))
	require.NoError(t, os.Mkdir(filepath.Dir(file), 0o700))
	require.NoError(t, os.Chown(filepath.Dir(file), uid, gid))
	write := func(text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.NoError(t, os.Chown(file, uid, gid))
		require.NoError(t, os.Chmod(file, mode))
	}
	write("# a comment\n\nnot a key at all\n"+string(ssh.MarshalAuthorizedKey(b.key.PublicKey()))+line, 0o600)
	admitted(stranger)
	write(line, 0o622)
	refused("work", stranger)
	write("restrict,command=\"true\" "+line, 0o600)
	refused("work", stranger)
	write(line, 0o600)
	admitted(stranger)
	require.NoError(t, os.Remove(file))
	refused("work", stranger)
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	refused("work", stranger) // at once: it waits for nobody who writes
}

// TestKeysThatAreTakenAway: whoever logged in with a key that the platform takes away is out, and stays out although the key is still in
// the home's file; keys that the user added are not concerned.
func TestKeysThatAreTakenAway(t *testing.T) {
	t.Parallel()
	b := start(t)
	line := func(s ssh.Signer) string { return string(ssh.MarshalAuthorizedKey(s.PublicKey())) }
	own, next := newSigner(t), newSigner(t)
	dir := filepath.Join(b.home, ".ssh")
	file := filepath.Join(dir, "authorized_keys")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(file, []byte("# mine\n"+line(b.key)+line(own)), 0o600))
	uid, gid := uids()
	require.NoError(t, errors.Join(os.Chown(dir, uid, gid), os.Chown(file, uid, gid)))
	old := b.client()
	kept, err := b.dial("work", own)
	require.NoError(t, err)
	defer kept.Close()
	require.Equal(t, "hello\n", b.output(old, "echo hello"))

	require.Equal(t, 1, b.srv.SetKeys([]string{line(next)}))
	require.Error(t, old.Wait(), "the connection ends")
	_, err = b.dial("work", b.key)
	require.Error(t, err, "and nobody comes back")
	_, err = login(b.other(b.srv.FilesOnly()), "work", b.key)
	require.Error(t, err, "also not for files")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "# mine\n"+line(own), string(text))
	require.NoError(t, os.WriteFile(file, []byte(line(b.key)), 0o600))
	_, err = b.dial("work", b.key)
	require.Error(t, err, "wherever it is written")
	require.Equal(t, "hello\n", b.output(kept, "echo hello"), "the user's own key goes on")
	c, err := b.dial("work", next)
	require.NoError(t, err)
	defer c.Close()

	b.srv.SetKeys([]string{line(b.key)})
	require.Error(t, c.Wait(), "and back again")
	c, err = b.dial("work", b.key)
	require.NoError(t, err)
	defer c.Close()
}

func TestNothingButKeys(t *testing.T) {
	t.Parallel()
	b := start(t)
	for name, auth := range map[string][]ssh.AuthMethod{"none": nil, "password": {ssh.Password("")},
		"questions": {ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil })}} {
		conn, err := net.Dial("unix", b.socket)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		banner := ""
		_, _, _, err = ssh.NewClientConn(conn, "", &ssh.ClientConfig{User: "root", Auth: auth, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
			BannerCallback: func(m string) error {
				banner = m
				return nil
			}})
		require.ErrorContains(t, err, "unable to authenticate", name)
		require.Contains(t, banner, "log in as work")
		conn.Close()
	}
	for _, rubbish := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-x\r\n\x00\x00\xff\xff\x04\x14",
		"SSH-2.0-x\r\n\xff\xff\xff\xff\x04\x14aaaa", "SSH-1.5-x\r\n", strings.Repeat("x", 70000)} {
		conn, err := net.Dial("unix", b.socket)
		require.NoError(t, err)
		_, _ = io.WriteString(conn, rubbish) // it may be refused half way
		require.NoError(t, conn.(*net.UnixConn).CloseWrite())
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, rubbish[:10])
		}
		conn.Close()
	}
}

func TestHostKeyStays(t *testing.T) {
	t.Parallel()
	b := start(t)
	seen := func(srv *sshd.Server) string {
		near := b.other(srv)
		var key string
		c, chans, reqs, err := ssh.NewClientConn(near, "",
			&ssh.ClientConfig{User: "work", Auth: []ssh.AuthMethod{ssh.PublicKeys(b.key)},
				HostKeyCallback: func(_ string, _ net.Addr, k ssh.PublicKey) error {
					key = ssh.FingerprintSHA256(k)
					return nil
				}})
		require.NoError(t, err)
		require.NoError(t, ssh.NewClient(c, chans, reqs).Close())
		return key
	}
	first := seen(b.srv)
	require.Equal(t, first, seen(sshd.New(b.cfg)), "after a restart of the container")
	require.Equal(t, first, seen(b.srv.FilesOnly()))
	fi, err := os.Stat(b.cfg.HostKey)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode())
	require.EqualValues(t, os.Getuid(), fi.Sys().(*syscall.Stat_t).Uid, "the session's user must not read it")
}

func TestCommands(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.client()
	uid, _ := uids()
	require.Equal(t, fmt.Sprintf("%d\n%s\nyes\n", uid, b.home), b.output(c, "id -u; pwd; echo $SESSION"))

	for line, want := range map[string]int{"exit 0": 0, "exit 7": 7, "exit 255": 255, "/no/such/file": 127, "/etc": 126} {
		err := b.session(c).Run(line)
		var exit *ssh.ExitError
		if want == 0 {
			require.NoError(t, err)
			continue
		}
		require.ErrorAs(t, err, &exit, line)
		require.Equal(t, want, exit.ExitStatus(), line)
	}
	for _, name := range []string{"TERM", "KILL", "SEGV"} {
		var exit *ssh.ExitError
		require.ErrorAs(t, b.session(c).Run("kill -"+name+" $$"), &exit)
		require.Equal(t, name, exit.Signal())
	}

	// Standard error apart, input to its end, bytes as they are.
	s := b.session(c)
	var out, errs bytes.Buffer
	sent := make([]byte, 3<<20)
	_, _ = rand.Read(sent)
	s.Stdin, s.Stdout, s.Stderr = bytes.NewReader(sent), &out, &errs
	require.NoError(t, s.Run("cat; echo end >&2"))
	require.True(t, bytes.Equal(sent, out.Bytes()))
	require.Equal(t, "end\n", errs.String())

	// A command that reads nothing ends although its input is open.
	s = b.session(c)
	in, err := s.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	require.NoError(t, s.Run("exit 0"))

	// A signal that the client sends.
	s = b.session(c)
	from, err := s.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start("trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.05; done"))
	r := bufio.NewReader(from)
	require.Equal(t, "ready\n", line(t, r))
	require.NoError(t, s.Signal(ssh.SIGINT))
	require.Equal(t, "caught\n", line(t, r))
	var exit *ssh.ExitError
	require.ErrorAs(t, s.Wait(), &exit)
	require.Equal(t, 3, exit.ExitStatus())
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	text, err := r.ReadString('\n')
	require.NoError(t, err)
	return text
}

func TestEnvironmentOfClients(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.client()
	s := b.session(c)
	require.NoError(t, s.Setenv("LC_ALL", "de_DE.UTF-8"))
	require.NoError(t, s.Setenv("SESSION", "mine"))
	for _, name := range []string{"HOME", "PATH", "", "A=B"} {
		require.Error(t, s.Setenv(name, "x"), name)
	}
	out, err := s.Output("echo $LC_ALL $SESSION $HOME; env | grep -c '^SESSION='")
	require.NoError(t, err)
	require.Equal(t, "de_DE.UTF-8 mine "+b.home+"\n1\n", string(out))

	s = b.session(c)
	n := 0
	for s.Setenv("V"+strconv.Itoa(n), "x") == nil {
		n++
		require.Less(t, n, 1000)
	}
	require.Error(t, b.session(c).Setenv("BIG", strings.Repeat("x", 33<<10)))
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.client()
	s := b.session(c)
	require.NoError(t, s.RequestPty("vt220", 31, 97, ssh.TerminalModes{ssh.ECHO: 0, ssh.VERASE: 8, ssh.IUTF8: 1}))
	in, err := s.StdinPipe()
	require.NoError(t, err)
	from, err := s.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.Shell())
	r := bufio.NewReader(from)
	until := func(want string) string {
		t.Helper()
		for {
			if text := line(t, r); strings.Contains(text, want) {
				return text
			}
		}
	}
	say := func(text string) {
		_, err := io.WriteString(in, text)
		require.NoError(t, err)
	}
	say("PS1=; stty size; echo $TERM; test -t 0 && echo is-a-$((1))-tty\n")
	until("31 97")
	until("vt220")
	until("is-a-1-tty")
	say("stty -a\n")
	until("erase = ^H")
	require.Contains(t, until("echo"), "-echo")
	require.NoError(t, s.WindowChange(10, 20))
	// The new size is a request of the channel, which may be read after the input that was sent behind it.
	say("until test \"$(stty size)\" = '10 20'; do sleep 0.05; done; echo resized-$((3))\n")
	until("resized-3")
	say("test $SSH_TTY = $(tty) && echo same-$((2))-tty\n")
	until("same-2-tty")
	say("sh -c 'echo left $$.; exec sleep 600'\n")
	text := until("left ")
	pid, err := strconv.Atoi(strings.Trim(text[strings.Index(text, "left ")+5:], ".\r\n"))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	gone(t, pid) // a terminal that is closed hangs up
}

func gone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(st, []byte(") Z ")) // an orphan in a test that is not PID 1
	}, patience, 5*time.Millisecond)
}

func TestTerminalEndsWithItsShell(t *testing.T) {
	t.Parallel()
	b := start(t)
	s := b.session(b.client())
	require.NoError(t, s.RequestPty("xterm", 24, 80, nil))
	out, err := s.Output("sleep 600 & echo started; exit 5")
	var exit *ssh.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 5, exit.ExitStatus())
	require.Contains(t, string(out), "started")
}

// TestNobodyWaitsForWhoStays: a client that leaves frees its place, whatever its command does.
func TestNobodyWaitsForWhoStays(t *testing.T) {
	t.Parallel()
	b := start(t)
	for name, c := range map[string]struct {
		tty     bool
		command string
	}{
		"terminal":            {true, "trap '' HUP; echo at $$.; exec sleep 600"},
		"terminal and output": {true, "trap '' HUP; echo at $$.; while :; do echo x; sleep 0.01; done"},
		"input":               {false, "trap '' HUP PIPE; echo at $$.; exec sleep 600"},
		"output":              {false, "trap '' HUP PIPE; echo at $$.; while :; do echo x 2>/dev/null; sleep 0.01; done"},
	} {
		near, done := b.alone()
		client, err := login(near, "work", b.key)
		require.NoError(t, err, name)
		s := b.session(client)
		if c.tty {
			require.NoError(t, s.RequestPty("xterm", 24, 80, ssh.TerminalModes{ssh.ICANON: 0}))
		}
		in, err := s.StdinPipe()
		require.NoError(t, err)
		from, err := s.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, s.Start(c.command))
		text := line(t, bufio.NewReader(from))
		pid, err := strconv.Atoi(strings.Trim(strings.TrimPrefix(text, "at "), ".\r\n"))
		require.NoError(t, err, name)
		_, err = in.Write(make([]byte, 1<<20)) // nobody reads it
		require.NoError(t, err)
		require.NoError(t, client.Close())
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("the connection is not over:", name)
		}
		require.NoError(t, syscall.Kill(pid, 0), "it goes on: %s", name)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		await.Value(t, done)
	}
}

// TestBackground: what a command leaves behind goes on when the client leaves; editors rely on it.
func TestBackground(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.client()
	out := b.output(c, "sleep 600 >/dev/null 2>&1 </dev/null & echo $!")
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, syscall.Kill(pid, 0))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))

	c = b.client()
	s := b.session(c)
	from, err := s.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start("echo $$; exec cat"))
	pid, err = strconv.Atoi(strings.TrimSpace(line(t, bufio.NewReader(from))))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	gone(t, pid) // its input ended
}

func TestForwarding(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.client()
	echo := func(l net.Listener) {
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					text, _ := io.ReadAll(conn) // to the client's half-close
					_, _ = conn.Write(append([]byte("got "), text...))
				}()
			}
		}()
	}
	ask := func(conn net.Conn, err error) string {
		t.Helper()
		require.NoError(t, err)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute)) // a channel of SSH has none of its own, but its connection has
		_, err = io.WriteString(conn, "hello")
		require.NoError(t, err)
		require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		return string(text)
	}
	// To the container.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	echo(l)
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	for _, host := range []string{"localhost", "127.0.0.1", "LOCALHOST"} {
		require.Equal(t, "got hello", ask(c.Dial("tcp", net.JoinHostPort(host, port))))
	}
	for _, host := range []string{"169.254.169.254", "10.0.0.1", "example.com", "0.0.0.0", "::", "localhost.evil.example"} {
		_, err := c.Dial("tcp", net.JoinHostPort(host, port))
		require.ErrorContains(t, err, "prohibited", host)
	}
	_, err = c.Dial("tcp", "localhost:1")
	require.ErrorContains(t, err, "port 1")

	// To a socket, which sees the session's user.
	dir := filepath.Dir(b.socket)
	sock := filepath.Join(dir, "u.sock")
	ul, err := net.Listen("unix", sock)
	require.NoError(t, err)
	defer ul.Close()
	if os.Getuid() == 0 {
		_, err = c.Dial("unix", sock) // root's
		require.ErrorContains(t, err, "permission denied")
	}
	require.NoError(t, os.Chmod(sock, 0o666))
	uid, _ := uids()
	peer := make(chan uint32, 1)
	go func() {
		conn, err := ul.Accept()
		if err != nil {
			return
		}
		rc, _ := conn.(*net.UnixConn).SyscallConn()
		_ = rc.Control(func(fd uintptr) {
			if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
				peer <- cred.Uid
			}
		})
		conn.Close()
	}()
	conn, err := c.Dial("unix", sock)
	require.NoError(t, err)
	conn.Close()
	require.EqualValues(t, uid, await.Value(t, peer))

	// From the container, always on its loopback address.
	rl, err := c.Listen("tcp", "0.0.0.0:0")
	require.NoError(t, err)
	echo(rl)
	bound := rl.Addr().(*net.TCPAddr).Port
	require.Equal(t, "got hello", ask(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", bound))))
	if other := address(); other != "" {
		_, err = net.Dial("tcp", net.JoinHostPort(other, strconv.Itoa(bound)))
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	require.NoError(t, rl.Close())
	for range 5 { // another program may get the port at once
		if _, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", bound)); err != nil {
			break
		}
		rl, err := c.Listen("tcp", "0.0.0.0:0")
		require.NoError(t, err)
		bound = rl.Addr().(*net.TCPAddr).Port
		require.NoError(t, rl.Close())
	}
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	if os.Getuid() == 0 {
		_, err = c.Listen("tcp", "127.0.0.1:79")
		require.Error(t, err)
	}
	remote := filepath.Join(b.home, "r.sock")
	rul, err := c.ListenUnix(remote)
	require.NoError(t, err)
	echo(rul)
	fi, err := os.Stat(remote)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
	require.EqualValues(t, uid, fi.Sys().(*syscall.Stat_t).Uid)
	require.Equal(t, "got hello", ask(net.Dial("unix", remote)))
	_, err = c.ListenUnix("/etc/r.sock")
	if os.Getuid() == 0 {
		require.Error(t, err)
	}
	// The client's end is the listeners' end.
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool {
		_, err := os.Stat(remote)
		return errors.Is(err, os.ErrNotExist)
	}, patience, 2*time.Millisecond)
}

// address returns an address of this machine that is not its loopback address.
func address() string {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return ""
}

func TestAgentForwarding(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.client()
	ring := agent.NewKeyring()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	require.NoError(t, ring.Add(agent.AddedKey{PrivateKey: private, Comment: "mine"}))
	require.NoError(t, agent.ForwardToAgent(c, ring))
	s := b.session(c)
	require.NoError(t, agent.RequestAgentForwarding(s))
	out, err := s.Output("echo $SSH_AUTH_SOCK")
	require.NoError(t, err)
	file := strings.TrimSpace(string(out))
	fi, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
	conn, err := net.Dial("unix", file)
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	keys, err := agent.NewClient(conn).List()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	require.Equal(t, "mine", keys[0].Comment)
	conn.Close()
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool {
		_, err := os.Stat(file)
		return errors.Is(err, os.ErrNotExist)
	}, patience, 2*time.Millisecond)
}

func TestFiles(t *testing.T) {
	t.Parallel()
	b := start(t)
	f, err := sftp.NewClient(b.client())
	require.NoError(t, err)
	defer f.Close()
	wd, err := f.Getwd()
	require.NoError(t, err)
	require.Equal(t, b.home, wd)
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	w, err := f.Create("up")
	require.NoError(t, err)
	_, err = w.ReadFrom(bytes.NewReader(sent))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	got, err := os.ReadFile(filepath.Join(b.home, "up"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	uid, gid := uids()
	fi, err := os.Stat(filepath.Join(b.home, "up"))
	require.NoError(t, err)
	require.EqualValues(t, uid, fi.Sys().(*syscall.Stat_t).Uid)
	require.EqualValues(t, gid, fi.Sys().(*syscall.Stat_t).Gid)
	r, err := f.Open("up")
	require.NoError(t, err)
	var back bytes.Buffer
	_, err = r.WriteTo(&back)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.True(t, bytes.Equal(sent, back.Bytes()))
	if os.Getuid() == 0 {
		secret := filepath.Join(b.home, "secret")
		require.NoError(t, os.WriteFile(secret, []byte("x"), 0o600))
		_, err = f.Open("secret")
		require.ErrorIs(t, err, os.ErrPermission)
		_, err = f.Create("/etc/berth-test")
		require.ErrorIs(t, err, os.ErrPermission)
		_, err = f.Open(b.cfg.HostKey)
		require.Error(t, err)
	}
}

func TestFilesOnly(t *testing.T) {
	t.Parallel()
	b := start(t)
	only := b.srv.FilesOnly()
	require.Equal(t, "sftp", only.Name())
	require.Equal(t, tunnel.PortSFTP, only.Port())
	require.Equal(t, "sshd", b.srv.Name())
	require.Equal(t, tunnel.PortSSH, b.srv.Port())
	c, err := login(b.other(only), "work", b.key)
	require.NoError(t, err)
	defer c.Close()
	f, err := sftp.NewClient(c)
	require.NoError(t, err)
	require.NoError(t, f.Mkdir("made"))
	require.NoError(t, f.Close())
	require.Error(t, b.session(c).Run("true"))
	require.Error(t, b.session(c).Shell())
	require.Error(t, b.session(c).RequestPty("xterm", 24, 80, nil))
	_, err = c.Dial("tcp", "localhost:1")
	require.ErrorContains(t, err, "files only")
	_, err = c.Listen("tcp", "127.0.0.1:0")
	require.Error(t, err)
}

func TestBounds(t *testing.T) {
	t.Parallel()
	b := start(t)
	c := b.client()
	open := []ssh.Channel{}
	for {
		ch, reqs, err := c.OpenChannel("session", nil)
		if err != nil {
			var refused *ssh.OpenChannelError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, ssh.ResourceShortage, refused.Reason)
			break
		}
		go ssh.DiscardRequests(reqs)
		open = append(open, ch)
		require.LessOrEqual(t, len(open), 128)
	}
	require.Len(t, open, 128)
	for _, ch := range open {
		require.NoError(t, ch.Close())
	}
	require.Eventually(t, func() bool {
		s, err := c.NewSession()
		if err != nil {
			return false
		}
		defer s.Close()
		return s.Run("true") == nil
	}, patience, time.Millisecond)
}

// TestPlaces: connections have a bound, and who does not log in keeps nobody out.
func TestPlaces(t *testing.T) {
	t.Parallel()
	b := start(t)
	connect := func() net.Conn {
		conn, err := net.Dial("unix", b.socket)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		return conn
	}
	// The end of a connection has its own time, however long the logins before it took.
	ended := func(conn net.Conn) {
		t.Helper()
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		}
	}
	// Who has logged in stays until all have.
	enter := func() *ssh.Client {
		conn := connect()
		c, err := login(conn, "work", b.key)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*patience)))
		return c
	}
	c := enter()
	var trying []net.Conn
	for range 64 {
		conn := connect()
		_, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		trying = append(trying, conn)
	}
	ended(trying[0]) // it gave way to the last
	require.Equal(t, "there\n", b.output(c, "echo there"), "who has logged in stays")
	clients := []*ssh.Client{c}
	for range 63 {
		clients = append(clients, enter())
	}
	for _, conn := range trying {
		ended(conn)
	}
	require.Equal(t, "there\n", b.output(clients[63], "echo there")) // the server has seen it log in as well
	ended(connect())                                                 // all have
	require.Equal(t, "there\n", b.output(clients[63], "echo there"))
	require.NoError(t, clients[1].Close())
	require.Eventually(t, func() bool {
		again, err := b.dial("work", b.key)
		if err == nil {
			err = again.Close()
		}
		return err == nil
	}, patience, time.Millisecond)
}

// TestFileServersEnd: one that waits for the other end of a pipe ends after its client all the same.
func TestFileServersEnd(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.srv.LeaveWithin(10 * time.Millisecond)
	require.NoError(t, syscall.Mkfifo(filepath.Join(b.home, "pipe"), 0o666))
	s := b.session(b.client())
	in, err := s.StdinPipe()
	require.NoError(t, err)
	from, err := s.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.RequestSubsystem("sftp"))
	packet := func(kind byte, rest any) {
		body := append([]byte{kind}, ssh.Marshal(rest)...)
		_, err := in.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
		require.NoError(t, err)
	}
	packet(1, struct{ Version uint32 }{3})
	packet(3, struct {
		ID          uint32
		Name        string
		Read, Attrs uint32
	}{1, "pipe", 1, 0})
	_, err = io.ReadFull(from, make([]byte, 9)) // it is there
	require.NoError(t, err)
	pid := 0
	require.Eventually(t, func() bool {
		all, err := filepath.Glob("/proc/[0-9]*")
		require.NoError(t, err)
		for _, p := range all {
			if at, err := os.Readlink(p + "/cwd"); err == nil && at == b.home {
				if line, err := os.ReadFile(p + "/cmdline"); err == nil && strings.Contains(string(line), "\x00sftp-server\x00") {
					pid, err = strconv.Atoi(filepath.Base(p))
					return err == nil
				}
			}
		}
		return false
	}, patience, 2*time.Millisecond)
	require.NoError(t, s.Close())
	gone(t, pid)
}

func TestNoShell(t *testing.T) {
	t.Parallel()
	b := start(t, func(c *sshd.Config) { c.Shell = "" })
	c := b.client()
	out, err := b.session(c).CombinedOutput("ls")
	var exit *ssh.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 127, exit.ExitStatus())
	require.Contains(t, string(out), "no shell")
	f, err := sftp.NewClient(c)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
