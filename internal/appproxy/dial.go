package appproxy

import (
	"context"
	"net"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/appproxy/forward"
	"berth.dev/berth/internal/fault"
)

// dialer is the way to apps: through their agents.
func (p *Proxy) dialer() forward.Dial {
	return func(context.Context, *circuit.Circuit) (net.Conn, error) {
		return nil, fault.Unavailablef("this build knows no way to agents").WithReason("no-agents")
	}
}
