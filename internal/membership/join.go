package membership

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

func (m *Member) token() (string, error) {
	if m.o.Token == nil {
		return "", nil
	}
	s, err := m.o.Token()
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return s.Reveal(), err
}

// EnsureJoined gets a certificate from the manager at addr (host:port of its agent port) when there is none, and a new one
// in time. A renewal that fails while the old certificate is valid is only logged.
func (m *Member) EnsureJoined(ctx context.Context, addr string) error {
	token, err := m.token()
	if err != nil {
		return fmt.Errorf("read the join token: %w", err)
	}
	noun, _ := m.kind()
	if t, err := node.ParseJoinToken(token); err == nil && m.leave(t) {
		m.o.Log.Warn("the join token belongs to another cluster than the one that this " + noun + " joined before; joining that one")
	}
	renew := m.Joined()
	if renew && m.o.Clock.Now().Before(m.RenewAt()) {
		return nil
	}
	err = m.join(ctx, addr, token)
	switch {
	case err == nil && renew:
		m.o.Log.Info("renewed the node certificate")
	case err == nil:
		m.o.Log.Info("joined the cluster", "cluster", m.ClusterID())
	case renew:
		m.o.Log.Warn("the node certificate could not be renewed; the old one still works", "err", err)
		err = nil
	}
	return err
}

// introduce chooses how to join: over the present certificate, by the key where the cluster knows it, or with a token. A token goes
// along with the key, because an administrator may have made it for a cluster that does not know the key any more.
func (m *Member) introduce(token string) (conf *tls.Config, secret string, err error) {
	if m.Joined() { // whatever the token is
		return m.TLS("h2"), "", nil
	}
	t, err := node.ParseJoinToken(token)
	m.mu.Lock()
	ca := m.ca
	m.mu.Unlock()
	noun, section := m.kind()
	switch {
	case ca != nil:
		return node.ReturningTLS(ca), t.Secret, nil // no secret when the token cannot be read
	case token == "":
		return nil, "", fault.Invalidf("this %s has no node certificate and no join token", noun).WithReason("no-join-token").
			WithNext("make a token on the manager's host (berth admin join-token create --role %s --name NAME) and set %s.join_token_file "+
				"to the file with it", section, section)
	case err != nil:
		return nil, "", err
	}
	return t.JoinTLS(), t.Secret, nil
}

// join gets a certificate.
func (m *Member) join(ctx context.Context, addr, token string) error {
	conf, secret, err := m.introduce(token)
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: m.o.Name}}, m.key)
	if err != nil {
		return fmt.Errorf("request a node certificate: %w", err)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return m.dial.DialContext(ctx, "tcp", addr) }))
	if err != nil {
		return fmt.Errorf("request a node certificate: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	reply, err := node.NewNodeClient(conn).Join(ctx, &node.JoinRequest{Token: secret, AgentId: m.o.Name, CsrDer: csr, Version: node.Version})
	if err != nil {
		return fmt.Errorf("request a node certificate: %w", node.FaultOf(err))
	}
	return m.accept(reply)
}

// accept checks the certificate that the manager signed, and stores it.
func (m *Member) accept(r *node.JoinReply) error {
	cert, err := x509.ParseCertificate(r.GetCertificateDer())
	if err != nil {
		return fmt.Errorf("read the node certificate: %w", err)
	}
	ca, err := x509.ParseCertificate(r.GetCaDer())
	if err != nil {
		return fmt.Errorf("read the cluster's authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: m.o.Clock.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("check the node certificate: %w", err)
	}
	if !m.key.PublicKey.Equal(cert.PublicKey) || cert.Subject.CommonName != m.o.Name {
		noun, _ := m.kind()
		return fault.Invalidf("the manager gave a certificate of another %s (%s)", noun, cert.Subject.CommonName)
	}
	// The certificate last: without it the others are not used.
	for _, f := range []struct {
		name, kind string
		data       []byte
	}{{fileCA, "CERTIFICATE", ca.Raw}, {fileCluster, "", []byte(r.GetClusterId())}, {fileCert, "CERTIFICATE", cert.Raw}} {
		if err := m.write(f.name, f.kind, f.data); err != nil {
			return fmt.Errorf("keep the node certificate: %w", err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cert, m.ca, m.cluster = cert, ca, r.GetClusterId()
	return nil
}

// renewEvery is the pause between two looks at the certificate's age.
const renewEvery = 10 * time.Minute

// KeepRenewed renews the certificate in time until ctx ends, at the first of the managers that does it, for processes whose
// connection to a manager may outlast it.
func (m *Member) KeepRenewed(ctx context.Context, managers *Managers) error {
	tick := m.o.Clock.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		}
		if !m.Joined() {
			continue // joining is up to whoever connects
		}
		for _, addr := range managers.All() {
			before := m.RenewAt()
			err := m.EnsureJoined(ctx, addr)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				m.o.Log.Warn("renew the node certificate", "manager", addr, "err", err)
			}
			if now := m.RenewAt(); !now.Equal(before) || m.o.Clock.Now().Before(now) {
				break
			}
		}
	}
}
