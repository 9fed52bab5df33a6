// Package node holds the control messages between manager and agent (protobuf over
// gRPC) and their version. It is generated from node.proto by `make gen`.
package node

// Version is the newest version of the control stream this build speaks. See the
// dated list at the head of node.proto.
const Version = 3

// ALPNStream is the protocol name of the second connection of an agent, over which
// the manager is the HTTP/2 client and the agent the server (byte streams).
const ALPNStream = "berth-stream/1"

// ALPNData is the protocol name of an agent's data port over TCP: HTTP/1.1 with the upgrade of package wire/tunnel.
const ALPNData = "http/1.1"

// MaxMessage bounds one message of the control stream, in bytes; both sides allow that much.
const MaxMessage = 64 << 20
