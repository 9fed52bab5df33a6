// Package sshd is the SSH server of a session: shells, commands, forwarding of ports, sockets and agents, SFTP and the
// older scp. It serves connections that somebody else accepted.
//
// There is one user in a session, so one user may log in, with a key and in no other way. Whatever a client asks for happens
// as that user: commands are started as it, files are served by a child process that is it, sockets are
// reached and made with its rights. The server itself only decrypts, and keeps the host key.
//
// It knows no other app and no route; runner registers it.
package sshd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// The bounds of a server and of one connection.
const (
	maxConns    = 64
	maxChannels = 128 // shells, commands and forwarded connections of one connection
	maxForwards = 64  // listeners of one connection
	// Agents offer every key they hold, one after the other, before the right one; nobody guesses a key.
	maxAuthTries = 20
	loginTime    = 30 * time.Second
	aliveEvery   = 30 * time.Second
	leaveTime    = 30 * time.Second // from a client's end to that of the process that served it files
)

// Config says what connections get.
type Config struct {
	Name  string // the session's user, the only one that may log in
	Home  string // of that user: ~/.ssh/authorized_keys and the session's key
	User  *proc.Credential
	Shell string        // file; empty when the image has none
	Dir   func() string // where commands start
	Env   []string
	Table *proc.Table
	// Executable is the file of this program, whose main calls FileServer. The user must be able to execute it.
	Executable string
	// HostKey is the file of the host key. Only the runner may read it; it is made when it is missing.
	HostKey string
	// Sockets is a directory that belongs to the user, for sockets of forwarded agents. Keep it short.
	Sockets    string
	Authorized []string // lines in OpenSSH's format, until SetKeys replaces them
	Log        *slog.Logger
}

// Server serves connections of SSH.
type Server struct {
	cfg   Config
	files bool   // SFTP and nothing else
	only  string // the one key that logs in; "" for those of the session's owner
	room  *room
	ring  *ring
	leave time.Duration
	host  func() (ssh.Signer, error)
}

// New returns app sshd.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, room: new(room), ring: newRing(cfg.Authorized), leave: leaveTime,
		host: kept(func() (ssh.Signer, error) { return hostKey(cfg.HostKey) })}
}

// kept loads a key until that succeeds, and then no more: a disk that was full once does not close the server for good.
func kept(load func() (ssh.Signer, error)) func() (ssh.Signer, error) {
	var mu sync.Mutex
	var key ssh.Signer
	return func() (_ ssh.Signer, err error) {
		mu.Lock()
		defer mu.Unlock()
		if key == nil {
			key, err = load()
		}
		return key, err
	}
}

// FilesOnly returns app sftp: the same server for the same keys, which serves files and nothing else.
func (s *Server) FilesOnly() *Server {
	f := *s
	f.files = true
	return &f
}

// Name is the app's.
func (s *Server) Name() string {
	if s.files {
		return "sftp"
	}
	return "sshd"
}

// Port is where tunnels find it.
func (s *Server) Port() int {
	if s.files {
		return tunnel.PortSFTP
	}
	return tunnel.PortSSH
}

// Protocol is TCP: bytes that nobody on the way understands.
func (s *Server) Protocol() run.AppProtocol { return run.AppTCP }

// Serve talks to one client until either side ends it or ctx is done. It closes conn.
func (s *Server) Serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	place, ok := s.room.enter(conn)
	if !ok {
		s.cfg.Log.Warn("an SSH connection was refused", "app", s.Name(), "open", maxConns)
		return // before the greeting: the client says that the connection was closed
	}
	defer s.room.leave(place)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := s.serve(ctx, conn, place); err != nil {
		s.cfg.Log.Debug("an SSH connection ended", "app", s.Name(), "err", err)
	}
}

func (s *Server) serve(ctx context.Context, raw net.Conn, place *place) error {
	_ = raw.SetDeadline(time.Now().Add(loginTime))
	signer, err := s.host()
	if err != nil {
		s.cfg.Log.Error("nobody can log in by SSH", "err", err)
		return err
	}
	conn, client, err := greet(raw)
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{
		Config:            client.algorithms(),
		ServerVersion:     version,
		MaxAuthTries:      maxAuthTries,
		PublicKeyCallback: s.authorize,
		BannerCallback:    s.banner,
	}
	config.AddHostKey(signer)
	peer, chans, reqs, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	if !s.room.stay(place) {
		_ = peer.Close()
		return errors.New("it gave way to another one")
	}
	if !s.ring.enter(raw, peer.Permissions.Extensions[extKey]) {
		_ = peer.Close()
		return errors.New("its key was taken away")
	}
	defer s.ring.leave(raw)
	_ = raw.SetDeadline(time.Time{})
	s.cfg.Log.Debug("an SSH connection logged in", "app", s.Name(), "client", string(peer.ClientVersion()))
	ctx, cancel := context.WithCancel(ctx)
	c := &connection{server: s, ssh: peer, ctx: ctx, cancel: cancel, free: make(chan struct{}, maxChannels),
		forwards: map[string]net.Listener{}}
	defer c.end()
	c.work.Go(func() { c.requests(reqs) })
	c.work.Go(c.keepAlive)
	for ch := range chans {
		c.open(ch)
	}
	return nil
}

// banner tells people who come under another name which one there is.
func (s *Server) banner(meta ssh.ConnMetadata) string {
	if meta.User() == s.cfg.Name {
		return ""
	}
	return fmt.Sprintf("A session has one user: log in as %s (ssh -l %s), not as %s.\r\n", s.cfg.Name, s.cfg.Name, printable(meta.User()))
}

func printable(name string) string { return fmt.Sprintf("%.64q", name) }

// connection is one client that has logged in.
type connection struct {
	server *Server
	ssh    *ssh.ServerConn
	ctx    context.Context
	cancel context.CancelFunc
	free   chan struct{} // holds one for each open channel
	work   sync.WaitGroup
	asking sync.Mutex // held while a socket for the key agent is made

	mu       sync.Mutex
	agent    string                  // file of the forwarded agent's socket
	forwards map[string]net.Listener // by the name that the client cancels them with
	ended    bool
}

// end closes everything that belongs to the connection and waits for it.
func (c *connection) end() {
	c.cancel()
	_ = c.ssh.Close()
	c.mu.Lock()
	c.ended = true
	for _, l := range c.forwards {
		_ = l.Close()
	}
	c.mu.Unlock()
	c.work.Wait()
}

// keepAlive moves a packet now and then, so that nobody on the way takes a quiet connection for a dead one. It asks for no answer:
// an answer would be bytes from the client, which is what counts as somebody using the session. That a client has vanished is
// seen by the TCP connection that it has, at the proxy.
func (c *connection) keepAlive() {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		if _, _, err := c.ssh.SendRequest("keepalive@openssh.com", false, nil); err != nil {
			return // the connection's end shows elsewhere
		}
	}
}

// requests serves what concerns the whole connection. It must not block: everything else waits for it.
func (c *connection) requests(reqs <-chan *ssh.Request) {
	for req := range reqs {
		var ok bool
		var reply []byte
		if !c.server.files {
			ok, reply = c.forwardRequest(req)
		}
		if req.WantReply {
			_ = req.Reply(ok, reply) // the connection's end shows elsewhere
		}
	}
}

// open serves a channel that the client asks for.
func (c *connection) open(ch ssh.NewChannel) {
	select {
	case c.free <- struct{}{}:
	default:
		_ = ch.Reject(ssh.ResourceShortage, fmt.Sprintf("%d channels are open already", maxChannels))
		return
	}
	c.work.Go(func() {
		defer func() { <-c.free }()
		defer c.survive(ch.ChannelType())
		switch kind := ch.ChannelType(); {
		case kind == "session":
			c.session(ch)
		case c.server.files:
			_ = ch.Reject(ssh.Prohibited, "this app serves files only: use app sshd")
		case kind == "direct-tcpip":
			c.directTCP(ch)
		case kind == "direct-streamlocal@openssh.com":
			c.directUnix(ch)
		default:
			_ = ch.Reject(ssh.UnknownChannelType, "this server has no channels of that kind")
		}
	})
}

// survive keeps what a client sent from ending PID 1.
func (c *connection) survive(doing string) {
	if p := recover(); p != nil {
		c.server.cfg.Log.Error("the SSH server broke down", "serving", doing, "panic", fmt.Sprint(p))
		_ = c.ssh.Close()
	}
}

// errEnded says that the client has left.
var errEnded = errors.New("the connection has ended")
