package sshd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"berth.dev/berth/internal/runner/proc"
)

// dialTime is how long what listens in the container may take to accept.
const dialTime = 5 * time.Second

// loopbacks returns the addresses that a name of the container's own means, in the order to try; none for other hosts.
func loopbacks(host string) []string {
	if strings.EqualFold(host, "localhost") {
		return []string{"127.0.0.1", "::1"}
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil && a.Unmap().IsLoopback() {
		return []string{a.Unmap().String()}
	}
	return nil
}

// directTCP connects the client to a port of the container. Other hosts are for the session's own programs to reach.
func (c *connection) directTCP(nc ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if ssh.Unmarshal(nc.ExtraData(), &to) != nil || to.Port == 0 || to.Port > 65535 {
		_ = nc.Reject(ssh.ConnectionFailed, "the request cannot be understood")
		return
	}
	addresses := loopbacks(to.Host)
	if addresses == nil {
		_ = nc.Reject(ssh.Prohibited, "only ports of the session itself are forwarded: use localhost as the host")
		return
	}
	var conn net.Conn
	var err error
	for _, a := range addresses {
		d := net.Dialer{Timeout: dialTime, KeepAlive: -1}
		if conn, err = d.DialContext(c.ctx, "tcp", net.JoinHostPort(a, strconv.Itoa(int(to.Port)))); err == nil {
			break
		}
	}
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, fmt.Sprintf("nothing in the session accepts connections on port %d", to.Port))
		return
	}
	c.accept(nc, conn)
}

// directUnix connects the client to a socket in the container's file system, as the session's user.
func (c *connection) directUnix(nc ssh.NewChannel) {
	var to struct {
		Path     string
		Reserved string
		Unused   uint32
	}
	if ssh.Unmarshal(nc.ExtraData(), &to) != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "the request cannot be understood")
		return
	}
	var conn net.Conn
	err := proc.AsPeer(c.server.cfg.User, func() (err error) {
		conn, err = (&net.Dialer{Timeout: dialTime}).DialContext(c.ctx, "unix", to.Path)
		return err
	})
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "the socket cannot be reached: "+cause(err))
		return
	}
	c.accept(nc, conn)
}

func cause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

func (c *connection) accept(nc ssh.NewChannel, conn net.Conn) {
	ch, reqs, err := nc.Accept()
	if err != nil {
		_ = conn.Close()
		return
	}
	c.join(ch, reqs, conn)
}

// join copies bytes both ways until both directions have ended, or the client has left.
func (c *connection) join(ch ssh.Channel, reqs <-chan *ssh.Request, conn net.Conn) {
	sent := make(chan struct{})
	c.work.Go(func() {
		ssh.DiscardRequests(reqs) // until the channel is closed: nobody reads any more, but what was sent before is to arrive
		select {
		case <-sent:
		case <-c.ctx.Done():
		}
		_ = conn.Close()
	})
	go func() {
		defer close(sent)
		_, err := io.CopyBuffer(writer{conn}, reader{ch}, make([]byte, 2*chunk))
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite() // the other side may be gone
			return
		}
		_ = conn.Close()
	}()
	_, err := io.CopyBuffer(writer{ch}, reader{conn}, make([]byte, 2*chunk))
	if err == nil {
		_ = ch.CloseWrite()
		<-sent
	}
	_ = ch.Close()
	_ = conn.Close()
	<-sent
}

// forwardRequest serves the requests for listeners in the container whose connections go to the client.
func (c *connection) forwardRequest(req *ssh.Request) (ok bool, reply []byte) {
	switch req.Type {
	case "tcpip-forward", "cancel-tcpip-forward":
		var v struct {
			Host string
			Port uint32
		}
		if ssh.Unmarshal(req.Payload, &v) != nil || v.Port > 65535 {
			return false, nil
		}
		if req.Type == "cancel-tcpip-forward" {
			return c.cancelForward("tcp " + v.Host + " " + strconv.Itoa(int(v.Port))), nil
		}
		if v.Port != 0 && v.Port < 1024 && c.server.cfg.User != nil && c.server.cfg.User.UID != 0 {
			return false, nil // as everywhere, the small ones are root's
		}
		host := "127.0.0.1" // whatever address was asked for: nobody outside the session is to reach it
		if v.Host == "::1" {
			host = v.Host
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(v.Port))))
		if err != nil {
			return false, nil
		}
		bound := uint32(l.Addr().(*net.TCPAddr).Port)
		if v.Port == 0 {
			reply = ssh.Marshal(struct{ Port uint32 }{bound})
		}
		return c.listen("tcp "+v.Host+" "+strconv.Itoa(int(bound)), l, "forwarded-tcpip", func(conn net.Conn) []byte {
			origin, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
			return ssh.Marshal(struct {
				Host       string
				Port       uint32
				OriginHost string
				OriginPort uint32
			}{v.Host, bound, origin.Addr().String(), uint32(origin.Port())})
		}), reply
	case "streamlocal-forward@openssh.com", "cancel-streamlocal-forward@openssh.com":
		var v struct{ Path string }
		if ssh.Unmarshal(req.Payload, &v) != nil || v.Path == "" || v.Path[0] == '@' || v.Path[0] == 0 {
			return false, nil
		}
		if req.Type == "cancel-streamlocal-forward@openssh.com" {
			return c.cancelForward("unix " + v.Path), nil
		}
		l, err := c.listenUnix(v.Path)
		if err != nil {
			return false, nil
		}
		return c.listen("unix "+v.Path, l, "forwarded-streamlocal@openssh.com", func(net.Conn) []byte {
			return ssh.Marshal(struct{ Path, Reserved string }{v.Path, ""})
		}), nil
	}
	return false, nil
}

// ownSocket removes its file, as the user, when it is closed.
type ownSocket struct {
	net.Listener
	file string
	user *proc.Credential
}

func (o ownSocket) Close() error {
	err := o.Listener.Close()
	_ = proc.AsUser(o.user, func() error { return os.Remove(o.file) })
	return err
}

// listenUnix makes a socket that only the user can reach.
func (c *connection) listenUnix(file string) (net.Listener, error) {
	user := c.server.cfg.User
	var l net.Listener
	err := proc.AsPeer(user, func() (err error) {
		if l, err = net.Listen("unix", file); err != nil {
			return err
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false) // it would happen with the runner's rights
		return os.Chmod(file, 0o600)
	})
	if err != nil {
		if l != nil {
			_ = l.Close()
		}
		return nil, err
	}
	return ownSocket{Listener: l, file: file, user: user}, nil
}

// listen hands a listener's connections to the client until it is cancelled.
func (c *connection) listen(name string, l net.Listener, kind string, describe func(net.Conn) []byte) bool {
	c.mu.Lock()
	if c.ended || len(c.forwards) >= maxForwards || c.forwards[name] != nil {
		c.mu.Unlock()
		_ = l.Close()
		return false
	}
	c.forwards[name] = l
	c.mu.Unlock()
	c.work.Go(func() {
		err := acceptEach(c.ctx, l, func(conn net.Conn) {
			select {
			case c.free <- struct{}{}:
			default:
				_ = conn.Close()
				return
			}
			c.work.Go(func() {
				defer func() { <-c.free }()
				defer c.survive(kind)
				defer conn.Close()
				ch, reqs, err := c.ssh.OpenChannel(kind, describe(conn))
				if err == nil {
					c.join(ch, reqs, conn)
				}
			})
		})
		c.lost(name, l, err)
	})
	return true
}

// The pauses after a connection that could not be accepted.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

// acceptEach gives a listener's connections to take until it is closed, cannot accept any more, or ctx ends. What only lacks
// for the moment (descriptors, memory) is waited for.
func acceptEach(ctx context.Context, l net.Listener, take func(net.Conn)) error {
	pause := firstPause
	for {
		conn, err := l.Accept()
		if err == nil {
			pause = firstPause
			take(conn)
			continue
		}
		if !passes(err) {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		pause = min(2*pause, lastPause)
	}
}

// passes reports whether accept failed for a reason that goes away by itself: something was lacking, or the one connection
// that was to be accepted has broken.
func passes(err error) bool {
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EINTR, syscall.EAGAIN,
		syscall.ECONNABORTED, syscall.ECONNRESET,
		syscall.EPROTO, syscall.EPERM, syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENONET,
		syscall.ENOPROTOOPT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// lost takes a listener away that accepts no more, so that the client may ask for it again.
func (c *connection) lost(name string, l net.Listener, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.ctx.Err() != nil || c.forwards[name] != l {
		return // it was closed on purpose, or end does that
	}
	delete(c.forwards, name)
	if name == agentForward {
		c.agent = ""
	}
	_ = l.Close()
	c.server.cfg.Log.Warn("a forwarded listener has ended", "listener", name, "err", err)
}

func (c *connection) cancelForward(name string) bool {
	c.mu.Lock()
	l := c.forwards[name]
	delete(c.forwards, name)
	c.mu.Unlock()
	return l != nil && l.Close() == nil
}

// agentForward names the listener for the key agent among the others.
const agentForward = "agent"

// forwardAgent makes a socket whose connections reach the client's key agent. All sessions of the connection share it.
func (c *connection) forwardAgent() error {
	c.asking.Lock()
	defer c.asking.Unlock()
	c.mu.Lock()
	made := c.agent != ""
	c.mu.Unlock()
	if made {
		return nil
	}
	file := filepath.Join(c.server.cfg.Sockets, "agent-"+rand.Text()[:12])
	l, err := c.listenUnix(file)
	if err != nil {
		c.server.cfg.Log.Warn("a key agent cannot be forwarded", "err", err)
		return err
	}
	if !c.listen(agentForward, l, "auth-agent@openssh.com", func(net.Conn) []byte { return nil }) {
		return errEnded
	}
	c.mu.Lock()
	c.agent = file
	c.mu.Unlock()
	return nil
}

// agentEnv names the forwarded agent to commands.
func (c *connection) agentEnv() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.agent == "" {
		return nil
	}
	return []string{"SSH_AUTH_SOCK=" + c.agent}
}
