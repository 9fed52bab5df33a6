// Package node holds the control messages between manager and agent (protobuf over
// gRPC) and their version. It is generated from node.proto by `make gen`.
package node

import (
	"bytes"
	"encoding/base64"
	"net/netip"
)

// Version is the newest version of the control stream this build speaks. See the
// dated list at the head of node.proto.
const Version = 14

// ALPNStream is the protocol name of the second connection of an agent, over which
// the manager is the HTTP/2 client and the agent the server (byte streams).
const ALPNStream = "berth-stream/1"

// VersionStreams is the first version of the control stream in which agents dial that connection when they are asked to.
const VersionStreams = 8

// NetworkAddress reports whether an agent can be reached at an address by others for networks of sessions: one of a single host that is
// not its own alone.
func NetworkAddress(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() &&
		!a.Is4In6()
}

// VersionNetwork is the first version in which agents connect the kernels of one session.
const VersionNetwork = 10

// VersionPeers is the first version in which agents tell kernels of one session of each other.
const VersionPeers = 11

// VersionHostNetwork is the first version in which agents run kernels in the network of their hosts.
const VersionHostNetwork = 13

// VersionEncrypted is the first version in which agents carry networks of sessions in encrypted tunnels.
const VersionEncrypted = 14

// TunnelKey reports whether a text can be the public key of an agent's encrypted tunnels: 32 bytes in base64, not all zero.
func TunnelKey(text string) bool {
	if len(text) != 44 {
		return false
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	return err == nil && len(b) == 32 && !bytes.Equal(b, make([]byte, 32))
}

// VersionWithheld is the first version in which agents take folders and SSH keys from containers that run.
const VersionWithheld = 9

// ALPNManager is the protocol name of a manager's connection to another manager's agent port, over which it relays byte
// streams to the agents of that one: HTTP/2, the agent in HeaderAgent, the path as the agent serves it.
const ALPNManager = "berth-manager/1"

// The header fields of relayed requests and replies.
const (
	// HeaderAgent names the agent, HeaderManager the manager that the sender means: another one refuses.
	HeaderAgent   = "Berth-Agent"
	HeaderManager = "Berth-Manager"
	// HeaderRelay is in replies that come from the other manager itself, with a run.Failure: the agent has not seen the request.
	HeaderRelay = "Berth-Relay-Failed"
)

// ALPNData is the protocol name of an agent's data port over TCP: HTTP/1.1 with the upgrade of package wire/tunnel.
const ALPNData = "http/1.1"

// MaxManagers bounds the list of managers that anybody tells or keeps, MaxAddress the length of one address.
const (
	MaxManagers = 64
	MaxAddress  = 300
)

// MaxMessage bounds one message of the control stream, in bytes; both sides allow that much.
const MaxMessage = 64 << 20

// Buffer is the size of the buffers of a control connection, in bytes; a longer message takes several reads.
const Buffer = 2 << 10

// Window is how many bytes may be on their way in each direction of a control connection. It is fixed on both sides: to find out how much
// the way takes, gRPC sends a ping and gets an answer for each message, and heartbeats are most messages.
const Window = 1 << 20
