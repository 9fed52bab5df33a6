package sshd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/recipe"
)

// The bounds of the environment that a client sends.
const (
	maxEnv      = 64
	maxEnvBytes = 32 << 10
)

// chunk is the most that one packet of a client holds.
const chunk = 32 << 10

// session is one channel that runs a shell, a command or the file server.
type session struct {
	c  *connection
	ch ssh.Channel

	// The requests' goroutine alone uses these.
	env      []string
	envBytes int
	term     string
	begun    bool

	gone chan struct{} // closed when the client has left

	mu      sync.Mutex
	closed  bool
	size    [2]uint16 // rows, columns; zero without a terminal
	modes   string
	master  *os.File
	process *proc.Process
}

func (c *connection) session(nc ssh.NewChannel) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	s := &session{c: c, ch: ch, gone: make(chan struct{})}
	var work sync.WaitGroup
	for req := range reqs { // until the channel is closed; it must not block
		start, ok := s.request(req)
		if req.WantReply {
			_ = req.Reply(ok, nil) // a client that left is seen by reqs
		}
		if start != nil {
			work.Go(func() {
				defer c.survive("a session")
				defer ch.Close()
				start()
			})
		}
	}
	s.hangUp()
	_ = ch.Close()
	work.Wait()
}

// request serves one request. When it begins the session, start serves the rest of it.
func (s *session) request(req *ssh.Request) (start func(), ok bool) {
	if s.c.server.files && req.Type != "subsystem" {
		return nil, false
	}
	switch req.Type {
	case "env":
		var v struct{ Name, Value string }
		return nil, ssh.Unmarshal(req.Payload, &v) == nil && s.setEnv(v.Name, v.Value)
	case "pty-req":
		var v struct {
			Term             string
			Cols, Rows, W, H uint32
			Modes            string
		}
		if ssh.Unmarshal(req.Payload, &v) != nil || s.begun || len(v.Term) > 128 || strings.ContainsRune(v.Term, 0) {
			return nil, false
		}
		s.term, s.modes = v.Term, v.Modes
		s.size = windowSize(v.Rows, v.Cols)
		return nil, true
	case "window-change":
		var v struct{ Cols, Rows, W, H uint32 }
		if ssh.Unmarshal(req.Payload, &v) != nil {
			return nil, false
		}
		s.resize(windowSize(v.Rows, v.Cols))
		return nil, true
	case "signal":
		var v struct{ Name string }
		sig, known := syscall.Signal(0), false
		if ssh.Unmarshal(req.Payload, &v) == nil {
			sig, known = signals[v.Name]
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if known && s.process != nil {
			s.process.Signal(sig)
			return nil, true
		}
		return nil, false
	case "auth-agent-req@openssh.com":
		return nil, s.c.forwardAgent() == nil
	case "shell", "exec", "subsystem":
		if s.begun {
			return nil, false
		}
		var v struct{ Text string }
		if req.Type != "shell" && ssh.Unmarshal(req.Payload, &v) != nil || strings.ContainsRune(v.Text, 0) {
			return nil, false
		}
		if req.Type == "subsystem" && v.Text != "sftp" {
			return nil, false
		}
		s.begun = true
		return func() { s.run(req.Type, v.Text) }, true
	}
	return nil, false
}

func windowSize(rows, cols uint32) [2]uint16 {
	if rows == 0 || cols == 0 || rows > 65535 || cols > 65535 {
		return [2]uint16{24, 80}
	}
	return [2]uint16{uint16(rows), uint16(cols)}
}

// setEnv takes any variable but those that say who the user is: commands of the user can set what they like anyway.
func (s *session) setEnv(name, value string) bool {
	if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) ||
		slices.Contains([]string{"HOME", "USER", "LOGNAME", "SHELL", "PATH"}, name) {
		return false
	}
	if len(s.env) >= maxEnv || s.envBytes+len(name)+len(value) > maxEnvBytes {
		return false
	}
	s.envBytes += len(name) + len(value)
	s.env = append(s.env, name+"="+value)
	return true
}

func (s *session) resize(size [2]uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size[0] == 0 {
		return // no terminal was asked for
	}
	s.size = size
	if s.master != nil {
		_ = proc.SetSize(s.master, size[0], size[1]) // a terminal that has ended needs none
	}
}

// hangUp tells a terminal's processes that the client has left. Commands without one see the end of their input, no more: what
// they started in the background (the server of an editor, say) is to be found again.
func (s *session) hangUp() {
	close(s.gone)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.master != nil {
		if s.process != nil {
			s.process.Signal(syscall.SIGHUP)
		}
		_ = s.master.Close()
	}
}

// run executes what was asked for and says how it ended.
func (s *session) run(kind, command string) {
	cfg := s.c.server.cfg
	spec := proc.Spec{Env: slices.Concat(cfg.Env, s.env, s.c.agentEnv()), Dir: cfg.Dir(), User: cfg.User}
	// As OpenSSH says it of connections without addresses; bash reads ~/.bashrc for commands when it sees one of them.
	spec.Env = append(spec.Env, "SSH_CLIENT=UNKNOWN 65535 65535", "SSH_CONNECTION=UNKNOWN 65535 UNKNOWN 65535")
	own, args := kind == "subsystem", []string{fileServer}
	if kind == "exec" && s.lacksSCP(command, spec.Env) {
		if args = strings.Fields(command); cfg.Shell == "" {
			own = true
		} else {
			command = fmt.Sprintf(`scp() { '%s' scp "$@"; }; %s`, cfg.Executable, command) // the shell expands the names of files
		}
	}
	switch {
	case own:
		spec.Path, spec.Argv = cfg.Executable, append([]string{filepath.Base(cfg.Executable)}, args...)
		spec.Env = slices.DeleteFunc(spec.Env, func(kv string) bool { return strings.HasPrefix(kv, "GO") }) // it is a program in Go
	case cfg.Shell == "":
		s.fail(127, "this image has no shell; SFTP and port forwarding work")
		return
	default:
		// No login shell: /etc/profile of many images sets PATH anew and would hide what the image's own PATH names.
		spec.Path, spec.Argv = cfg.Shell, []string{filepath.Base(cfg.Shell)}
		if kind == "exec" {
			spec.Argv = append(spec.Argv, "-c", command)
		}
	}
	var status proc.Status
	var err error
	s.mu.Lock()
	tty := s.size[0] != 0 && !own
	s.mu.Unlock()
	if tty {
		status, err = s.onTerminal(spec)
	} else {
		status, err = s.onPipes(spec, own)
	}
	if errors.Is(err, errEnded) {
		return
	}
	if err != nil {
		s.fail(proc.ExitCodeOf(err), "the session cannot run "+spec.Path+": "+err.Error())
		return
	}
	s.exit(status)
}

// lacksSCP reports whether a command is what an older scp runs at the other end, in an image that has none.
func (s *session) lacksSCP(command string, env []string) bool {
	if !strings.HasPrefix(command, scpServer+" ") {
		return false
	}
	missing := false
	err := proc.AsUser(s.c.server.cfg.User, func() error {
		_, found := recipe.LookPath(scpServer, env)
		missing = !found
		return nil
	})
	return err == nil && missing
}

func (s *session) fail(code int, text string) {
	_, _ = io.WriteString(s.ch.Stderr(), text+"\r\n")
	s.exit(proc.Status{Code: code})
}

// exit is the last thing said in a session.
func (s *session) exit(st proc.Status) {
	_ = s.ch.CloseWrite()
	for name, sig := range signals {
		if sig == st.Signal {
			_, _ = s.ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
				Name       string
				Core       bool
				Text, Lang string
			}{Name: name}))
			return
		}
	}
	_, _ = s.ch.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(st.Code)))
}

// signals are those that RFC 4254 names.
var signals = map[string]syscall.Signal{
	"ABRT": syscall.SIGABRT, "ALRM": syscall.SIGALRM, "FPE": syscall.SIGFPE, "HUP": syscall.SIGHUP, "ILL": syscall.SIGILL,
	"INT":  syscall.SIGINT,
	"KILL": syscall.SIGKILL, "PIPE": syscall.SIGPIPE, "QUIT": syscall.SIGQUIT, "SEGV": syscall.SIGSEGV, "TERM": syscall.SIGTERM,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// start starts the process unless the client has left.
func (s *session) start(spec proc.Spec, master *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errEnded
	}
	spec.Env = lastWins(spec.Env)
	p, err := s.c.server.cfg.Table.Start(spec)
	if err != nil {
		return err
	}
	s.process, s.master = p, master
	if master != nil {
		_ = proc.SetSize(master, s.size[0], s.size[1]) // it may have changed meanwhile
	}
	return nil
}

func (s *session) onTerminal(spec proc.Spec) (proc.Status, error) {
	spec.TTY = true
	var master, slave *os.File
	err := proc.AsUser(spec.User, func() (err error) {
		master, slave, err = proc.OpenPTY(24, 80)
		return err
	})
	if err != nil {
		return proc.Status{}, err
	}
	setModes(slave, s.modes)
	spec.Files = []*os.File{slave, slave, slave}
	if s.term != "" {
		spec.Env = append(spec.Env, "TERM="+s.term)
	}
	if name, err := ptyName(master); err == nil {
		spec.Env = append(spec.Env, "SSH_TTY="+name)
	}
	err = s.start(spec, master)
	_ = slave.Close()
	if err != nil {
		_ = master.Close()
		return proc.Status{}, err
	}
	s.c.work.Go(func() { _, _ = io.CopyBuffer(writer{master}, reader{s.ch}, make([]byte, 4<<10)) }) // ends with the channel or the terminal
	// a client that left is seen by the requests
	out := proc.NewDrain(master, func(b []byte) { _, _ = s.ch.Write(b) })
	select {
	case <-s.process.Done():
		out.Settle(func([]byte) {})
	case <-s.gone: // whoever does not mind the hang-up (nohup) goes on without the terminal, and nobody waits for it
		err = errEnded
	}
	_ = master.Close() // what the shell left behind hangs up
	<-out.Done()
	if err != nil {
		return proc.Status{}, err
	}
	return s.process.Status(), nil
}

// onPipes runs a command without a terminal. Like OpenSSH it waits until everybody has closed the output: background
// processes of the command may still write.
func (s *session) onPipes(spec proc.Spec, own bool) (proc.Status, error) {
	var ours, theirs [3]*os.File
	shut := func(files [3]*os.File) {
		for _, f := range files {
			if f != nil {
				_ = f.Close()
			}
		}
	}
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			shut(ours)
			shut(theirs)
			return proc.Status{}, err
		}
		ours[i], theirs[i] = r, w
		if i == 0 {
			ours[i], theirs[i] = w, r
		}
		if own {
			enlarge(w)
		}
	}
	spec.Files = theirs[:]
	err := s.start(spec, nil)
	shut(theirs)
	if err != nil {
		shut(ours)
		return proc.Status{}, err
	}
	s.c.work.Go(func() { // goes on after the channel's end until what was sent before is written, or the connection ends
		defer context.AfterFunc(s.c.ctx, func() { _ = ours[0].Close() })()
		_, _ = io.CopyBuffer(writer{ours[0]}, reader{s.ch}, make([]byte, 2*chunk)) // a command that closed its input does not want it
		_ = ours[0].Close()
	})
	var out sync.WaitGroup
	for i, to := range map[int]io.Writer{1: s.ch, 2: s.ch.Stderr()} {
		out.Go(func() {
			// A client that left makes Write fail; the command then writes to a closed pipe.
			_, _ = io.CopyBuffer(writer{to}, reader{ours[i]}, make([]byte, 2*chunk))
			_ = ours[i].Close()
		})
	}
	over := make(chan struct{})
	go func() {
		out.Wait()
		close(over)
	}()
	// Reading ends with the pipe, and when the client leaves: the pipes are taken away then.
	select {
	case <-over:
	case <-s.gone:
		_, _ = ours[1].Close(), ours[2].Close()
		<-over
	}
	select {
	case <-s.process.Done():
	case <-s.gone:
		if own {
			// It ends when it has done what it was asked for, unless that was to open a pipe that has no other end.
			time.AfterFunc(s.c.server.leave, func() { s.process.Signal(syscall.SIGKILL) })
		}
		return proc.Status{}, errEnded
	}
	_ = ours[0].Close()
	return s.process.Status(), nil
}

// lastWins drops variables that are set again later: programs differ in which one they see.
func lastWins(env []string) []string {
	last := make(map[string]int, len(env))
	name := func(kv string) string {
		k, _, _ := strings.Cut(kv, "=")
		return k
	}
	for i, kv := range env {
		last[name(kv)] = i
	}
	out := make([]string, 0, len(last))
	for i, kv := range env {
		if last[name(kv)] == i {
			out = append(out, kv)
		}
	}
	return out
}

// writer and reader hide methods that would make io.Copy take other ways than its buffer.
type (
	writer struct{ io.Writer }
	reader struct{ io.Reader }
)

func enlarge(pipe *os.File) {
	if rc, err := pipe.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 512<<10) }) // its usual size does as well
	}
}

func ptyName(master *os.File) (string, error) {
	rc, err := master.SyscallConn()
	if err != nil {
		return "", err
	}
	n, ierr := 0, error(nil)
	if err := rc.Control(func(fd uintptr) { n, ierr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN) }); err != nil {
		return "", err
	}
	return fmt.Sprintf("/dev/pts/%d", n), ierr
}
