package platform

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
)

// Options say how Up tells about the cluster and where it listens.
type Options struct {
	// Ports is PortsAuto or PortsFixed.
	Ports string
	Log   *slog.Logger
	// Say tells the operator about progress. Show is called once, when the cluster is up; what it shows never reaches a log.
	Say  func(format string, args ...any)
	Show func(Report)
}

// Up runs a whole cluster in this process until ctx ends, which is an orderly end.
func Up(ctx context.Context, dir StateDir, s Settings, o Options) error {
	if err := dir.Create(); err != nil {
		return err
	}
	release, err := dir.Lock()
	if err != nil {
		return err
	}
	defer release()
	chassis.RelaxTimers()
	p, err := newPlatform(dir, s, o)
	if err != nil {
		return err
	}
	g, err := p.group()
	if err != nil {
		return err
	}
	o.Say("starting the database, etcd and Redis in %s", dir)
	err = g.Run(ctx)
	if cerr := embedded.RemoveSocketDir(string(dir), filepath.Dir(dir.controlSocket())); cerr != nil {
		o.Log.Warn("remove control socket", "error", cerr)
	}
	if ctx.Err() != nil && g.Err() == nil {
		if err != nil {
			o.Log.Warn("stopped, but not cleanly", "error", err)
		}
		o.Say("stopped: %s", context.Cause(ctx))
		return nil
	}
	if ctx.Err() != nil && strings.Contains(fmt.Sprint(err), context.Canceled.Error()) {
		return nil // a start that was called off
	}
	if err != nil && isAddressInUse(err) {
		return fault.New(fault.Unavailable, "a port is taken").WithCause(err).
			WithNext("berth up --ports auto, or end the program that uses the port")
	}
	return err
}
