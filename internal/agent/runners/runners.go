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
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

// Dial connects to one kernel's runner.
type Dial func(ctx context.Context, kernel cluster.KernelID) (net.Conn, error)

// Pool is a transport to all runners of the agent.
type Pool struct{ transport *http.Transport }

// New returns a pool; nothing is dialed yet.
func New(dial Dial) *Pool {
	return &Pool{&http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, _ := strings.Cut(addr, ".")
			id, ok := cluster.CanonicalUUID(host)
			if !ok || id != host {
				return nil, errors.New("not a kernel: " + host)
			}
			return dial(ctx, cluster.KernelID(id))
		},
		MaxIdleConns: 1024, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
		ResponseHeaderTimeout: 0, // a step may wait long; its caller has the deadline
		DisableCompression:    true,
		WriteBufferSize:       8 << 10, ReadBufferSize: 8 << 10,
	}}
}

// RoundTrip sends a request whose host is a kernel's id.
func (p *Pool) RoundTrip(r *http.Request) (*http.Response, error) { return p.transport.RoundTrip(r) }

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

// Close drops idle connections.
func (p *Pool) Close() { p.transport.CloseIdleConnections() }
