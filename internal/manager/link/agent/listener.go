package agent

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"

	"berth.dev/berth/internal/fault"
)

// queueListener hands connections that were accepted and shaken hands with elsewhere to gRPC.
type queueListener struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newQueueListener(addr net.Addr) *queueListener {
	return &queueListener{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (q *queueListener) put(c net.Conn) bool {
	select {
	case q.conns <- c:
		return true
	case <-q.done:
		return false
	}
}

func (q *queueListener) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

func (q *queueListener) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

func (q *queueListener) Addr() net.Addr { return q.addr }

// strangerConn tells when it was closed.
type strangerConn struct {
	*tls.Conn
	once sync.Once
	over chan struct{}
}

func (c *strangerConn) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.Conn.Close()
}

// handshaken are gRPC credentials for connections whose TLS handshake is over.
type handshaken struct{}

func (handshaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := c.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil, nil, fault.Deniedf("the agent port speaks TLS only")
	}
	return c, credentials.TLSInfo{State: t.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (handshaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fault.Deniedf("these credentials are for the server")
}
func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (h handshaken) Clone() credentials.TransportCredentials { return h }
func (handshaken) OverrideServerName(string) error           { return nil }
