package service

import (
	"context"
	"io"
	"net/http"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Runner is the way to the process that serves a kernel. Requests are relative to the runner ("/v1/hello"); it is
// an http.RoundTripper that ignores scheme and host.
type Runner struct {
	Session *Session
	Kernel  Kernel
	streams Streams
}

// Runner authorises the actor to run code, checks that the session is RUNNING, counts the query and opens the way to
// the main kernel's runner.
func (s *Service) Runner(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (*Runner, error) {
	o, err := s.findToChange(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	v, err := s.loadSession(ctx, cluster.SessionID(o.ID))
	if err != nil {
		return nil, err
	}
	k := v.MainKernel()
	if v.Status != cluster.Running || k == nil || k.Agent == "" {
		return nil, notRunning(v.Name, "used")
	}
	if k.Status == cluster.Lost {
		return nil, fault.Unavailablef("the agent of session %s, %s, is lost", v.Name, k.Agent).WithNext("wait until it is back")
	}
	if s.d.Streams == nil {
		return nil, fault.Unavailablef("agent %s is not connected", k.Agent)
	}
	s.counts.add(v.AccessKey, v.ID)
	return &Runner{Session: v, Kernel: *k, streams: s.d.Streams}, nil
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
