// Package forward carries visitors' requests and connections to the apps of circuits.
//
// HTTP/1.1 has an engine of its own: one goroutine for a visitor's connection, a strict and bounded parser, heads rewritten
// into one write, pooled upstream connections, and bodies that the kernel moves from socket to socket. HTTP/2 and gRPC go
// through net/http. The policy (what a Router is asked, which fields are taken out, what is limited and counted) is one for
// all of them; nothing of a request reaches an app before the Router has named its circuit.
package forward

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/wire/proxy"
)

// Listener is where a connection came in.
type Listener struct {
	Port int  // of the circuit in port mode; 0 is the shared listener
	TLS  bool // TLS has been taken off
}

// Head is a request as the Router sees it. It and everything it hands out is valid during the call alone.
type Head struct {
	Listener Listener
	Method   string
	// Host is the authority the visitor asked for, in lower case (with the port when one was sent), with its syntax checked;
	// empty for HTTP/1.0 requests without it.
	Host string
	// Path is the path as sent (still percent-encoded; it begins with "/", or is "*"), RawQuery what follows its "?".
	Path, RawQuery string
	Header         Header
	// Remote is the connection's other end. Client is the visitor's address and Secure whether the visitor speaks TLS: as the
	// connection says, or as Config.Trusted proxies in front of us say.
	Remote netip.AddrPort
	Client netip.Addr
	Secure bool
	// TLS says that this very connection is TLS.
	TLS bool
	// Upgrade is the protocol the visitor wants to switch to, in lower case ("websocket"); empty when none.
	Upgrade string
	Major   int // 1 or 2: the visitor's HTTP version
}

// Route is a Router's answer; exactly one of Circuit and Handler is set.
type Route struct {
	// Circuit gets the request. User is who the visitor is, for limits; empty when nobody said.
	Circuit *circuit.Circuit
	User    string
	// Key chooses among the circuit's targets when it has several; see circuit.Pick.
	Key uint64
	// Jar keeps apart the cookies of the circuit's tenant and those of others; the zero value does not.
	Jar circuit.Jar
	// Handler answers the request in the proxy itself. Its ResponseWriter can Flush and Hijack (HTTP/1.1), the request's
	// RemoteAddr is Head.Client's. A handler without an own limit gets Config.OwnBody bytes of body at most.
	Handler http.Handler
}

// Router decides about one request. It must not block: a look-up that may wait belongs into a Handler.
type Router func(Head) Route

// Dial opens a connection to a target of a circuit. Errors are faults with words for visitors.
type Dial func(context.Context, *circuit.Circuit, proxy.Target) (net.Conn, error)

// Config bounds what visitors and apps may do; DefaultConfig has the values that are not 0. In rates and counts 0 means
// without limit.
type Config struct {
	HeaderBytes int   // of a head, request or response
	HeaderCount int   // fields of a head
	BodyBytes   int64 // of a request to an app, where the circuit does not say; 0 means without limit
	OwnBody     int64 // of a request to a Handler

	HeaderTimeout   time.Duration // from a head's first byte to its last
	IdleTimeout     time.Duration // between requests of one visitor's connection
	StallTimeout    time.Duration // a body that does not move on, in either direction
	ResponseTimeout time.Duration // from the request to the head of the app's answer
	DialTimeout     time.Duration // to open a connection to an app
	// OpenIdle ends upgraded and raw connections on which nothing moved either way for that long; 0 means never.
	OpenIdle time.Duration
	// Lifetime ends a visitor's connection of whatever kind that long after it was opened; 0 means never.
	Lifetime time.Duration
	// KeepUpstream is how long an unused connection to an app is kept, MaxIdleUpstream how many of one circuit.
	KeepUpstream    time.Duration
	MaxIdleUpstream int

	Connections           int // of all visitors
	ConnectionsPerCircuit int // where the circuit does not say
	ConnectionsPerAddress int
	// Requests per second and circuit (where it does not say), user, address; bursts of twice that pass.
	RequestsPerCircuit, RequestsPerUser, RequestsPerAddress float64

	// HSTS tells browsers that come by TLS to come by TLS alone for a year.
	HSTS bool
	// Trusted are proxies in front of us whose X-Forwarded-For and X-Forwarded-Proto are believed.
	Trusted clientaddr.Trusted
	// Current returns the circuit of an id as the table has it now, nil when it is gone. The table must be replaced before
	// CloseCircuit is called. It lets ServeTCP and Tunnel notice that a circuit was closed between admission and registration; optional.
	Current func(id string) *circuit.Circuit
}

// DefaultConfig is for a proxy that is reachable by anybody.
func DefaultConfig() Config {
	return Config{
		HeaderBytes: 64 << 10, HeaderCount: 128, BodyBytes: 0, OwnBody: 1 << 20,
		HeaderTimeout: 15 * time.Second, IdleTimeout: 75 * time.Second, StallTimeout: 60 * time.Second,
		ResponseTimeout: 10 * time.Minute, DialTimeout: 10 * time.Second,
		KeepUpstream: 60 * time.Second, MaxIdleUpstream: 64,
		Connections: 20000, ConnectionsPerCircuit: 2000, ConnectionsPerAddress: 1000,
		RequestsPerCircuit: 2000, RequestsPerUser: 1000, RequestsPerAddress: 1000,
	}
}
