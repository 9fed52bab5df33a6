// Package agents is the app proxy's way to apps: through the data ports of their agents, and over none but those.
package agents

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/tunnel"
)

const (
	// limit bounds one Dial, with everything in it.
	limit = 5 * time.Second
	// An agent that restarts is back in a moment: its visitors wait rather than see an error.
	restartWait = 2 * time.Second
	retryEvery  = 50 * time.Millisecond
	// maxSessions bounds the TLS sessions kept, one for every agent.
	maxSessions = 1024
	maxWarned   = 1024
)

// Options are what a Dialer needs.
type Options struct {
	Member *membership.Member // nil means no way to other hosts
	// BootID is this host's (chassis.BootID); "" means no way over unix sockets.
	BootID string
	Log    *slog.Logger
	Clock  chassis.Clock
}

// Dialer connects to apps. It is safe for concurrent use.
type Dialer struct {
	o        Options
	dialer   net.Dialer
	sessions tls.ClientSessionCache

	mu     sync.Mutex
	warned map[string]bool // sockets of this host that cannot be opened
}

// New returns a Dialer; it holds nothing that needs closing.
func New(o Options) *Dialer {
	return &Dialer{o: o, sessions: tls.NewLRUClientSessionCache(maxSessions), warned: map[string]bool{},
		dialer: net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}}}
}

// Dial connects to a target of a circuit, within 5 s: over the agent's socket when it runs on this host, which gives the
// app's own connection, else with mTLS to its address. It shows the target's grant. ctx bounds the opening only. Errors are
// faults with words for visitors.
func (d *Dialer) Dial(ctx context.Context, c *circuit.Circuit, t proxy.Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := d.reach(ctx, t.Agent)
	if err != nil {
		var f *fault.Error
		switch {
		case errors.As(err, &f):
			return nil, err
		case ctx.Err() != nil:
			return nil, fault.New(fault.Timeout, "the host of session %s does not answer", c.Name).WithReason("agent-unreachable").WithCause(err).
				WithNext("try again in a moment; if it stays so, tell your administrator about agent %s", t.Agent.ID)
		}
		return nil, fault.Unavailablef("the host of session %s cannot be reached", c.Name).WithReason("agent-unreachable").WithCause(err).
			WithNext("try again in a moment; if it stays so, tell your administrator about agent %s", t.Agent.ID)
	}
	header := http.Header{}
	if t.Grant != "" { // managers of version 2 give none
		header.Set(proxy.HeaderGrant, t.Grant)
	}
	return tunnel.Open(ctx, conn, fmt.Sprintf("/kernels/%s/ports/%d", t.Kernel, t.Port), header)
}

// reach connects to an agent's data port; its errors are plain but for those that no retry heals.
func (d *Dialer) reach(ctx context.Context, a proxy.AgentAddress) (net.Conn, error) {
	local := a.Socket != "" && d.o.BootID != "" && a.BootID == d.o.BootID && node.DataSocket(a.Socket)
	if !local && a.Address == "" {
		return nil, fault.Unavailablef("agent %s tells no way to its sessions' apps", a.ID).WithReason("agent-unreachable").
			WithNext("tell your administrator: agent.data_listen of agent %s is off, or its host has just started", a.ID)
	}
	began := d.o.Clock.Now()
	for {
		conn, err := d.once(ctx, a, local)
		if err == nil || !restarting(err) || d.o.Clock.Now().Sub(began) > restartWait {
			return conn, err
		}
		if werr := chassis.Wait(ctx, d.o.Clock, retryEvery); werr != nil {
			return nil, err
		}
	}
}

// restarting reports whether err may be that of an agent which is just being started: nobody listens yet.
func restarting(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

func (d *Dialer) once(ctx context.Context, a proxy.AgentAddress, local bool) (net.Conn, error) {
	var lerr error
	if local {
		conn, err := chassis.DialUnix(ctx, a.Socket)
		if err == nil {
			return conn, nil
		}
		lerr = fmt.Errorf("open the data socket of agent %s: %w", a.ID, err)
		if a.Address == "" || d.o.Member == nil {
			return nil, lerr
		}
		if !restarting(err) {
			d.warn(a, err)
		}
	}
	if d.o.Member == nil {
		return nil, fault.Unavailablef("this app proxy has no way to other hosts").WithReason("agent-unreachable")
	}
	conf, err := d.o.Member.DialTLS(string(a.ID), node.ALPNData, d.sessions)
	if err != nil {
		return nil, err
	}
	raw, err := d.dialer.DialContext(ctx, "tcp", a.Address)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to agent %s: %w", a.ID, err), lerr)
	}
	conn := tls.Client(raw, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		d.sessions.Put(string(a.ID), nil) // it may be of an earlier membership
		if ctx.Err() != nil || fault.KindOf(err) == fault.Internal {
			return nil, fmt.Errorf("shake hands with agent %s at %s: %w", a.ID, a.Address, err)
		}
		return nil, fault.Unavailablef("what answers at the address of agent %s is not that agent", a.ID).WithReason("agent-unreachable").
			WithCause(err).
			WithNext("tell your administrator: agent.data_advertise of agent %s may be wrong", a.ID)
	}
	return conn, nil
}

// warn tells once that a socket of this host is out of reach.
func (d *Dialer) warn(a proxy.AgentAddress, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.warned[a.Socket] {
		return
	}
	if len(d.warned) >= maxWarned {
		clear(d.warned)
	}
	d.warned[a.Socket] = true
	d.o.Log.Warn("the data socket of an agent on this host cannot be opened; its apps are reached over TCP", "agent", a.ID, "socket",
		a.Socket, "err", err,
		"next", "run the app proxy as the agent's user")
}
