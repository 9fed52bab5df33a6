package runner

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/recipe"
	"berth.dev/berth/internal/runner/sshd"
	"berth.dev/berth/internal/runner/webterm"
	"berth.dev/berth/internal/wire/run"
)

// Intrinsic is an app that the runner serves itself, in every image. It listens nowhere: connections come from serveDial.
type Intrinsic interface {
	Name() string
	Port() int // one of package tunnel
	Protocol() run.AppProtocol
	// Serve talks to one client until either side ends the connection or ctx ends. The connection is closed when it
	// returns; everything that it started for this client has ended by then.
	Serve(ctx context.Context, conn net.Conn)
}

// intrinsics are the apps of this runner in the order of lists. New calls it last, so all of the runner is there.
func (r *Runner) intrinsics() []Intrinsic {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0] // in a root without /proc; the agent names the file in full
	}
	ssh := sshd.New(sshd.Config{Name: r.cfg.User.Name, Home: r.cfg.User.Home, User: r.user, Shell: r.shell, Dir: r.workDir, Env: r.env,
		Table: r.table, Executable: exe,
		HostKey: filepath.Join(r.cfg.Dir, "ssh_host_key"), Sockets: r.userDir(), Authorized: r.cfg.AuthorizedKeys, Log: r.log})
	r.ssh = ssh
	title := "Terminal"
	if name := recipe.Getenv(r.env, "BACKENDAI_SESSION_NAME"); name != "" {
		title = name + " · terminal"
	}
	return []Intrinsic{ssh, ssh.FilesOnly(), webterm.New(webterm.Config{Terminals: r.terminals, Title: title, Log: r.log})}
}

// maxIntrinsic bounds the connections to all intrinsic apps together.
const maxIntrinsic = 128

// intrinsicSet hands connections to intrinsic apps.
type intrinsicSet struct {
	apps []Intrinsic
	free chan struct{}
	ctx  context.Context
	end  context.CancelFunc
	mu   sync.Mutex // held while a connection is added, so that close waits for all
	wait sync.WaitGroup
	told func(app string, panicked any, stack []byte)
}

func newIntrinsicSet(apps []Intrinsic, told func(app string, panicked any, stack []byte)) *intrinsicSet {
	s := &intrinsicSet{apps: apps, free: make(chan struct{}, maxIntrinsic), told: told}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

func (s *intrinsicSet) on(port int) (Intrinsic, bool) {
	i := slices.IndexFunc(s.apps, func(a Intrinsic) bool { return a.Port() == port })
	if i < 0 {
		return nil, false
	}
	return s.apps[i], true
}

// connect returns the client's end of a new connection to an app. It is a socket, so it can be handed over.
func (s *intrinsicSet) connect(a Intrinsic) (net.Conn, error) {
	select {
	case s.free <- struct{}{}:
	default:
		return nil, fault.Exhaustedf("%d connections to the session's own apps are open already", maxIntrinsic).
			WithReason("too-many-connections").WithNext("close some of them")
	}
	near, far, err := socketPair()
	if err != nil {
		<-s.free
		return nil, fault.Unavailablef("connect to app %s", a.Name()).WithCause(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait.Go(func() { // when ctx has ended already, it ends at once
		defer func() { <-s.free }()
		// Before the recovery, so that a client of an app that broke down sees the end.
		defer far.Close()
		defer func() {
			if p := recover(); p != nil { // PID 1 must not end by what a client sent
				s.told(a.Name(), p, debug.Stack())
			}
		}()
		stop := context.AfterFunc(s.ctx, func() { _ = far.Close() })
		defer stop()
		a.Serve(s.ctx, far)
	})
	return near, nil
}

// close ends all connections and waits until their servers have ended.
func (s *intrinsicSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	s.wait.Wait()
}

// socketPair returns two connected stream sockets.
func socketPair() (a, b net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "intrinsic")
		c, ferr := net.FileConn(f) // a copy of the descriptor
		_ = f.Close()
		if ferr != nil {
			err = ferr
		}
		conns[i] = c
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	return conns[0], conns[1], nil
}
