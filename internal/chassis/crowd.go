package chassis

import (
	"net"
	"net/netip"
	"sync"
	"syscall"

	"berth.dev/berth/internal/clientaddr"
)

// crowd bounds the connections that strangers may hold. Every connection is an open file, and a process that has none left cannot
// write, look at its host or reach its database. Half of the files of the process stay for that, whoever connects; one address gets at
// most half of the rest, so that it does not shut out the others.
type crowd struct {
	total, perAddress int

	mu     sync.Mutex
	held   int
	byAddr map[netip.Addr]int
}

// maxHeld bounds the connections of a process that may open more files than it has memory for.
const maxHeld = 64 << 10

func newCrowd(files uint64) *crowd {
	total := int(min(files/2, maxHeld))
	return &crowd{total: total, perAddress: total / 2, byAddr: map[netip.Addr]int{}}
}

// visitors are the connections of all TCP servers of this process.
var visitors = sync.OnceValue(func() *crowd {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // the least that systems give
	}
	return newCrowd(limit.Cur)
})

// Crowded returns a listener whose connections take places among those of all servers of this process. Connections for which there is
// no place are reset.
func Crowded(ln net.Listener) net.Listener {
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return ln
	}
	return crowdListener{tcp, visitors()}
}

// enter takes a place; leave gives it back, once.
func (c *crowd) enter(from netip.Addr) (leave func(), ok bool) {
	from = clientaddr.Network(from)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held >= c.total || c.byAddr[from] >= c.perAddress {
		return nil, false
	}
	c.held++
	c.byAddr[from]++
	var once sync.Once
	return func() {
		once.Do(func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.held--
			if c.byAddr[from]--; c.byAddr[from] == 0 {
				delete(c.byAddr, from)
			}
		})
	}, true
}

// crowdListener closes connections for which there is no place.
type crowdListener struct {
	*net.TCPListener
	crowd *crowd
}

func (l crowdListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		peer, _ := c.RemoteAddr().(*net.TCPAddr)
		leave, ok := l.crowd.enter(peer.AddrPort().Addr())
		if ok {
			return crowdConn{c, leave}, nil
		}
		_ = c.SetLinger(0) // no state of a closed connection either
		_ = c.Close()
	}
}

// crowdConn keeps what *net.TCPConn can do, such as sending files.
type crowdConn struct {
	*net.TCPConn
	leave func()
}

// NetConn is the connection below, for those that set options of the socket.
func (c crowdConn) NetConn() net.Conn { return c.TCPConn }

func (c crowdConn) Close() error {
	c.leave()
	return c.TCPConn.Close()
}
