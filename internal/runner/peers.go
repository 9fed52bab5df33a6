package runner

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/peer"
	"berth.dev/berth/internal/runner/sshd"
	"berth.dev/berth/internal/wire/run"
)

// peers are the other kernels of the session: who they are, and the SSH server for them.
type peers struct {
	r      *Runner
	client peer.Client
	server *sshd.Server

	running chan struct{} // closed when all kernels of the session run

	mu     sync.Mutex
	list   []peer.Peer
	own    netip.Addr
	listen net.Listener
	closed bool
	begun  bool // running is closed
	wait   sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

// maxPeerConns bounds the connections of the session's kernels that are being accepted or served.
const maxPeerConns = 256

// newPeers prepares the keys; nil where the kernel is the only one of its session.
func (r *Runner) newPeers() (*peers, error) {
	c := r.cfg.Peers
	if c == nil {
		return nil, nil
	}
	keys, err := sshd.KeysOf(c.Secret)
	if err != nil {
		return nil, err
	}
	p := &peers{r: r, server: r.ssh.Among(keys), running: make(chan struct{}), client: peer.Client{File: c.ClientConfig,
		KnownHosts: filepath.Join(r.libDir(), "ssh_known_hosts"), Identity: filepath.Join(r.userDir(), "id_cluster"),
		User: r.cfg.User.Name, Port: c.Port}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if err := p.client.Keys(keys.Private, string(ssh.MarshalAuthorizedKey(keys.Host.PublicKey())), r.user); err != nil {
		r.log.Warn("programs in this kernel cannot log in to the session's other kernels", "err", err)
	}
	return p, nil
}

// servePeers takes who the session's kernels are, and whether all of them run.
func (r *Runner) servePeers(q *http.Request) (run.PeersResult, error) {
	if r.peers == nil {
		return run.PeersResult{}, fault.Invalidf("this kernel is the only one of its session")
	}
	var req run.PeersRequest
	if err := readJSON(q, &req); err != nil {
		return run.PeersResult{}, err
	}
	list, err := peer.Parse(req.Peers)
	if err != nil {
		return run.PeersResult{}, err
	}
	return r.peers.set(list, req.Running)
}

// set writes the names, moves the SSH server to the kernel's address, and lets the session's commands begin. Without the names they do
// not; without SSH they do, and the log says why it lacks.
func (p *peers) set(list []peer.Peer, running bool) (run.PeersResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return run.PeersResult{}, fault.Unavailablef("the runner ends")
	}
	if err := peer.Hosts(p.r.cfg.Peers.Hosts, list); err != nil {
		return run.PeersResult{}, err
	}
	if err := p.client.Configure(list); err != nil {
		p.r.log.Warn("the SSH client of this kernel does not know the session's other kernels", "err", err)
	}
	p.list = list
	var own netip.Addr
	if i := slices.IndexFunc(list, func(k peer.Peer) bool { return k.Name == p.r.cfg.Peers.Name }); i >= 0 {
		own = list[i].Address
	}
	if own != p.own || p.listen == nil {
		if err := p.move(own); err != nil {
			p.r.log.Warn("the session's other kernels cannot log in to this one", "err", err)
		}
	}
	if running && !p.begun {
		p.begun = true
		close(p.running)
	}
	return run.PeersResult{Running: p.begun}, nil
}

// move listens at another address. It may come to the kernel later than it is known.
func (p *peers) move(to netip.Addr) error {
	if p.listen != nil {
		_ = p.listen.Close()
		p.listen = nil
	}
	p.own = to
	if !to.IsValid() {
		return nil
	}
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var serr error
		err := raw.Control(func(fd uintptr) {
			if to.Is4() {
				serr = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_FREEBIND, 1)
			} else {
				serr = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, ipv6FreeBind, 1)
			}
		})
		if err == nil {
			err = serr
		}
		return err
	}}
	l, err := c.Listen(p.ctx, "tcp", netip.AddrPortFrom(to, uint16(p.r.cfg.Peers.Port)).String())
	if err != nil {
		return fmt.Errorf("listen for the session's kernels: %w", err)
	}
	p.listen = l
	p.wait.Go(func() { p.accept(l) })
	return nil
}

// ipv6FreeBind is IPV6_FREEBIND, which package syscall does not name.
const ipv6FreeBind = 78

// accept serves the session's kernels and nobody else, until the listener is closed.
func (p *peers) accept(l net.Listener) {
	free := make(chan struct{}, maxPeerConns)
	for {
		conn, err := l.Accept()
		if err != nil {
			if p.ctx.Err() == nil && !p.current(l) {
				return
			}
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond): // no descriptors, say
				continue
			}
		}
		select {
		case free <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		p.wait.Go(func() {
			defer func() { <-free }()
			defer conn.Close()
			defer func() {
				if e := recover(); e != nil { // PID 1 must not end by what a client sent
					p.r.log.Error("the SSH server for the session's kernels broke down", "panic", fmt.Sprint(e))
				}
			}()
			if p.knows(conn.RemoteAddr()) {
				p.server.Serve(p.ctx, conn)
			}
		})
	}
}

func (p *peers) current(l net.Listener) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listen == l
}

// knows reports whether an address is that of a kernel of the session.
func (p *peers) knows(a net.Addr) bool {
	from, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.list, func(k peer.Peer) bool { return k.Address == from.Addr().Unmap() })
}

// close ends all connections and waits until their servers have ended.
func (p *peers) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.closed = true
	p.cancel()
	if p.listen != nil {
		_ = p.listen.Close()
		p.listen = nil
	}
	p.mu.Unlock()
	p.wait.Wait()
}

// awaitPeers waits until all kernels of the session run. It reports false when they do not in time, or the runner ends.
func (r *Runner) awaitPeers(ctx context.Context) bool {
	if r.peers == nil {
		return ctx.Err() == nil
	}
	limit := time.Duration(r.cfg.Peers.WaitMS) * time.Millisecond
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-r.peers.running:
		return true
	case <-ctx.Done():
	case <-t.C:
		r.log.Error("the session's other kernels did not run in time; nothing of the session's was started here", "waited", limit)
	}
	return false
}
