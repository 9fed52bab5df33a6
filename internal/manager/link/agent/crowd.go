package agent

import (
	"crypto/tls"
	"net"
	"slices"
	"sync"

	"berth.dev/berth/internal/manager/link/ca"
)

// An agent has a control stream and a stream connection, and a moment long those before. The replicas of an app proxy share a name and
// have one connection each; together they have a quarter of what all app proxies have.
const (
	maxAgentConns      = 16
	maxConnsOfOneProxy = maxProxyConns / 4
)

// crowd bounds the connections of each node that has shown its certificate, so that one that was taken over leaves places to the
// others. A newer connection ends the oldest one of the same node: a node whose connections broke unnoticed is never locked out.
type crowd struct {
	mu   sync.Mutex
	open map[ca.Node][]*guest
}

// guest is one connection of a node.
type guest struct {
	net.Conn
	in   *crowd
	node ca.Node
}

func newCrowd() *crowd { return &crowd{open: map[ca.Node][]*guest{}} }

// guest makes a connection one that enter can count; nobody else may have used it yet.
func (c *crowd) guest(conn net.Conn) *guest { return &guest{Conn: conn, in: c} }

// enter counts the connection as one of the node that the certificate names. Managers are not counted.
func (g *guest) enter(s tls.ConnectionState) {
	n, err := ca.NodeOf(s.PeerCertificates[0].Subject.CommonName)
	if err != nil {
		return
	}
	most := maxAgentConns
	if n.Role == ca.RoleAppProxy {
		most = maxConnsOfOneProxy
	}
	var oldest *guest
	g.in.mu.Lock()
	g.node = n
	list := append(g.in.open[n], g)
	if len(list) > most {
		oldest = list[0]
		list = slices.Delete(list, 0, 1)
	}
	g.in.open[n] = list
	g.in.mu.Unlock()
	if oldest != nil {
		_ = oldest.Conn.Close()
	}
}

// NetConn is the connection itself.
func (g *guest) NetConn() net.Conn { return g.Conn }

// Close ends the connection and no longer counts it.
func (g *guest) Close() error {
	g.in.mu.Lock()
	list := g.in.open[g.node]
	if i := slices.Index(list, g); i >= 0 {
		if list = slices.Delete(list, i, i+1); len(list) == 0 {
			delete(g.in.open, g.node)
		} else {
			g.in.open[g.node] = list
		}
	}
	g.in.mu.Unlock()
	return g.Conn.Close()
}
