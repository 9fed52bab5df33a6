package runners

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// connectLimit bounds the way through a runner to what listens inside its container.
const connectLimit = 10 * time.Second

// Port reads the number of a port.
func Port(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fault.Invalidf("%q is no port", text).WithNext("name a port between 1 and 65535")
	}
	return int(n), nil
}

// Connect opens a connection to a port on the loopback address of a kernel's container, or to an app that its runner serves.
// With most runners it is the app's own socket, with nobody in between. ctx bounds the opening only; errors are faults.
func (p *Pool) Connect(ctx context.Context, kernel cluster.KernelID, token string, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := p.dial(ctx, kernel)
	if err != nil {
		var f *fault.Error
		if errors.As(err, &f) {
			return nil, err
		}
		return nil, fault.Unavailablef("the runner of kernel %s does not answer", kernel).WithReason("runner-unreachable").WithCause(err)
	}
	opened, err := tunnel.Open(ctx, conn, run.PathDial+"?port="+strconv.Itoa(port), http.Header{
		"Authorization": {"Bearer " + token}, run.HeaderVersion: {strconv.Itoa(run.Version)},
	})
	if fault.Is(err, fault.NotFound) {
		return nil, run.TooOld().WithCause(err)
	}
	return opened, err
}
