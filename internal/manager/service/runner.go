package service

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Runner is the way to the process that serves a kernel. Requests are relative to the runner ("/v1/hello"); it is
// an http.RoundTripper that ignores scheme and host.
type Runner struct {
	Kernel  Kernel
	streams Streams
}

// Runner authorises the actor to run code, checks that the session is RUNNING, counts the query and opens the way to
// the main kernel's runner. Every cell passes here, so the answer is remembered for a moment; see routes.
func (s *Service) Runner(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (*Runner, error) {
	key := routeKey{a.AccessKey, ref, owner}
	r, turn, ok := s.routes.find(key, s.d.Clock())
	if !ok {
		var err error
		if r, err = s.findRoute(ctx, a, ref, owner); err != nil {
			return nil, err
		}
		s.routes.keep(key, r, turn, s.d.Clock())
	}
	if s.d.Streams == nil {
		return nil, fault.Unavailablef("agent %s is not connected", r.kernel.Agent)
	}
	s.counts.add(r.owner, r.kernel.SessionID)
	return &Runner{Kernel: r.kernel, streams: s.d.Streams}, nil
}

func (s *Service) findRoute(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (route, error) {
	o, err := s.findToChange(ctx, a, ref, owner)
	if err != nil {
		return route{}, err
	}
	kernels, err := s.d.Store.KernelViews(ctx, []string{o.ID}, []string{})
	if err != nil {
		return route{}, fmt.Errorf("read kernels of session %s: %w", o.Name, err)
	}
	if o.Status != cluster.Running || len(kernels) == 0 {
		return route{}, notRunning(o.Name, "used")
	}
	k := kernelView(kernels[0]) // ordered by rank: the main kernel
	switch {
	case k.Agent == "":
		return route{}, notRunning(o.Name, "used")
	case k.Status == cluster.Lost:
		return route{}, fault.Unavailablef("the agent of session %s, %s, is lost", o.Name, k.Agent).WithNext("wait until it is back")
	}
	return route{kernel: k, owner: cluster.AccessKey(o.AccessKey)}, nil
}

const (
	// routeMemory bounds how long a decision about a way to a runner is believed without hearing of a change.
	routeMemory = time.Second
	maxRoutes   = 1000
)

type routeKey struct {
	actor cluster.AccessKey
	ref   string
	owner cluster.AccessKey
}

type route struct {
	kernel  Kernel
	owner   cluster.AccessKey
	expires time.Time
}

// routes remembers the ways to runners. The hub makes it forget a session as soon as it hears that the session changed;
// the agent itself refuses what it does not run, so a belief that is a moment too old harms nothing.
type routes struct {
	mu    sync.Mutex
	known map[routeKey]route
	// turn counts what was forgotten: an answer that was read before a change must not be kept after it.
	turn int64
}

func (c *routes) find(key routeKey, now time.Time) (r route, turn int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok = c.known[key]
	return r, c.turn, ok && now.Before(r.expires)
}

func (c *routes) keep(key routeKey, r route, turn int64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if turn != c.turn {
		return
	}
	if c.known == nil || len(c.known) >= maxRoutes {
		c.known = map[routeKey]route{}
	}
	r.expires = now.Add(routeMemory)
	c.known[key] = r
}

// forget drops what is known of a session, or of all with "".
func (c *routes) forget(id cluster.SessionID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn++
	for key, r := range c.known {
		if id == "" || r.kernel.SessionID == id {
			delete(c.known, key)
		}
	}
}

// base is the runner's place on its agent's stream connection.
func (r *Runner) base() string { return "/kernels/" + string(r.Kernel.ID) + "/runner" }

// RoundTrip sends the request to /kernels/<id>/runner<path> on the kernel's agent.
func (r *Runner) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host, out.Host = "http", "agent", "agent"
	out.URL.Path = r.base() + "/" + strings.TrimPrefix(req.URL.Path, "/")
	if req.URL.RawPath != "" {
		out.URL.RawPath = r.base() + "/" + strings.TrimPrefix(req.URL.RawPath, "/")
	}
	out.RequestURI = ""
	return r.streams.RoundTrip(r.Kernel.Agent, out)
}

// Upgrade opens a full-duplex stream to the runner.
func (r *Runner) Upgrade(ctx context.Context, path string, header http.Header) (io.ReadWriteCloser, error) {
	return r.streams.Upgrade(ctx, r.Kernel.Agent, r.base()+"/"+strings.TrimPrefix(path, "/"), header)
}
