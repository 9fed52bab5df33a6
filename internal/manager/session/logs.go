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

// LogOptions say which log is read, and which part of it.
type LogOptions struct {
	Kernel string // its name in the session or its id; "" is the main kernel
	// Follow goes on until the container ends.
	Follow bool
	// From is how many bytes of the log are left out, because the caller has them already.
	From int64
}

// lostPart is shown before a kept log that may lack what came before, when a caller goes on in the middle of it.
const lostPart = "\n[berth: the log is longer than what is kept; its last part follows]\n"

// Logs opens the log of a kernel, live from its agent or the kept end of it. The caller closes it.
func (s *Service) Logs(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, opt LogOptions) (io.ReadCloser, error) {
	o, err := s.findOwner(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	v, err := s.loadSession(ctx, cluster.SessionID(o.ID))
	if err != nil {
		return nil, err
	}
	k, err := v.Kernel(opt.Kernel)
	if err != nil {
		return nil, err
	}
	if k.Agent != "" && !k.Status.Final() && k.Status != cluster.Pending && s.d.Streams != nil {
		r, err := s.liveLogs(ctx, k, opt.Follow)
		if err == nil {
			return &skipping{ReadCloser: r, skip: opt.From}, nil
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
	return io.NopCloser(strings.NewReader(restOfKept(text, opt.From))), nil
}

// restOfKept is what follows the first bytes of a log of which only the end is kept. A log that was too long to keep as a whole is
// shown with a note, because nobody knows how much came before what is kept.
func restOfKept(text string, from int64) string {
	switch {
	case from == 0:
		return text
	case len(text) >= cluster.LogTailBytes || strings.Count(text, "\n") >= cluster.LogTailLines || from > int64(len(text)):
		return lostPart + text
	}
	return text[from:]
}

// skipping leaves out the first bytes of a stream.
type skipping struct {
	io.ReadCloser
	skip int64
}

// Read reads what comes after the bytes that are left out.
func (s *skipping) Read(p []byte) (int, error) {
	for s.skip > 0 && len(p) > 0 {
		n, err := s.ReadCloser.Read(p[:min(int64(len(p)), s.skip)])
		s.skip -= int64(n)
		if err != nil {
			return 0, err
		}
	}
	return s.ReadCloser.Read(p)
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
