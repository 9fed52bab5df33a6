// Package tunnel opens a connection to what listens inside a kernel: one HTTP/1.1 request with an upgrade, then
// nothing but the bytes of the application.
//
//	POST /kernels/ID/ports/8888 HTTP/1.1
//	Connection: Upgrade
//	Upgrade: berth-conn/1
//	Berth-Hand-Over: fd            only over unix sockets
//
//	HTTP/1.1 101 Switching Protocols
//
// Over a unix socket the callee may hand the connected socket itself over (SCM_RIGHTS) and leave: the caller then talks to
// the application without anybody in between, although the application listens on the loopback address of a container. The
// runner does so for the agent. Everywhere else the same connection carries the bytes on.
//
// A callee that must be able to end the connection later lends the socket (Lend): it keeps a descriptor of its own, and the
// connection over which it handed the socket over stays open for as long as the caller uses it. The agent lends sockets to an
// app proxy on the same host. Callers say that they understand it (Berth-Loan: 1); to others such a callee carries the bytes.
//
// After 101 a caller that offered to take a socket reads one byte: handed ('F') or lent ('L'), where the one descriptor comes
// along with it or with a byte of the head, or carried ('S', the bytes follow). Others read the application's bytes at once. A
// refusal is a JSON run.Failure with the status of its kind.
//
// Callees are trusted no further than the connection that they give: they may send anything, in any number, and never make
// a caller wait beyond its context.
package tunnel

// Protocol is the upgrade token; Version 1 (2026-11-21). Loans (2026-11-23) need no other version: who does not know of them
// neither offers to take one nor gets one.
const Protocol = "berth-conn/1"

// HeaderHandOver is set to HandOverFD by callers that can take a descriptor, HeaderLoan to LoanKept by those that keep the
// connection over which it came open until they have closed what they were lent.
const (
	HeaderHandOver = "Berth-Hand-Over"
	HandOverFD     = "fd"
	HeaderLoan     = "Berth-Loan"
	LoanKept       = "1"
)

// The byte after 101 for callers that offered to take a socket.
const (
	handed  = 'F'
	loaned  = 'L'
	carried = 'S'
)

// The ports of apps that the runner serves itself, in every image. Nothing listens on them inside the container: they exist
// only as targets of a tunnel. Labels of images cannot claim them.
const (
	PortSSH      = 2200 // app sshd: SSH with shells, exec, forwarding and SFTP
	PortSFTP     = 2201 // app sftp: SFTP alone
	PortTerminal = 7681 // app ttyd: a terminal for browsers
)
