// Package runners reaches the runners, PID 1 of every container, for everything in the
// agent that talks to them: the keeper's greeting and the streams of the manager.
//
// All kernels share one transport that keeps idle connections, so that a code cell pays
// for no connect; the address of a request is its kernel's id, never anything a caller says.
package runners

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

// Dial connects to one kernel's runner.
type Dial func(ctx context.Context, kernel cluster.KernelID) (net.Conn, error)

// Pool is a transport to all runners of the agent. Every runner has a transport of its own
// inside, so that an end closes what was kept open to it.
type Pool struct {
	dial Dial

	mu    sync.Mutex
	hosts map[string]*http.Transport
}

// New returns a pool; nothing is dialed yet.
func New(dial Dial) *Pool { return &Pool{dial: dial, hosts: map[string]*http.Transport{}} }

// RoundTrip sends a request whose host was made by Host.
func (p *Pool) RoundTrip(r *http.Request) (*http.Response, error) {
	t, err := p.transport(r.URL.Host)
	if err != nil {
		return nil, err
	}
	return t.RoundTrip(r)
}

func (p *Pool) transport(host string) (*http.Transport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.hosts[host]; t != nil {
		return t, nil
	}
	name, _, _ := strings.Cut(host, ".")
	id, ok := cluster.CanonicalUUID(name)
	if !ok || id != name {
		return nil, errors.New("not a kernel: " + host)
	}
	t := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, cluster.KernelID(id)) },
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
		// No timeout for the reply: a step may wait long, and its caller has the deadline.
		DisableCompression: true,
	}
	p.hosts[host] = t
	return t, nil
}

// Forget closes the idle connections to a runner that is gone.
func (p *Pool) Forget(kernel cluster.KernelID, generation int64) {
	host := Host(kernel, generation)
	p.mu.Lock()
	t := p.hosts[host]
	delete(p.hosts, host)
	p.mu.Unlock()
	if t != nil {
		t.CloseIdleConnections()
	}
}

// Host names a kernel's runner in this pool. The generation is part of it, so that no
// idle connection to the runner of an earlier one is used again.
func Host(kernel cluster.KernelID, generation int64) string {
	return string(kernel) + ".g" + strconv.FormatInt(generation, 10)
}

// Client returns a client of one kernel's runner; it needs no closing.
func (p *Pool) Client(kernel cluster.KernelID, generation int64, token string) *run.Client {
	return run.NewClient(run.Options{Transport: p, BaseURL: "http://" + Host(kernel, generation), Token: token})
}

// Hello greets a runner.
func (p *Pool) Hello(ctx context.Context, kernel cluster.KernelID, generation int64, token string) (run.Hello, error) {
	return p.Client(kernel, generation, token).Hello(ctx)
}

// callLimit bounds short calls of runners.
const callLimit = 5 * time.Second

// once is a client whose connection is not kept: its calls are rare.
func (p *Pool) once(kernel cluster.KernelID, token string) *run.Client {
	t := &http.Transport{DisableKeepAlives: true, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.dial(ctx, kernel) }}
	return run.NewClient(run.Options{Transport: t, Token: token})
}

// SetKeys tells a runner which SSH keys log in.
func (p *Pool) SetKeys(ctx context.Context, kernel cluster.KernelID, token string, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := p.once(kernel, token).SetKeys(ctx, keys)
	return err
}

// SetPeers tells a runner who the kernels of its session are.
func (p *Pool) SetPeers(ctx context.Context, kernel cluster.KernelID, token string, req run.PeersRequest) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := p.once(kernel, token).SetPeers(ctx, req)
	return err
}

// Notice shows a text on the terminals of a kernel.
func (p *Pool) Notice(ctx context.Context, kernel cluster.KernelID, token, text string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return p.once(kernel, token).Notice(ctx, text)
}

// Close drops idle connections.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.hosts {
		t.CloseIdleConnections()
	}
}
