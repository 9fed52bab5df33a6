package membership

import (
	"crypto/tls"
	"crypto/x509"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// TLS is the client configuration towards managers with the node certificate. The process must have joined.
func (m *Member) TLS(alpn string) *tls.Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	return node.AgentTLS(m.pair(), m.ca, alpn)
}

// pair is the certificate with its key; m.mu is held.
func (m *Member) pair() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{m.cert.Raw}, PrivateKey: m.key, Leaf: m.cert}
}

// present returns the certificate and its authority; ok is false before the process has joined.
func (m *Member) present() (pair tls.Certificate, ca *x509.Certificate, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cert == nil {
		return tls.Certificate{}, nil, false
	}
	return m.pair(), m.ca, true
}

// ServeTLS is the server configuration for members of the same cluster whose name begins with prefix. It follows every
// change of the certificate; before the process has joined it refuses everybody.
func (m *Member) ServeTLS(prefix, alpn string) *tls.Config {
	conf := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{alpn}}
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair, ca, ok := m.present()
		if !ok {
			return nil, fault.Unavailablef("this process has not joined the cluster yet")
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		return &tls.Config{
			MinVersion: tls.VersionTLS13, NextProtos: []string{alpn}, Time: m.o.Clock.Now,
			Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
			// Called for resumed sessions too.
			VerifyConnection: func(s tls.ConnectionState) error {
				if s.NegotiatedProtocol != alpn {
					return fault.Deniedf("the peer does not speak %s", alpn)
				}
				return m.check(s, ca, func(name string) bool { return strings.HasPrefix(name, prefix) })
			},
		}, nil
	}
	return conf
}

// DialTLS is the client configuration towards the member of the same cluster that is named name. sessions may be nil; one
// cache can serve all names.
func (m *Member) DialTLS(name, alpn string, sessions tls.ClientSessionCache) (*tls.Config, error) {
	pair, ca, ok := m.present()
	if !ok {
		return nil, fault.Unavailablef("this process has not joined the cluster yet").WithReason("not-joined")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{alpn}, Time: m.o.Clock.Now, Certificates: []tls.Certificate{pair},
		ServerName: name, ClientSessionCache: sessions,
		// Node certificates name a member, no host; VerifyConnection checks the chain and the name, for resumed sessions too.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != alpn {
				return fault.Deniedf("the peer does not speak %s", alpn)
			}
			return m.check(s, ca, func(peer string) bool { return peer == name })
		},
	}, nil
}

// check verifies that the peer's certificate was signed by ca and that its name is right.
func (m *Member) check(s tls.ConnectionState, ca *x509.Certificate, right func(name string) bool) error {
	if len(s.PeerCertificates) == 0 {
		return fault.New(fault.Unauthenticated, "the peer shows no node certificate")
	}
	leaf := s.PeerCertificates[0]
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	// Node certificates are client certificates, also where their owner is the server.
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: m.o.Clock.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fault.New(fault.Unauthenticated, "the peer's certificate is not of this cluster").WithCause(err)
	}
	if !right(leaf.Subject.CommonName) {
		return fault.Deniedf("the peer is %q, which is not expected here", leaf.Subject.CommonName)
	}
	return nil
}
