package session

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// Runner is the way to the process that serves a kernel. Requests are relative to the runner ("/v1/hello"); it is
// an http.RoundTripper that ignores scheme and host.
type Runner struct {
	Kernel  Kernel
	streams Streams
	// hold counts the session as used until release.
	hold func() (release func())
}

// LookAtRunner is the way to a kernel's runner for questions of the manager itself: they do not count as use of the session.
func LookAtRunner(streams Streams, agent cluster.AgentID, kernel cluster.KernelID) *Runner {
	return &Runner{Kernel: Kernel{ID: kernel, Agent: agent}, streams: streams, hold: func() func() { return func() {} }}
}

// Runner authorises the actor to run code, checks that the session is RUNNING, counts the query and opens the way to
// the main kernel's runner, or with a reference SESSION:KERNEL to that of another kernel, by its name in the session or its id. Every cell
// passes here, so the answer is remembered for a moment.
func (s *Service) Runner(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (*Runner, error) {
	key := routeKey{a.AccessKey, tokenOf(a), ref, owner}
	r, turn, ok := s.routes.Find(key, s.d.Clock())
	if !ok {
		var err error
		if r, err = s.findRoute(ctx, a, ref, owner); err != nil {
			return nil, err
		}
		s.routes.Keep(key, r, turn, s.d.Clock())
	}
	if s.d.Streams == nil {
		return nil, fault.Unavailablef("agent %s is not connected", r.kernel.Agent)
	}
	s.counts.add(r.owner, r.kernel.SessionID)
	id := r.kernel.SessionID
	s.uses.Touch(id, s.d.Clock())
	return &Runner{Kernel: r.kernel, streams: s.d.Streams, hold: func() func() { return s.uses.Hold(id, s.d.Clock) }}, nil
}

func (s *Service) findRoute(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (route, error) {
	ref, name, _ := strings.Cut(ref, ":") // neither names nor ids of sessions have a colon
	o, err := s.Changeable(ctx, a, ref, owner)
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
	views := make([]Kernel, len(kernels))
	for i, k := range kernels {
		views[i] = kernelView(k)
	}
	k, err := kernelOf(views, name, o.Name)
	if err != nil {
		return route{}, err
	}
	switch {
	case k.Agent == "":
		return route{}, notRunning(o.Name, "used")
	case k.Status == cluster.Lost:
		return route{}, fault.Unavailablef("the agent of session %s, %s, is lost", o.Name, k.Agent).WithNext("wait until it is back")
	}
	return route{kernel: k, owner: cluster.AccessKey(o.AccessKey)}, nil
}

// kernelOf finds a kernel of a session by its name in the session or its id; "" is the main kernel. kernels are in the order of their ranks
// and not empty.
func kernelOf(kernels []Kernel, name, session string) (Kernel, error) {
	if name == "" {
		return kernels[0], nil
	}
	var names []string
	for _, k := range kernels {
		if k.ClusterHostname == name || string(k.ID) == name {
			return k, nil
		}
		names = append(names, k.ClusterHostname)
	}
	if more := len(names) - 20; more > 0 {
		names = append(names[:20], fmt.Sprintf("and %d more", more))
	}
	return Kernel{}, fault.NotFoundf("session %s has no kernel %.64q", session, name).WithNext("name one of %s", strings.Join(names, ", "))
}

type routeKey struct {
	actor cluster.AccessKey
	token string // the actor's, whose scope may allow less
	ref   string
	owner cluster.AccessKey
}

func tokenOf(a authz.Actor) string {
	if a.Scope == nil {
		return ""
	}
	return a.Scope.Token
}

type route struct {
	kernel Kernel
	owner  cluster.AccessKey
}

// forgetRoutes drops the ways to the runners of a session, or all with "". The agent itself refuses what it does not run,
// so a belief that is a moment too old harms nothing.
func (s *Service) forgetRoutes(id cluster.SessionID) {
	if id == "" {
		s.routes.Forget(nil)
		return
	}
	s.routes.Forget(func(_ routeKey, r route) bool { return r.kernel.SessionID == id })
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
	release := r.hold()
	resp, err := r.streams.RoundTrip(r.Kernel.Agent, out)
	if err != nil {
		release()
		return nil, err
	}
	resp.Body = &usedBody{ReadCloser: resp.Body, release: release}
	return resp, nil
}

// Upgrade opens a full-duplex stream to the runner.
func (r *Runner) Upgrade(ctx context.Context, path string, header http.Header) (io.ReadWriteCloser, error) {
	release := r.hold()
	stream, err := r.streams.Upgrade(ctx, r.Kernel.Agent, r.base()+"/"+strings.TrimPrefix(path, "/"), header)
	if err != nil {
		release()
		return nil, err
	}
	return &usedStream{ReadWriteCloser: stream, release: release}, nil
}
