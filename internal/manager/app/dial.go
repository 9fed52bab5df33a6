package app

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/wire/run"
)

// touchEvery bounds how often one stream notes that its session is used.
const touchEvery = time.Second

// Way is the way into an app that was started, for streams of the manager itself.
type Way struct {
	App  string
	Port int

	session cluster.SessionID
	kernel  session.Kernel
	s       *Service

	mu      sync.Mutex
	touched time.Time
}

// Reach starts an app, or names a port with App "", and returns the way to it. Nothing is connected yet.
func (s *Service) Reach(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, want Want) (*Way, error) {
	r, way, err := s.use(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	t, err := start(ctx, run.NewClient(run.Options{Transport: way}), r, want)
	if err != nil {
		return nil, err
	}
	return &Way{App: t.app, Port: t.port, session: cluster.SessionID(r.ID), kernel: way.Kernel, s: s}, nil
}

// Open connects. The stream ends with ctx.
func (w *Way) Open(ctx context.Context) (io.ReadWriteCloser, error) {
	if w.s.d.Streams == nil {
		return nil, fault.Unavailablef("agent %s is not connected", w.kernel.Agent)
	}
	stream, err := w.s.d.Streams.Upgrade(ctx, w.kernel.Agent, fmt.Sprintf("/kernels/%s/ports/%d", w.kernel.ID, w.Port), nil)
	if err != nil {
		return nil, fmt.Errorf("connect to app %s: %w", w.App, err)
	}
	return stream, nil
}

// Used notes that the client sent something: an open stream alone is no use of the session.
func (w *Way) Used() {
	now := w.s.d.Clock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.touched) >= touchEvery {
		w.touched = now
		w.s.d.Sessions.Uses().Touch(w.session, now)
	}
}
