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

// Logs opens the log of a kernel ("" is the main kernel), live from its agent or the kept end of it.
// With follow it goes on until the container ends. The caller closes it.
func (s *Service) Logs(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, kernel cluster.KernelID,
	follow bool) (io.ReadCloser, error) {
	o, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	v, err := s.loadSession(ctx, cluster.SessionID(o.ID))
	if err != nil {
		return nil, err
	}
	k := v.MainKernel()
	if kernel != "" {
		k = nil
		for i := range v.Kernels {
			if v.Kernels[i].ID == kernel {
				k = &v.Kernels[i]
			}
		}
	}
	if k == nil {
		return nil, authz.NotFound("kernel", string(kernel))
	}
	if k.Agent != "" && !k.Status.Final() && k.Status != cluster.Pending && s.d.Streams != nil {
		r, err := s.liveLogs(ctx, *k, follow)
		if err == nil {
			return r, nil
		}
		if !fault.Is(err, fault.NotFound) {
			return nil, fmt.Errorf("read the log of kernel %s: %w", k.ID, err)
		}
		// The container is not there yet, or no more.
	}
	row, err := s.d.Store.KernelLog(ctx, string(k.ID))
	if err != nil {
		return nil, fmt.Errorf("read the kept log of kernel %s: %w", k.ID, err)
	}
	text := ""
	if row.Log != nil {
		text = *row.Log
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

func (s *Service) liveLogs(ctx context.Context, k Kernel, follow bool) (io.ReadCloser, error) {
	url := "http://agent/kernels/" + string(k.ID) + "/logs"
	if follow {
		url += "?follow=true"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.d.Streams.RoundTrip(k.Agent, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	return nil, agentError(resp)
}

// agentError makes a fault of an agent's refusal.
func agentError(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	kind := fault.Unavailable
	switch resp.StatusCode {
	case http.StatusNotFound:
		kind = fault.NotFound
	case http.StatusConflict:
		kind = fault.Conflict
	case http.StatusBadRequest:
		kind = fault.Invalid
	}
	return fault.New(kind, "the agent answered %s: %s", resp.Status, strings.TrimSpace(string(text)))
}
