package service

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

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
// the main kernel's runner.
func (s *Service) Runner(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (*Runner, error) {
	o, err := s.findToChange(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	// Every cell passes here, so only what is needed is read.
	kernels, err := s.d.Store.KernelViews(ctx, []string{o.ID}, []string{})
	if err != nil {
		return nil, fmt.Errorf("read kernels of session %s: %w", o.Name, err)
	}
	if o.Status != cluster.Running || len(kernels) == 0 {
		return nil, notRunning(o.Name, "used")
	}
	k := kernelView(kernels[0]) // ordered by rank: the main kernel
	switch {
	case k.Agent == "":
		return nil, notRunning(o.Name, "used")
	case k.Status == cluster.Lost:
		return nil, fault.Unavailablef("the agent of session %s, %s, is lost", o.Name, k.Agent).WithNext("wait until it is back")
	}
	if s.d.Streams == nil {
		return nil, fault.Unavailablef("agent %s is not connected", k.Agent)
	}
	s.counts.add(cluster.AccessKey(o.AccessKey), k.SessionID)
	return &Runner{Kernel: k, streams: s.d.Streams}, nil
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
