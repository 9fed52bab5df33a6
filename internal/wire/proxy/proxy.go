// Package proxy is what a manager and its app proxies say to each other.
//
// The proxy dials the manager's agent port with mTLS (its node certificate has the common name "appproxy:NAME") and the
// ALPN name ALPN, and speaks HTTP/2: POST with JSON bodies. A failure is a JSON run.Failure with the status of its kind.
// The manager owns every circuit; a proxy keeps a copy, goes on with it while no manager answers, and opens nothing
// that it does not find there.
package proxy

import (
	"net/netip"
	"time"

	"berth.dev/berth/internal/cluster"
)

// ALPN is the protocol's name on the agent port. Version is the newest version of the messages that this build speaks, which
// a proxy tells in Instance.Version:
//
//	1  2026-11-21  first.
//	2  2026-11-22  Circuit.targets in place of kernel, target and agent; Event.managers. Both forms of a circuit are read, and
//	               both are written, so that a proxy of version 1 sees the first target alone.
//	3  2026-11-22  Target.generation and grant; Event.version; Event.keys are of this proxy alone; LaunchRequest.attempt;
//	               PathBind. Agents of version 5 of the control stream refuse connections without a grant, so app proxies are
//	               upgraded before agents, and managers before both.
const (
	ALPN    = "berth-proxy/1"
	Version = 3
)

// VersionBind is the first version of a manager that knows PathBind.
const VersionBind = 3

// NamePrefix stands before a proxy's name in the common name of its certificate.
const NamePrefix = "appproxy:"

// The routes.
const (
	PathWatch    = "/v1/watch"    // WatchRequest -> lines of Event, without end
	PathLookup   = "/v1/lookup"   // LookupRequest -> LookupReply
	PathConf     = "/v1/conf"     // ConfRequest -> ConfReply
	PathBind     = "/v1/bind"     // LaunchRequest -> BindReply
	PathLaunch   = "/v1/launch"   // LaunchRequest -> LaunchReply
	PathRedeem   = "/v1/redeem"   // RedeemRequest -> RedeemReply
	PathClose    = "/v1/close"    // CloseRequest -> {}
	PathActivity = "/v1/activity" // Activity -> {}
)

// Bounds that both sides rely on.
const (
	MaxRequest  = 1 << 20 // bytes of a request
	MaxLine     = 1 << 20 // bytes of one Event
	MaxCircuits = 256     // circuits of one Event, and of one Activity
	MaxTargets  = 256     // targets of one circuit
	// Beat is how often the manager says something on a watch; a proxy that hears nothing for three beats dials anew.
	Beat = 5 * time.Second
)

// Mode is how a circuit is told from others.
type Mode string

// The modes: a host name of its own below the proxy's domain, or a port of its own.
const (
	ModeSubdomain Mode = "subdomain"
	ModePort      Mode = "port"
)

// Circuit is one published way to an app. It exists while the kernel runs; a circuit that is no longer in the table is gone
// for good, its id is never used again.
type Circuit struct {
	ID       string `json:"id"`       // UUID
	Revision int64  `json:"revision"` // grows with every change of any circuit
	// Epoch is part of what visitors' tickets are signed for: raising it makes all of them invalid.
	Epoch int64 `json:"epoch"`

	Mode Mode `json:"mode"`
	// Label is the host name's first part in subdomain mode: 1 to 63 of a-z, 0-9 and -. Port is the proxy's own in port mode.
	Label string `json:"label,omitempty"`
	Port  int    `json:"port,omitempty"`

	App      string `json:"app"`
	Protocol string `json:"protocol"` // http, h2, grpc, tcp, preopen, vnc, rdp
	Session  string `json:"session"`
	Name     string `json:"name"` // of the session, for people

	// Targets are where the app is; each visitor is sent to one of them.
	Targets []Target `json:"targets"`

	Owner  string `json:"owner"` // user id
	Public bool   `json:"public,omitempty"`
	// Allowed limits the visitors' addresses; empty allows all. It binds the owner too.
	Allowed []netip.Prefix `json:"allowed,omitempty"`
	// Admitted are the addresses that may open raw TCP connections to a circuit in port mode that is not public: those from
	// which a visitor redeemed a code.
	Admitted  []netip.Addr `json:"admitted,omitempty"`
	ExpiresAt *time.Time   `json:"expires_at,omitempty"`
	Limits    Limits       `json:"limits"`
}

// HTTP reports whether visitors speak HTTP on the circuit; all others carry bytes.
func (c Circuit) HTTP() bool {
	switch c.Protocol {
	case "http", "h2", "grpc", "preopen":
		return true
	}
	return false
}

// Limits bound what visitors of one circuit may do together; 0 means the proxy's own default.
type Limits struct {
	RequestsPerSecond float64 `json:"requests_per_second,omitempty"`
	Connections       int     `json:"connections,omitempty"`
	BodyBytes         int64   `json:"body_bytes,omitempty"`
}

// AgentAddress is where an agent's data port is. Socket works on the agent's own host alone (same BootID and a file that the
// proxy can reach); Address works everywhere, with mTLS.
type AgentAddress struct {
	ID      cluster.AgentID `json:"id"`
	Address string          `json:"address,omitempty"` // host:port
	Socket  string          `json:"socket,omitempty"`  // path
	BootID  string          `json:"boot_id,omitempty"`
}

// Instance is a proxy as it announces itself. Several instances of one name are replicas behind one address: any of them
// serves any circuit of that name.
type Instance struct {
	Name    string `json:"name"`
	Node    string `json:"node"` // tells replicas apart
	Version int    `json:"version"`
	Build   string `json:"build"`
	// URL is the base that clients are told, for example https://apps.example.org.
	URL string `json:"url"`
	// Domain serves LABEL.Domain; empty without wildcard mode. DomainURL is scheme and port that clients use for it, with
	// the domain as host: https://apps.example.org:8443.
	Domain    string `json:"domain,omitempty"`
	DomainURL string `json:"domain_url,omitempty"`
	// PortHost is the host that clients are told for ports PortFrom to PortTo; empty without port mode. PortTLS says that
	// HTTP apps on them are served with TLS.
	PortHost string `json:"port_host,omitempty"`
	PortFrom int    `json:"port_from,omitempty"`
	PortTo   int    `json:"port_to,omitempty"`
	PortTLS  bool   `json:"port_tls,omitempty"`
	// Prefer is the mode for circuits whose launcher does not choose; raw TCP always needs a port.
	Prefer Mode `json:"prefer,omitempty"`
}

// WatchRequest begins a watch.
type WatchRequest struct {
	Instance Instance `json:"instance"`
}

// Event is one line of a watch. The first events make up a snapshot: they carry Snapshot, the last of them Complete; what the
// proxy had and the snapshot does not name is gone. Then come deltas. An event may be a repetition: a circuit is
// replaced only by a higher revision. An event without content is a beat.
type Event struct {
	Snapshot bool      `json:"snapshot,omitempty"`
	Complete bool      `json:"complete,omitempty"`
	Circuits []Circuit `json:"circuits,omitempty"`
	Gone     []string  `json:"gone,omitempty"` // ids
	// Keys sign and check tickets of this proxy's circuits: the first signs, all check. They come with a snapshot and whenever
	// they change.
	Keys [][]byte `json:"keys,omitempty"`
	// Version is the version of the messages that the manager speaks; it comes with a snapshot, from managers of version 3 on.
	Version int `json:"version,omitempty"`
	// Managers are the agent ports (host:port) of all managers that announce themselves now; they come after a snapshot and
	// whenever the list changes, from managers of version 2 on.
	Managers []string `json:"managers,omitempty"`
}

// LookupRequest asks for a circuit that the table does not have: its event may be on the way. One of the two is set.
type LookupRequest struct {
	Proxy string `json:"proxy"`
	Label string `json:"label,omitempty"`
	Port  int    `json:"port,omitempty"`
}

// LookupReply holds the circuit; nil means that there is none.
type LookupReply struct {
	Circuit *Circuit `json:"circuit,omitempty"`
}

// ConfRequest makes a launch token for a session on behalf of whoever knows the coordinator's secret. Host and port of the
// upstream, which the older protocol sends along, are ignored: the manager knows them.
type ConfRequest struct {
	Session   string `json:"session"`
	AccessKey string `json:"access_key"`
}

// ConfReply is the answer to ConfRequest.
type ConfReply struct {
	Token string `json:"token"`
}

// LaunchRequest publishes an app for whoever holds a launch token.
type LaunchRequest struct {
	Proxy     string `json:"proxy"`
	Token     string `json:"token"`
	Session   string `json:"session"`
	App       string `json:"app"`
	Protocol  string `json:"protocol,omitempty"`
	Port      int    `json:"port,omitempty"` // inside the kernel; 0 means the app's first
	Envs      string `json:"envs,omitempty"` // JSON texts, as clients send them
	Arguments string `json:"arguments,omitempty"`

	Public  bool   `json:"public,omitempty"`
	Allowed string `json:"allowed,omitempty"` // comma list of addresses and prefixes
	// Label and ProxyPort are wishes; a wish that is taken is refused.
	Label     string     `json:"label,omitempty"`
	ProxyPort int        `json:"proxy_port,omitempty"`
	Mode      Mode       `json:"mode,omitempty"`
	NoReuse   bool       `json:"no_reuse,omitempty"`
	Client    netip.Addr `json:"client"`
	// Passed are circuits that earlier tries of this launch brought and whose ports this replica cannot open: they will not do.
	// Unopened is the one that the last try made anew; it goes, since nobody has been told of it.
	Passed   []string `json:"passed,omitempty"`
	Unopened string   `json:"unopened,omitempty"`
	// Attempt tells the tries of one launch apart from other launches: a launch token works for one of them. The proxy makes a
	// random one for every request of a visitor.
	Attempt string `json:"attempt,omitempty"`
}

// BindReply is a launch token that publishes exactly what the LaunchRequest said, once. The token of the request is used up.
type BindReply struct {
	Token string `json:"token"`
}

// LaunchReply is the circuit with a one-time code for the visitor who asked.
type LaunchReply struct {
	Circuit Circuit `json:"circuit"`
	URL     string  `json:"url"` // of the circuit, without path
	Code    string  `json:"code"`
	Reused  bool    `json:"reused"`
	// Path is where the app wants visitors to begin, from its url_template; "/" when it does not say.
	Path string `json:"path"`
}

// RedeemRequest turns a code into the right to be a visitor. A code works once.
type RedeemRequest struct {
	Circuit string     `json:"circuit"`
	Code    string     `json:"code"`
	Client  netip.Addr `json:"client"`
}

// RedeemReply says who the visitor is and how long a ticket may be valid.
type RedeemReply struct {
	User      string    `json:"user"`
	Epoch     int64     `json:"epoch"`
	ExpiresAt time.Time `json:"expires_at"`
	Path      string    `json:"path"`
	// Clients are the networks that the visitor may come from; none means all. The ticket carries them.
	Clients []string `json:"clients,omitempty"`
}

// CloseRequest ends all circuits that a launch token's user has at a session.
type CloseRequest struct {
	Token   string `json:"token"`
	Session string `json:"session"`
}

// Activity tells when visitors last used circuits: when they sent something, or now while an upgraded or raw connection is open.
type Activity struct {
	Circuits []CircuitActivity `json:"circuits"`
	// At is what the proxy's clock shows as it tells this: only the time since counts. Proxies that do not say are believed.
	At time.Time `json:"at,omitzero"`
}

// CircuitActivity is the activity of one circuit since the last report; BytesIn is 0 for one that is only held open.
type CircuitActivity struct {
	ID       string    `json:"id"`
	LastAt   time.Time `json:"last_at"`
	Requests int64     `json:"requests"`
	BytesIn  int64     `json:"bytes_in"`  // from visitors
	BytesOut int64     `json:"bytes_out"` // to visitors
}
