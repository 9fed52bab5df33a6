package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/wire/run"
)

// maxTable bounds what is read of the kernel's tables of sockets, in bytes, and maxNoticed the ports that are listed.
const (
	maxTable   = 8 << 20
	maxNoticed = 32
)

// listener is a socket that listens where a tunnel can reach it.
type listener struct {
	port  int
	inode uint64
	uid   int
	six   bool // only on the IPv6 loopback address
}

// listeners reads the sockets of this network that listen on the loopback address or on all. dir holds tcp and tcp6 (/proc/self/net).
func listeners(dir string) ([]listener, error) {
	var out []listener
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(dir + "/" + name)
		if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, parseSockets(io.LimitReader(f, maxTable), name == "tcp6")...)
		_ = f.Close()
	}
	return out, nil
}

// parseSockets reads the kernel's format: sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
func parseSockets(r io.Reader, six bool) []listener {
	const listen = "0A"
	var out []listener
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != listen {
			continue
		}
		host, portText, ok := strings.Cut(f[1], ":")
		port, err := strconv.ParseUint(portText, 16, 16)
		addr, known := kernelAddr(host)
		if !ok || err != nil || !known || port == 0 {
			continue
		}
		reachable := addr.IsUnspecified() || addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || addr == netip.IPv6Loopback()
		uid, err1 := strconv.Atoi(f[7])
		inode, err2 := strconv.ParseUint(f[9], 10, 64)
		if reachable && err1 == nil && err2 == nil {
			out = append(out, listener{port: int(port), inode: inode, uid: uid, six: six && addr == netip.IPv6Loopback()})
		}
	}
	return out
}

// kernelAddr reads an address as the kernel prints it: words of four bytes, each in the machine's (little-endian) order.
func kernelAddr(text string) (netip.Addr, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.Addr{}, false
	}
	for w := 0; w < len(b); w += 4 {
		b[w], b[w+1], b[w+2], b[w+3] = b[w+3], b[w+2], b[w+1], b[w]
	}
	a, ok := netip.AddrFromSlice(b)
	return a.Unmap(), ok
}

// passingPorts are those that the kernel gives to programs that ask for any: they come by the dozen (a notebook's kernels
// take five each) and mean nothing to people.
func passingPorts(file string) (low, high int) {
	low, high = 32768, 60999
	b, err := os.ReadFile(file)
	if err != nil {
		return low, high
	}
	if f := strings.Fields(string(b)); len(f) == 2 {
		l, err1 := strconv.Atoi(f[0])
		h, err2 := strconv.Atoi(f[1])
		if err1 == nil && err2 == nil {
			return l, h
		}
	}
	return low, high
}

// noticer finds ports that programs of the session listen on. It looks only when it is asked, and remembers shortly.
type noticer struct {
	uid  int
	now  func() time.Time
	read func() ([]listener, error)
	// ask replaces speaks in tests.
	ask func(ctx context.Context, port int, patience time.Duration) (p run.AppProtocol, sure bool)

	mu    sync.Mutex
	at    time.Time
	last  []listener
	spoke map[uint64]spoken // by inode
}

// spoken is what a socket was heard to speak. One that said nothing is asked again after until.
type spoken struct {
	protocol run.AppProtocol
	until    time.Time // zero: it is sure
	pause    time.Duration
}

// A socket that said nothing is asked again after askAgain, and then after twice as long each time, up to askRarely: programs
// listen before they have loaded what they need to answer.
const (
	askAgain  = 2 * time.Second
	askRarely = time.Minute
)

// How long a socket may take to say something: for a list, and when somebody opens what listens there.
const (
	listPatience = 400 * time.Millisecond
	openPatience = 3 * time.Second
)

// neverAsked are ports whose programs speak something else and may mind what they do not understand: databases, queues,
// and the meeting points of distributed training.
var neverAsked = []int{22, 1883, 3306, 5432, 5672, 6379, 7077, 8786, 9042, 9092, 11211, 27017, 29400, 29500}

// seenFor is how long what was read is good enough.
const seenFor = time.Second

// listening returns all listeners by port. The lists of those who ask at the same time are read once.
func (n *noticer) listening() map[int]listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := n.now(); n.at.IsZero() || now.Sub(n.at) >= seenFor || now.Before(n.at) {
		n.last, _ = n.read() // a /proc that cannot be read shows no listeners
		n.at = now
	}
	out := make(map[int]listener, len(n.last))
	for _, l := range n.last {
		if have, ok := out[l.port]; !ok || have.six {
			out[l.port] = l
		}
	}
	return out
}

// forget makes the next list a new one.
func (n *noticer) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at = time.Time{}
}

// protocols tells what the listeners speak, asking those that it has not met, all at once and each for as long as patience.
func (n *noticer) protocols(ctx context.Context, of []listener, patience time.Duration) map[int]run.AppProtocol {
	n.mu.Lock()
	if n.spoke == nil || len(n.spoke) > 4*maxNoticed {
		n.spoke = map[uint64]spoken{} // most are of sockets that are gone
	}
	out := map[int]run.AppProtocol{}
	var ask []listener
	var before []time.Duration // the pauses of ask
	now := n.now()
	for _, l := range of {
		p, ok := n.spoke[l.inode]
		if ok && (p.until.IsZero() || now.Before(p.until) && patience <= listPatience) {
			out[l.port] = p.protocol
		} else if slices.Contains(neverAsked, l.port) {
			out[l.port] = run.AppTCP
		} else {
			ask, before = append(ask, l), append(before, p.pause)
		}
	}
	n.mu.Unlock()
	speaks := speaks
	if n.ask != nil {
		speaks = n.ask
	}
	var wait sync.WaitGroup
	heard := make([]spoken, len(ask))
	for i, l := range ask {
		wait.Go(func() {
			p, sure := speaks(ctx, l.port, patience)
			if heard[i].protocol = p; !sure {
				heard[i].pause = min(max(askAgain, 2*before[i]), askRarely)
				heard[i].until = now.Add(heard[i].pause)
			}
		})
	}
	wait.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, l := range ask {
		out[l.port] = heard[i].protocol
		if ctx.Err() == nil {
			n.spoke[l.inode] = heard[i]
		}
	}
	return out
}

// speaks asks a port whether it speaks HTTP. Who speaks first, answers anything else or ends the connection does not. Who says nothing
// may be busy, so that is not sure.
func speaks(ctx context.Context, port int, patience time.Duration) (p run.AppProtocol, sure bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := connect(ctx, port)
	if err != nil {
		return run.AppTCP, false
	}
	defer conn.Close()
	var head [5]byte
	_ = conn.SetReadDeadline(time.Now().Add(listPatience / 8))
	n, err := io.ReadFull(conn, head[:])
	if n > 0 || isEnd(err) {
		return run.AppTCP, true
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "HEAD / HTTP/1.1\r\nHost: localhost:"+strconv.Itoa(port)+"\r\nConnection: close\r\n\r\n"); err != nil {
		return run.AppTCP, true
	}
	if n, err = io.ReadFull(conn, head[:]); err == nil && bytes.Equal(head[:], []byte("HTTP/")) {
		return run.AppHTTP, true
	}
	return run.AppTCP, n > 0 || isEnd(err)
}

// isEnd reports whether an error says that the other side has ended the connection. Who ends it before everything is read makes the kernel
// say so with a reset.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// connect dials a port of the container.
func connect(ctx context.Context, port int) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil && ctx.Err() == nil {
		if six, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port))); err6 == nil {
			return six, nil
		}
	}
	return conn, err
}
