package e2e_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wires connect a manager with what it works with, one wire for each of them, so that each can be cut alone.
type wires interface {
	// name says in the report how the wires are made.
	name() string
	// inside is put before a command that shall run at the manager's end of the wires.
	inside() []string
	// near and far are the addresses of a wire's two ends: that of the manager's side and that of the host.
	near(wire string) string
	far(wire string) string
	// expose makes what the manager listens on at a port reachable for the host over a wire, reach makes what the host listens on at an
	// address reachable for the manager. Both return the address to dial.
	expose(wire, port string) string
	reach(wire, address string) string
	// cut lets nothing pass over a wire, without a word to either side, until it is joined again. deafen does so only with what
	// the manager would hear.
	cut(wire string)
	deafen(wire string)
	join(wire string)
}

// layWires makes wires of the given names that end with the test: to a network namespace where this host lets us make one, else relays.
func layWires(t *testing.T, names ...string) wires {
	t.Helper()
	if w, err := newNamespace(t, names); err == nil {
		return w
	} else {
		t.Logf("no network namespaces here, so connections pass through relays: %v", err)
	}
	return &relays{t: t, of: map[string][]*relay{}}
}

// namespace is a network namespace with a pair of interfaces for each wire. What is cut is dropped by a packet filter inside: neither
// side learns of it, as with a network that has failed.
type namespace struct {
	t      testing.TB
	id     string
	number map[string]int
}

func newNamespace(t *testing.T, names []string) (*namespace, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("this is not root")
	}
	n := &namespace{t: t, id: fmt.Sprintf("berth-chaos-%d", os.Getpid()), number: map[string]int{}}
	if err := command("ip", "netns", "add", n.id); err != nil {
		return nil, err
	}
	t.Cleanup(func() { // its interfaces, and with them those of the host, go with it
		if err := command("ip", "netns", "del", n.id); err != nil {
			t.Logf("the network namespace %s is left: %v", n.id, err)
		}
	})
	if err := n.run("ip", "link", "set", "lo", "up"); err != nil {
		return nil, err
	}
	if err := n.run("iptables", "-S"); err != nil {
		return nil, err
	}
	for i, name := range names {
		n.number[name] = i
		out, in := n.outer(name), n.inner(name)
		for _, argv := range [][]string{
			{"ip", "link", "add", out, "type", "veth", "peer", "name", in, "netns", n.id},
			{"ip", "addr", "add", n.far(name) + "/30", "dev", out},
			{"ip", "link", "set", out, "up"},
		} {
			if err := command(argv...); err != nil {
				return nil, err
			}
		}
		for _, argv := range [][]string{{"ip", "addr", "add", n.near(name) + "/30", "dev", in}, {"ip", "link", "set", in, "up"}} {
			if err := n.run(argv...); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

func command(argv ...string) error {
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (n *namespace) run(argv ...string) error { return command(append(n.inside(), argv...)...) }

func (n *namespace) name() string { return "a network namespace for the manager" }

// inside changes the network alone: mounts stay those of the host.
func (n *namespace) inside() []string { return []string{"nsenter", "--net=/var/run/netns/" + n.id} }

// Names of interfaces have 15 letters at most.
func (n *namespace) outer(wire string) string {
	return fmt.Sprintf("bch%d.%d", os.Getpid(), n.number[wire])
}
func (n *namespace) inner(wire string) string { return fmt.Sprintf("w%d", n.number[wire]) }

func (n *namespace) address(wire string, end int) string {
	return fmt.Sprintf("10.214.%d.%d", os.Getpid()%250, 4*n.number[wire]+end)
}
func (n *namespace) far(wire string) string  { return n.address(wire, 1) }
func (n *namespace) near(wire string) string { return n.address(wire, 2) }

func (n *namespace) expose(wire, port string) string { return net.JoinHostPort(n.near(wire), port) }
func (n *namespace) reach(_, address string) string  { return address }

func (n *namespace) filter(verb, chain, flag, wire string) error {
	return n.run("iptables", "-w", verb, chain, flag, n.inner(wire), "-j", "DROP")
}

func (n *namespace) cut(wire string) {
	n.deafen(wire)
	require.NoError(n.t, n.filter("-I", "OUTPUT", "-o", wire))
}

func (n *namespace) deafen(wire string) { require.NoError(n.t, n.filter("-I", "INPUT", "-i", wire)) }

func (n *namespace) join(wire string) {
	_ = n.filter("-D", "INPUT", "-i", wire) // it may be cut in one direction
	_ = n.filter("-D", "OUTPUT", "-o", wire)
}

// relays pass connections on over addresses of the host. They cut the same connections, but each side keeps its connection to the relay.
type relays struct {
	t  testing.TB
	of map[string][]*relay
}

func (r *relays) name() string       { return "relays" }
func (r *relays) inside() []string   { return nil }
func (r *relays) near(string) string { return "127.0.0.1" }
func (r *relays) far(string) string  { return "127.0.0.1" }

func (r *relays) expose(wire, port string) string {
	return r.reach(wire, net.JoinHostPort("127.0.0.1", port))
}

func (r *relays) reach(wire, address string) string {
	relay := tcpRelay(r.t, address)
	r.of[wire] = append(r.of[wire], relay)
	return relay.addr()
}

func (r *relays) hang(wire string, on bool) {
	for _, relay := range r.of[wire] {
		relay.hang(on)
	}
}

func (r *relays) cut(wire string)    { r.hang(wire, true) }
func (r *relays) deafen(wire string) { r.hang(wire, true) }
func (r *relays) join(wire string)   { r.hang(wire, false) }

// TestWiresAreCutWithoutAWord: what is cut arrives when the wire is joined again, and nobody is told meanwhile.
func TestWiresAreCutWithoutAWord(t *testing.T) {
	needEngine(t) // it needs root, as what needs the engine does
	for _, lay := range []struct {
		name string
		make func() (wires, error)
	}{
		{"namespace", func() (wires, error) { return newNamespace(t, []string{"one", "two"}) }},
		{"relays", func() (wires, error) { return &relays{t: t, of: map[string][]*relay{}}, nil }},
	} {
		t.Run(lay.name, func(t *testing.T) {
			w, err := lay.make()
			if err != nil {
				t.Skipf("this machine allows no network namespaces, and chaos falls back to relays here: %v", err)
			}
			port := freePort(t)
			server := append(w.inside(), "python3", "-c", fmt.Sprintf(`
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile: self.wfile.write(line)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("0.0.0.0", %s), Echo).serve_forever()
`, port))
			process(t, t.TempDir(), "echo", server...)
			one, two := newEcho(t, w.expose("one", port)), newEcho(t, w.expose("two", port))
			one.answers()
			two.answers()
			for _, sever := range []func(string){w.cut, w.deafen} {
				sever("one")
				one.says()
				two.answers() // the other wire goes on; what was said over the first has not come before this
				require.False(t, one.answered())
				w.join("one")
				one.hears()
			}
		})
	}
}

// echo is a connection to a server that repeats every line.
type echo struct {
	t    testing.TB
	conn net.Conn
	said int
}

func newEcho(t *testing.T, addr string) *echo {
	t.Helper()
	e := &echo{t: t}
	require.Eventually(t, func() bool { // a relay takes connections before the server does
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		var got int
		if _, err := fmt.Fprintln(conn, e.said); err == nil {
			_, err = fmt.Fscanln(conn, &got)
			e.conn = conn
			return err == nil
		}
		return false
	}, patience, 50*time.Millisecond)
	t.Cleanup(func() { _ = e.conn.Close() })
	return e
}

func (e *echo) says() {
	e.t.Helper()
	e.said++
	_, err := fmt.Fprintf(e.conn, "%d\n", e.said)
	require.NoError(e.t, err)
}

func (e *echo) hears() {
	e.t.Helper()
	require.NoError(e.t, e.conn.SetReadDeadline(time.Now().Add(patience)))
	var got int
	_, err := fmt.Fscanln(e.conn, &got)
	require.NoError(e.t, err)
	require.Equal(e.t, e.said, got)
}

// answered reports whether something can be read at once.
func (e *echo) answered() bool {
	require.NoError(e.t, e.conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
	n, err := e.conn.Read(make([]byte, 1))
	return err == nil && n > 0
}

func (e *echo) answers() { e.t.Helper(); e.says(); e.hears() }
