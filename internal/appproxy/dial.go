package appproxy

import (
	"berth.dev/berth/internal/appproxy/agents"
	"berth.dev/berth/internal/appproxy/forward"
	"berth.dev/berth/internal/chassis"
)

// dialer is the way to apps: through their agents.
func (p *Proxy) dialer() forward.Dial {
	return agents.New(agents.Options{Member: p.member, BootID: chassis.BootID(), Log: p.log.With("part", "agents"), Clock: p.d.Clock}).Dial
}
